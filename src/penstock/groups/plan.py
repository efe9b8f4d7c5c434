"""Decides which groups and offsets have expired. Pure.

The rule is Kafka's (KIP-211): an offset's time counts from when its group became empty; for a
group that never had members (a simple consumer's), from the commit; in a group of consumers that
has members, topics without a subscriber count from the commit as well, and all others stay.
An empty group that is left without offsets goes with them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.state.rows import GroupRow, OffsetRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Rows to delete of one group: the whole of it, or offsets by (topic id, partition)."""

    whole_group: bool = False
    offsets: tuple[tuple[bytes, int], ...] = ()


NOTHING = Expiry()


def expired_of(
    row: GroupRow,
    offsets: Mapping[tuple[bytes, int], OffsetRow],
    *,
    now_ms: int,
    retention_ms: int,
    is_read: Callable[[bytes], bool],
) -> Expiry:
    """Decide what has expired of a group.

    Args:
        row: the group.
        offsets: its committed offsets.
        now_ms: what ages are measured by.
        retention_ms: offsets.retention.minutes.
        is_read: of a group with members, whether a topic (by id) may be read by one of them.
    """
    simple = not row.protocol_type
    has_members = row.empty_since_ms is None and not simple
    since_ms = None if simple else row.empty_since_ms
    old = tuple(
        key
        for key, offset in offsets.items()
        if now_ms - (offset.commit_ms if since_ms is None else since_ms) >= retention_ms
        and not (has_members and is_read(key[0]))
    )
    if has_members:
        return Expiry(offsets=old) if old else NOTHING
    if len(old) == len(offsets):
        return Expiry(whole_group=True)
    return Expiry(offsets=old) if old else NOTHING


def seen_of(row: GroupRow, offsets: Mapping[tuple[bytes, int], OffsetRow]) -> tuple[int, int]:
    """Return what decides the expiry of a whole group, in the form of `DeleteGroups.seen`."""
    empty_since_ms = -1 if row.empty_since_ms is None else row.empty_since_ms
    return empty_since_ms, max((offset.commit_ms for offset in offsets.values()), default=-1)
