"""The commands of a share group's saves, each of bounded size. Pure."""

from collections.abc import Iterator
from typing import Final

from penstock.groups.member_saves import BYTES_AT_ONCE, ROWS_AT_ONCE, parts_of
from penstock.groups.share.durable import DurableShareGroup, encode_group
from penstock.groups.share.messages import SaveShareMembers, SaveSharePartitions
from penstock.state.commands import SaveMembers, SaveShares
from penstock.state.rows import GroupKind

SHARE_PROTOCOL_TYPE: Final = "share"


def member_commands(
    save: SaveShareMembers, *, group_id: str, shard_epoch: int
) -> Iterator[SaveMembers]:
    """Cut a save of members into commands, to be journaled one after the other."""
    counts = sorted(save.counts.items())
    for part in parts_of(save.rows.items(), save.removed):
        state = DurableShareGroup(save.target_epoch, counts, is_partial=not part.is_last)
        yield SaveMembers(
            group_id=group_id,
            generation=save.epoch,
            protocol_type=SHARE_PROTOCOL_TYPE,
            kind=GroupKind.SHARE,
            empty=save.is_empty and part.is_last,
            state=encode_group(state),
            rows=part.rows,
            removed=part.removed,
            shard_epoch=shard_epoch,
        )


def share_commands(
    save: SaveSharePartitions, *, group_id: str, shard_epoch: int
) -> Iterator[SaveShares]:
    """Cut a save of partitions into commands; each partition is right by itself."""
    for start in range(0, len(save.removed), ROWS_AT_ONCE):
        yield SaveShares(
            group_id=group_id,
            rows=[],
            removed=list(save.removed[start : start + ROWS_AT_ONCE]),
            shard_epoch=shard_epoch,
        )
    for start, end in _cuts([len(row[3]) for row in save.rows]):
        yield SaveShares(
            group_id=group_id, rows=list(save.rows[start:end]), shard_epoch=shard_epoch
        )


def _cuts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Bounds of stretches that keep to the limits."""
    start = size = 0
    for at, one in enumerate(sizes):
        if at - start == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield start, at
            start, size = at, 0
        size += one
    if start < len(sizes):
        yield start, len(sizes)
