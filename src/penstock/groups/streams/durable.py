"""The durable state of a streams group besides its members and topology. Pure.

`SaveMembers.state` is a version byte, then a MessagePack array. Fields are only ever added at the
end, with a default.
"""

from typing import Final

from msgspec import Struct

from penstock.groups.versioned_state import VersionedState

STATE_VERSION: Final = 1


class DurableStreamsGroup(Struct, frozen=True, array_like=True):
    """See the module."""

    target_epoch: int = 1
    """The epoch that the members' targets are of."""
    is_partial: bool = False
    """Further commands of the same save were to follow: targets may be of two epochs."""
    validated_epoch: int = 0
    """The topology's epoch, if the topics that there are suit it; else -1."""
    topics_hash: bytes = b""
    """The hash of the topics that the group's epoch knows (`topics_hash`)."""
    standby_replicas: int = -1
    """The config that the group's epoch knows; -1: none yet."""


_STATE: Final = VersionedState("streams group", DurableStreamsGroup, version=STATE_VERSION)


def encode_group(group: DurableStreamsGroup) -> bytes:
    """Return the bytes to journal."""
    return _STATE.encode(group)


def decode_group(state: bytes, *, group_id: str) -> DurableStreamsGroup:
    """Invert `encode_group`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    return _STATE.decode(state, subject=group_id)
