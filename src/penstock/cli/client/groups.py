"""librdkafka lacks these requests: list groups of every protocol, leave a group while joining."""

import contextlib
from dataclasses import dataclass
from typing import Final

from penstock.cli.client.cluster import Client
from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import check
from penstock.config.addresses import Address
from penstock.kafka.wire.schema import build

_GROUP_KEY: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group's name, state and protocol."""

    group_id: str
    state: str
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
                protocol_type=row.protocol_type,
            )
            for row in response.groups
        ),
        key=lambda group: group.group_id,
    )


def leave_group(client: Client, group_id: str, member_id: str) -> None:
    """Take a member out of its group; a group without that member is not an error.

    librdkafka's own request to leave waits, on its connection, for the answer of the request to
    join, which waits for the group's other members. Raises: RetryableError, RefusedError.
    """
    found = client.connection().request(
        "find_coordinator",
        lambda types: build(types.FindCoordinatorRequest, key=group_id, key_type=_GROUP_KEY),
    )
    check("find coordinator", group_id, found.error_code)
    coordinator = Connection(Address(found.host, found.port), timeout_s=client.timeout_s)
    with contextlib.closing(coordinator):
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
