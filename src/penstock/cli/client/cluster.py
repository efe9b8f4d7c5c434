"""A cluster as its clients see it: who leads which partition, and a connection to each."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import RefusedError, check
from penstock.config.addresses import Address
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire.schema import build
from penstock.model.errors import RetryableError

_GROUP_KEY: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition: the node that leads it and those that hold it."""

    partition: int
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic. `topic_id` is its UUID as text, empty where the server gives none."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Nodes and topics."""

    cluster_id: str
    controller: int
    nodes: dict[int, Address]
    topics: dict[str, TopicInfo]


class Client:
    """Connections to the nodes of a cluster, made when they are needed.

    Args:
        bootstrap: any node.
        timeout_s: longest that one request may take.
    """

    def __init__(self, bootstrap: Address, *, timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._controller = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def any(self) -> Connection:
        """A connection to the node that was named, or to another where it can't be reached."""
        try:
            return self._connection(self._bootstrap)
        except RetryableError:
            for address in self._nodes.values():
                if address != self._bootstrap:
                    with contextlib.suppress(RetryableError):
                        return self._connection(address)
            raise

    def controller(self) -> Connection:
        """A connection to the node that takes administrative requests."""
        if self._controller not in self._nodes:
            self.metadata([])
        return self.node(self._controller)

    def node(self, node_id: int) -> Connection:
        """A connection to a node. Raises: RetryableError, when it is not known."""
        if node_id not in self._nodes:
            self.metadata([])
        if node_id not in self._nodes:
            raise RetryableError("connect", f"node {node_id}", "the cluster does not know it")
        return self._connection(self._nodes[node_id])

    def coordinator(self, group_id: str) -> Connection:
        """A connection to a group's coordinator."""
        return self._connection(self._coordinator_address(group_id))

    def own_coordinator(self, group_id: str) -> Connection:
        """A new connection to a group's coordinator, for a member, which closes it: joining waits
        there, and fetches must not wait for it."""
        return Connection(self._coordinator_address(group_id), timeout_s=self._timeout_s)

    def metadata(self, names: Sequence[str] | None, *, create: bool = False) -> ClusterInfo:
        """Nodes, and topics by name; None: all topics.

        Args:
            create: whether the server may create topics that do not exist, if its settings do.

        Raises:
            RefusedError: a named topic does not exist or has a bad name.
        """
        response = self.any().request(
            "metadata",
            lambda types: build(
                types.MetadataRequest,
                topics=None
                if names is None
                else tuple(
                    build(types.MetadataRequestTopic, topic_id=None, name=name) for name in names
                ),
                allow_auto_topic_creation=create,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            ),
        )
        self._nodes = {row.node_id: Address(row.host, row.port) for row in response.brokers}
        self._controller = response.controller_id
        topics = {}
        for row in response.topics:
            check("look up topic", row.name or "", row.error_code, _topic_message(row.error_code))
            topics[row.name] = TopicInfo(
                name=row.name,
                topic_id=str(getattr(row, "topic_id", None) or ""),
                is_internal=row.is_internal,
                partitions=tuple(
                    PartitionInfo(
                        partition=part.partition_index,
                        leader=part.leader_id,
                        replicas=tuple(part.replica_nodes),
                    )
                    for part in sorted(row.partitions, key=lambda part: part.partition_index)
                ),
            )
        return ClusterInfo(
            cluster_id=response.cluster_id or "",
            controller=response.controller_id,
            nodes=dict(self._nodes),
            topics=topics,
        )

    def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """One topic. Raises: RefusedError, when it does not exist."""
        try:
            return self.metadata([name], create=create).topics[name]
        except RetryableError:
            # A topic that is created by asking for it may have no leader in the first answer.
            return self.metadata([name], create=create).topics[name]
        except RefusedError as error:
            if create and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return self.metadata([name], create=create).topics[name]
            raise

    def _coordinator_address(self, group_id: str) -> Address:
        response = self.any().request(
            "find_coordinator",
            lambda types: build(types.FindCoordinatorRequest, key=group_id, key_type=_GROUP_KEY),
        )
        check("find coordinator", group_id, response.error_code)
        return Address(response.host, response.port)

    def _connection(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = Connection(address, timeout_s=self._timeout_s)
            self._connections[address] = connection
        return connection


def _topic_message(code: int) -> str | None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "there is no such topic"
    return None
