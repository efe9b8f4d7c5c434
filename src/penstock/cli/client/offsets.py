"""Look-ups of offsets: a partition's first, its next, or by time."""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple

from penstock.cli.client.cluster import Client, TopicInfo
from penstock.cli.client.errors import check
from penstock.kafka.wire.schema import build

EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1


class TopicPartition(NamedTuple):
    """A partition by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partitions_of(topic: TopicInfo) -> list[TopicPartition]:
    """All partitions of a topic, in order."""
    return [TopicPartition(topic.name, row.partition) for row in topic.partitions]


def list_offsets(
    client: Client, wanted: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """An offset for each partition.

    Args:
        wanted: EARLIEST, LATEST, or a time in ms since the epoch, for the first record whose
            timestamp is not below it.
        leaders: the node that leads each partition.

    Returns:
        Offsets; -1 where no record is that young.

    Raises:
        RefusedError: a partition does not exist.
    """
    by_node: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for partition, timestamp in wanted.items():
        by_node[leaders[partition]][partition.topic].append((partition.partition, timestamp))
    found = {}
    for node_id, topics in by_node.items():
        response = client.node(node_id).request("list_offsets", partial(_request, topics))
        for topic in response.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                check("look up offset", str(partition), row.error_code)
                found[partition] = row.offset
    return found


def _request(topics: Mapping[str, list[tuple[int, int]]], types: ModuleType) -> Any:
    return build(
        types.ListOffsetsRequest,
        replica_id=_CONSUMER,
        isolation_level=0,
        topics=tuple(
            build(
                types.ListOffsetsTopic,
                name=name,
                partitions=tuple(
                    build(types.ListOffsetsPartition, partition_index=number, timestamp=timestamp)
                    for number, timestamp in rows
                ),
            )
            for name, rows in topics.items()
        ),
    )


def leaders_of(topic: TopicInfo) -> dict[TopicPartition, int]:
    """The node that leads each partition of a topic."""
    return {TopicPartition(topic.name, row.partition): row.leader for row in topic.partitions}


def bounds(client: Client, topic: TopicInfo) -> dict[TopicPartition, tuple[int, int]]:
    """(first offset, next offset) of each partition of a topic."""
    leaders = leaders_of(topic)
    first = list_offsets(client, dict.fromkeys(leaders, EARLIEST), leaders)
    following = list_offsets(client, dict.fromkeys(leaders, LATEST), leaders)
    return {partition: (first[partition], following[partition]) for partition in leaders}
