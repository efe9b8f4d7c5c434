"""Applying commands about consumer groups. Their state is opaque here, their offsets are not."""

from typing import Final

from penstock.state.answers import AnyAnswer, Done, OffsetsCommitted, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.shards import refuse_shard
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    MEMBERS_MAX,
    SHARES_MAX,
    CommitOffsets,
    DeleteGroups,
    DeleteOffsets,
    SaveGroup,
    SaveMembers,
    SaveShares,
)
from penstock.state.rows import GroupKind
from penstock.state.schema import INTEGRITY_LEVEL
from penstock.state.tables import Tables

# An offset that an open transaction is about to replace doesn't expire, as in Kafka.
_NOT_PENDING: Final = (
    "AND NOT EXISTS (SELECT 1 FROM pending_offsets AS pending"
    " WHERE pending.group_id = group_offsets.group_id"
    " AND pending.topic_id = group_offsets.topic_id"
    " AND pending.partition = group_offsets.partition)"
)


def save_group(context: ApplyContext, command: SaveGroup) -> AnyAnswer:
    """Replace a group's durable state."""
    refusal = refuse_shard(context, (command.group_id,), command.shard_epoch)
    if refusal is not None:
        return refusal
    _save(context, command, GroupKind.CLASSIC)
    return Done()


def save_members(context: ApplyContext, command: SaveMembers) -> AnyAnswer:
    """Replace a group's durable state and those of its members that changed."""
    refusal = refuse_shard(context, (command.group_id,), command.shard_epoch)
    if refusal is not None:
        return refusal
    changed = len(command.rows) + len(command.removed)
    if changed > MEMBERS_MAX:
        return Refused(Refusal.MALFORMED, f"{changed} members change, {MEMBERS_MAX} may")
    _save(context, command, command.kind)
    context.tables.save_members(command.group_id, command.rows, command.removed)
    return Done()


def save_shares(context: ApplyContext, command: SaveShares) -> AnyAnswer:
    """Replace the states of some of a group's share partitions."""
    refusal = refuse_shard(context, (command.group_id,), command.shard_epoch)
    if refusal is not None:
        return refusal
    tables = context.tables
    changed = len(command.rows) + len(command.removed)
    if changed > SHARES_MAX:
        return Refused(Refusal.MALFORMED, f"{changed} share partitions change, {SHARES_MAX} may")
    if not tables.group_exists(command.group_id):
        return Refused(Refusal.UNKNOWN_GROUP, f"group {command.group_id}")
    rows = [row for row in command.rows if _is_there(tables, row[0], row[1])]
    tables.save_shares(command.group_id, rows, command.removed)
    return Done()


def _is_there(tables: Tables, topic_id: bytes, partition: int) -> bool:
    topic = tables.topics_by_id.get(topic_id)
    return topic is not None and 0 <= partition < topic.partitions


def _save(context: ApplyContext, command: SaveGroup | SaveMembers, kind: int) -> None:
    tables = context.tables
    empty_since_ms = None
    if command.empty:
        # Saved again while empty, it has been empty since the first time.
        known_ms = tables.empty_since_ms(command.group_id)
        empty_since_ms = context.time_ms if known_ms is None else known_ms
    tables.save_group(
        command.group_id,
        command.generation,
        command.protocol_type,
        empty_since_ms,
        command.state,
        kind,
    )


def delete_groups(context: ApplyContext, command: DeleteGroups) -> AnyAnswer:
    """Groups and their offsets, also those that are pending. With `seen`, for expiry: a group that
    an open transaction has offsets of stays."""
    refusal = refuse_shard(context, command.group_ids, command.shard_epoch)
    if refusal is not None:
        return refusal
    tables = context.tables
    transactions = tables.transactions
    if command.seen and tables.meta_int("feature_level") >= INTEGRITY_LEVEL:
        # One that was joined or committed to since it was looked at is not what had expired.
        for group_id, seen in zip(command.group_ids, command.seen, strict=False):
            if tables.group_times(group_id) == tuple(seen) and not transactions.has_pending(
                group_id
            ):
                tables.remove_group(group_id)
        return Done()
    for group_id in command.group_ids:
        tables.remove_group(group_id)
        transactions.drop_pending(group_id)
    return Done()


def commit_offsets(context: ApplyContext, command: CommitOffsets) -> AnyAnswer:
    """Offsets of partitions that exist; the group comes into being with its first one."""
    refusal = refuse_shard(context, (command.group_id,), command.shard_epoch)
    if refusal is not None:
        return refusal
    tables = context.tables
    codes = [offset_code(tables, write) for write in command.offsets]
    for write, code in zip(command.offsets, codes, strict=True):
        if not code:
            tables.set_offset(
                (command.group_id, write.topic_id, write.partition),
                write.offset,
                write.leader_epoch,
                write.metadata,
                context.time_ms,
            )
    if 0 in codes and not tables.group_exists(command.group_id):
        # A simple consumer's: no members, no protocol.
        tables.save_group(command.group_id, 0, "", context.time_ms, b"")
    return OffsetsCommitted(codes)


def offset_code(tables: Tables, write: OffsetWrite) -> int:
    """Say why an offset can't be stored, as a Refusal; 0: its partition exists."""
    topic = tables.topics_by_id.get(write.topic_id)
    if topic is None:
        return Refusal.UNKNOWN_TOPIC
    return 0 if 0 <= write.partition < topic.partitions else Refusal.UNKNOWN_PARTITION


def delete_offsets(context: ApplyContext, command: DeleteOffsets) -> AnyAnswer:
    """Some offsets of a group, also those that are pending. With `seen_ms`, for expiry: an offset
    stays that an open transaction is about to replace."""
    refusal = refuse_shard(context, (command.group_id,), command.shard_epoch)
    if refusal is not None:
        return refusal
    tables = context.tables
    tables.flush_offsets()
    delete = "DELETE FROM group_offsets WHERE group_id = ? AND topic_id = ? AND partition = ?"
    if command.seen_ms and tables.meta_int("feature_level") >= INTEGRITY_LEVEL:
        tables.executemany(
            f"{delete} AND commit_ms = ? {_NOT_PENDING}",
            (
                (command.group_id, *item, seen_ms)
                for item, seen_ms in zip(command.items, command.seen_ms, strict=False)
            ),
        )
        return Done()
    tables.executemany(delete, ((command.group_id, *item) for item in command.items))
    tables.transactions.drop_pending(command.group_id, command.items)
    return Done()
