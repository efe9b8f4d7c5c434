"""Consumer groups seen from outside: who is in them, what they committed, and changing that."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.client.assignment import decode_assignment
from penstock.cli.client.cluster import Client
from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import check
from penstock.cli.client.offsets import TopicPartition
from penstock.kafka.wire.schema import build

NO_GENERATION: Final = -1
CONSUMER_PROTOCOL: Final = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group's name, state and protocol."""

    group_id: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member and the partitions that it is assigned."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members. The state of a group that does not exist is "Dead"."""

    group_id: str
    state: str
    protocol: str
    members: tuple[GroupMember, ...]


def list_groups(client: Client) -> list[GroupListing]:
    """All groups of the node, by name."""
    response = client.any().request(
        "list_groups",
        lambda types: build(types.ListGroupsRequest, states_filter=(), types_filter=()),
    )
    check("list groups", "the server", response.error_code)
    return sorted(
        (
            GroupListing(
                group_id=row.group_id,
                state=getattr(row, "group_state", ""),
                protocol_type=row.protocol_type,
            )
            for row in response.groups
        ),
        key=lambda group: group.group_id,
    )


def describe_group(client: Client, group_id: str) -> GroupDescription:
    """One group."""
    response = client.coordinator(group_id).request(
        "describe_groups",
        lambda types: build(
            types.DescribeGroupsRequest, groups=(group_id,), include_authorized_operations=False
        ),
    )
    (group,) = response.groups
    check("describe group", group_id, group.error_code)
    return GroupDescription(
        group_id=group_id,
        state=group.group_state,
        protocol=group.protocol_data,
        members=tuple(_member(row, group.protocol_type) for row in group.members),
    )


def _member(row: Any, protocol_type: str) -> GroupMember:
    assigned = (
        decode_assignment(row.member_assignment)
        if protocol_type == CONSUMER_PROTOCOL and row.member_assignment
        else []
    )
    return GroupMember(
        member_id=row.member_id,
        instance_id=getattr(row, "group_instance_id", None) or "",
        client_id=row.client_id,
        host=row.client_host,
        partitions=tuple(assigned),
    )


def committed_offsets(
    connection: Connection, group_id: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, int]:
    """Committed offsets; partitions without one are left out.

    Args:
        connection: to the group's coordinator.
        partitions: None for all that have one.
    """
    topics = None if partitions is None else _by_topic(dict.fromkeys(partitions, 0))
    response = connection.request(
        "offset_fetch",
        lambda types: build(
            types.OffsetFetchRequest,
            group_id=group_id,
            topics=None
            if topics is None
            else tuple(
                build(
                    types.OffsetFetchRequestTopic,
                    name=name,
                    partition_indexes=tuple(number for number, _ in rows),
                )
                for name, rows in topics.items()
            ),
            require_stable=False,
        ),
    )
    check("fetch offsets of group", group_id, response.error_code)
    found = {}
    for topic in response.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            check("fetch offset", f"{partition} of group {group_id}", row.error_code)
            if row.committed_offset >= 0:
                found[partition] = row.committed_offset
    return found


def commit_offsets(
    connection: Connection,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation: int = NO_GENERATION,
    member_id: str = "",
) -> None:
    """Commit offsets, as a member or, for a group without members, from outside.

    Raises:
        RefusedError: for example UNKNOWN_MEMBER_ID where the group has members and this is none.
    """
    topics = _by_topic(offsets)
    response = connection.request(
        "offset_commit",
        lambda types: build(
            types.OffsetCommitRequest,
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=tuple(
                build(
                    types.OffsetCommitRequestTopic,
                    name=name,
                    partitions=tuple(
                        build(
                            types.OffsetCommitRequestPartition,
                            partition_index=number,
                            committed_offset=offset,
                            committed_metadata="",
                        )
                        for number, offset in rows
                    ),
                )
                for name, rows in topics.items()
            ),
        ),
    )
    for topic in response.topics:
        for row in topic.partitions:
            subject = f"{topic.name}-{row.partition_index} of group {group_id}"
            check("commit offset", subject, row.error_code)


def delete_group(client: Client, group_id: str) -> None:
    """Delete a group without members, with its offsets. Raises: RefusedError."""
    response = client.coordinator(group_id).request(
        "delete_groups", lambda types: build(types.DeleteGroupsRequest, groups_names=(group_id,))
    )
    (result,) = response.results
    check("delete group", group_id, result.error_code)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, list[tuple[int, int]]]:
    topics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition, offset in offsets.items():
        topics[partition.topic].append((partition.partition, offset))
    return topics
