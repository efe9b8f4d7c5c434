"""The durable state of a group: the bytes in `SaveGroup.state`. Pure.

A version byte, then a MessagePack array. Fields are only ever added at the end, with a default.

| item | field |
| --- | --- |
| 0 | protocol name, empty when there are no members |
| 1 | the leader's member id |
| 2 | members: arrays of member id, instance id or nil, client id, client host, session timeout in
ms, rebalance timeout in ms, protocols (pairs of name and metadata), assignment |
| 3 | whether the members are to join again: the group was one of KIP-848, and its last member of
that protocol has left |

The command has generation and protocol type as fields as well, for those who read rows only.
"""

from typing import Final

from msgspec import Struct

from penstock.groups.versioned_state import VersionedState

STATE_VERSION: Final = 1


class DurableMember(Struct, frozen=True, array_like=True):
    """A member of a journaled generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes


class DurableGroup(Struct, frozen=True, array_like=True):
    """A journaled generation."""

    protocol_name: str
    leader: str
    members: list[DurableMember]
    rebalances: bool = False


_STATE: Final = VersionedState("group", DurableGroup, version=STATE_VERSION)


def encode_state(group: DurableGroup) -> bytes:
    """The bytes to journal."""
    return _STATE.encode(group)


def decode_state(state: bytes, *, group_id: str) -> DurableGroup:
    """The inverse of `encode_state`; no bytes are a group that only ever had offsets.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    return _STATE.decode(state, subject=group_id) if state else DurableGroup("", "", [])
