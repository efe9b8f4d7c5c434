"""librdkafka lacks these requests: list and describe groups of every type, leave one that joins."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.client.admin import GroupDescription, GroupMember
from penstock.cli.client.cluster import Client
from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import check
from penstock.cli.client.topic_partition import TopicPartition
from penstock.config.addresses import Address
from penstock.kafka.errors import ErrorCode
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire.schema import build
from penstock.model.errors import InvalidRequestError

_GROUP_KEY: Final = 0
CLASSIC: Final = "classic"
_DESCRIBED_BY: Final[Mapping[str, str]] = {
    "consumer": "consumer_group_describe",
    "share": "share_group_describe",
    "streams": "streams_group_describe",
}
"""The APIs that describe groups whose coordinator assigns, by the groups' type."""
_OF_ANOTHER_TYPE: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group's name, state, type and protocol. `type`: as Kafka names it; a server that does not
    say has classic groups alone."""

    group_id: str
    state: str
    type: str
    protocol_type: str


def list_groups(client: Client) -> list[GroupListing]:
    """List all groups of the node, by name."""
    response = client.connection().request(
        "list_groups",
        lambda types: build(types.ListGroupsRequest, states_filter=(), types_filter=()),
    )
    check("list groups", "the server", response.error_code)
    return sorted(
        (
            GroupListing(
                group_id=row.group_id,
                state=getattr(row, "group_state", ""),
                type=getattr(row, "group_type", "").lower() or CLASSIC,
                protocol_type=row.protocol_type,
            )
            for row in response.groups
        ),
        key=lambda group: group.group_id,
    )


def describe_group(client: Client, group_id: str) -> GroupDescription:
    """Describe a group of any type. Raises: RetryableError, RefusedError."""
    for kind, api in _DESCRIBED_BY.items():
        found = _described(client, kind, api, group_id)
        if found is not None:
            return found
    return client.admin.describe_group(group_id)


def _described(client: Client, kind: str, api: str, group_id: str) -> GroupDescription | None:
    """Describe a group that coordinators assign; None: it is of another type, or missing."""
    try:
        client.connection().version(api)
    except InvalidRequestError:
        return None
    name = BY_MODULE[api].name
    with _coordinator(client, group_id) as connection:
        response = connection.request(
            api,
            lambda types: build(
                getattr(types, f"{name}Request"),
                group_ids=(group_id,),
                include_authorized_operations=False,
            ),
        )
    (found,) = response.groups
    if found.error_code in _OF_ANOTHER_TYPE:
        return None
    check("describe group", group_id, found.error_code)
    return GroupDescription(
        group_id=group_id,
        type=kind,
        state=found.group_state,
        protocol=getattr(found, "assignor_name", ""),
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=getattr(member, "instance_id", None) or "",
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                partitions=tuple(_assigned(found, member)),
            )
            for member in found.members
        ),
    )


def _assigned(group: Any, member: Any) -> Iterator[TopicPartition]:
    """Iterate over what a member reads: for a streams group's, that of its active tasks."""
    if (topics := getattr(member.assignment, "topic_partitions", None)) is not None:
        for topic in topics:
            for number in topic.partitions:
                yield TopicPartition(topic.topic_name, number)
        return
    inputs = {
        one.subtopology_id: [
            *one.source_topics,
            *(topic.name for topic in one.repartition_source_topics),
        ]
        for one in group.topology.subtopologies
    }
    for tasks in member.assignment.active_tasks:
        for name in inputs.get(tasks.subtopology_id, ()):
            for number in tasks.partitions:
                yield TopicPartition(name, number)


@contextlib.contextmanager
def _coordinator(client: Client, group_id: str) -> Iterator[Connection]:
    found = client.connection().request(
        "find_coordinator",
        lambda types: build(types.FindCoordinatorRequest, key=group_id, key_type=_GROUP_KEY),
    )
    check("find coordinator", group_id, found.error_code)
    coordinator = client.connect_to(Address(found.host, found.port))
    with contextlib.closing(coordinator):
        yield coordinator


def leave_group(client: Client, group_id: str, member_id: str) -> None:
    """Take a member out of its group; a group without that member is not an error.

    librdkafka's own request to leave waits, on its connection, for the answer of the request to
    join, which waits for the group's other members. Raises: RetryableError, RefusedError.
    """
    with _coordinator(client, group_id) as coordinator:
        coordinator.request(
            "leave_group",
            lambda types: build(
                types.LeaveGroupRequest,
                group_id=group_id,
                members=(
                    build(
                        types.MemberIdentity,
                        member_id=member_id,
                        group_instance_id=None,
                        reason="the command ends",
                    ),
                ),
            ),
        )
