"""The durable state of a consumer group besides its members, and the commands of a save. Pure.

`SaveMembers.state` is a version byte, then a MessagePack array. Fields are only ever added at the
end, with a default.

| item | field |
| --- | --- |
| 0 | target epoch: the epoch that the members' targets are of |
| 1 | topics that the group's epoch knows: arrays of topic id and partition count |
| 2 | whether further commands of the same save were to follow: targets may be of two epochs |
"""

from typing import Final

from msgspec import Struct

from penstock.groups.consumer.messages import SaveMembers
from penstock.groups.member_saves import parts_of
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.versioned_state import VersionedState
from penstock.state import commands
from penstock.state.rows import GroupKind

STATE_VERSION: Final = 1


class DurableConsumerGroup(Struct, frozen=True, array_like=True):
    """See the module."""

    target_epoch: int
    counts: list[tuple[bytes, int]]
    is_partial: bool


_STATE: Final = VersionedState("group", DurableConsumerGroup, version=STATE_VERSION)


def decode_group(state: bytes, *, group_id: str) -> DurableConsumerGroup:
    """Read the state of a group.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    return _STATE.decode(state, subject=group_id)


def commands_of(
    save: SaveMembers, *, group_id: str, shard_epoch: int
) -> list[commands.SaveMembers]:
    """Cut a save into commands of bounded size, to be journaled one after the other."""
    counts = sorted(save.counts.items())
    found = []
    for part in parts_of(save.rows.items(), save.removed, is_whole=save.is_whole):
        state = DurableConsumerGroup(save.target_epoch, counts, is_partial=not part.is_last)
        found.append(
            commands.SaveMembers(
                group_id=group_id,
                generation=save.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                kind=GroupKind.CONSUMER,
                empty=save.is_empty and part.is_last,
                state=_STATE.encode(state),
                rows=part.rows,
                removed=part.removed,
                shard_epoch=shard_epoch,
            )
        )
    return found
