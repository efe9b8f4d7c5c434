"""Commands reach a cluster over one typed connection, and by librdkafka.

Questions about the cluster go over the connection, and come first, so that a wrong address is an
error at once. librdkafka does the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from penstock.cli.client.admin import Admin
from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import NO_SUCH_TOPIC, RefusedError, check
from penstock.cli.client.librdkafka import Log, settings
from penstock.cli.client.security import ClientSecurity
from penstock.cli.client.topic_partition import TopicPartition
from penstock.config.addresses import Address
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire.schema import build
from penstock.model.errors import RetryableError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic.

    `topic_id` is the topic's UUID as text, "" where the server gives none; `leaders` has each
    partition's leading node, in the order of the partitions.
    """

    name: str
    topic_id: str
    is_internal: bool
    leaders: dict[TopicPartition, int]


class Client:
    """A client of a cluster. Not for several threads.

    Args:
        bootstrap: the address of any node.
        timeout_s: the longest time that one request may take.
        security: how the client says who it is; None: the listener is one of PLAINTEXT.
    """

    def __init__(
        self, bootstrap: Address, *, timeout_s: float, security: ClientSecurity | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self.timeout_s = timeout_s
        self._connection: Connection | None = None
        self._nodes: dict[int, Address] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.close()

    def connection(self) -> Connection:
        """Return the connection to the named node, or to another node if that can't be reached.

        Raises:
            RetryableError: no node can be reached; the error is the named node's.
        """
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def connect_to(self, address: Address) -> Connection:
        """Return a connection of its own to a node. Raises: PenstockError: there is none."""
        return Connection(address, timeout_s=self.timeout_s, security=self._security)

    def nodes(self) -> dict[int, Address]:
        """Return the addresses of all nodes, by id."""
        self.metadata([])
        return dict(self._nodes)

    def look_again(self, names: Sequence[str], places: Collection[TopicPartition]) -> None:
        """Check that topics still exist, and that their leaders can be reached now.

        Args:
            places: the partitions whose leaders must be reached; none: all partitions.

        Raises:
            RetryableError: a node can't be reached.
            RefusedError: a topic no longer exists.
        """
        self.close()
        leaders = {
            leader
            for topic in self.metadata(names)
            for place, leader in topic.leaders.items()
            if not places or place in places
        }
        for address in {self._nodes[leader] for leader in leaders & self._nodes.keys()}:
            self.connect_to(address).close()

    def settings(self, log: Log) -> dict[str, object]:
        """Return the settings of a librdkafka client, without connecting."""
        return settings(self._bootstrap, self.timeout_s, log, self._security)

    @cached_property
    def admin(self) -> Admin:
        """Return librdkafka's administrative requests."""
        self.connection()  # fails at once; librdkafka would try for long to reach a missing server
        log = Log()
        return Admin(self.settings(log), self.timeout_s, log)

    def metadata(self, names: Sequence[str] | None, *, create: bool = False) -> list[TopicInfo]:
        """Look up topics by name; None: all topics.

        Args:
            create: whether the server may create topics that do not exist, if its settings do.

        Raises:
            RefusedError: a named topic does not exist or has a bad name.
        """
        response = self.connection().request(
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
        for row in response.topics:
            is_missing = row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = NO_SUCH_TOPIC if is_missing else None
            check("look up topic", row.name or "", row.error_code, message)
        return [
            TopicInfo(
                name=row.name,
                topic_id=str(getattr(row, "topic_id", None) or ""),
                is_internal=row.is_internal,
                leaders={
                    TopicPartition(row.name, part.partition_index): part.leader_id
                    for part in sorted(row.partitions, key=lambda part: part.partition_index)
                },
            )
            for row in response.topics
        ]

    def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """Look up one topic. Raises: RefusedError: the topic does not exist."""
        try:
            (topic,) = self.metadata([name], create=create)
        except RetryableError:
            # A topic that the look-up has created may have no leader in the first answer.
            (topic,) = self.metadata([name], create=create)
        except RefusedError as error:
            if not create or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            (topic,) = self.metadata([name], create=create)
        return topic

    def _connect(self) -> Connection:
        try:
            return self.connect_to(self._bootstrap)
        except RetryableError:
            for address in self._nodes.values():
                if address != self._bootstrap:
                    with contextlib.suppress(RetryableError):
                        return self.connect_to(address)
            raise
