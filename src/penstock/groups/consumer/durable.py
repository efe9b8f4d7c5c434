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
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.versioned_state import VersionedState
from penstock.state import commands
from penstock.state.rows import GroupKind

STATE_VERSION: Final = 1
ROWS_AT_ONCE: Final = 500
"""Members of one command: what applies it does so in one go."""
BYTES_AT_ONCE: Final = 256 << 10
"""Bytes of members' rows of one command, but for the last row."""


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
    """Cut a save into commands of bounded size, to be journaled one after the other.

    All but the last say that further ones follow, so that a coordinator that finds only some of
    them makes the targets again. One that must be whole is one command.
    """
    rows: list[list[tuple[str, bytes]]] = [[]]
    size = 0
    for row in save.rows.items():
        is_full = len(rows[-1]) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE
        if is_full and not save.is_whole:
            rows.append([])
            size = 0
        rows[-1].append(row)
        size += len(row[1])
    removed = [
        list(save.removed[start : start + ROWS_AT_ONCE])
        for start in range(0, len(save.removed), ROWS_AT_ONCE)
    ]
    # Members that left go first: an instance id must not be two members' rows.
    parts: list[tuple[list[tuple[str, bytes]], list[str]]] = [([], some) for some in removed[:-1]]
    parts.append((rows[0], removed[-1] if removed else []))
    parts += [(some, []) for some in rows[1:]]
    counts = sorted(save.counts.items())
    found = []
    for index, (some_rows, some_removed) in enumerate(parts):
        is_last = index == len(parts) - 1
        state = DurableConsumerGroup(save.target_epoch, counts, is_partial=not is_last)
        found.append(
            commands.SaveMembers(
                group_id=group_id,
                generation=save.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                kind=GroupKind.CONSUMER,
                empty=save.is_empty and is_last,
                state=_STATE.encode(state),
                rows=some_rows,
                removed=some_removed,
                shard_epoch=shard_epoch,
            )
        )
    return found
