"""Applying commands about transactions: docs/transactions.md has the states and every refusal.

An end is one entry: markers in all partitions, the groups' offsets, and the new epoch. What ends
a transaction here is `settle`.
"""

from dataclasses import replace
from typing import Final

import msgspec

from penstock.model.broker_configs import PARTITIONS_MAX, PARTITIONS_MAX_CONFIG
from penstock.model.ids import PartitionKey
from penstock.records.markers import MARKER_BYTES
from penstock.records.sums import batch_sum
from penstock.state.answers import (
    AnyAnswer,
    Done,
    OffsetsCommitted,
    Refusal,
    Refused,
    TransactionsAborted,
    TransactionSettled,
)
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.groups import offset_code
from penstock.state.apply.shards import refuse_shard
from penstock.state.changes import HeadMoved, MarkersWritten, OffsetsSettled, OpenMoved
from penstock.state.commands import EPOCH_MAX
from penstock.state.meta import CLUSTER_CONFIGS
from penstock.state.numbers import INT32_MAX, is_number
from penstock.state.tables import Tables
from penstock.state.transaction_commands import (
    ITEMS_MAX,
    AbortTransactions,
    AddToTransaction,
    CommitToTransaction,
    EndTransaction,
    ExpireTransactions,
    InitTransaction,
)
from penstock.state.transactions import (
    EPOCH_EXHAUSTED,
    NO_OPEN,
    YOUNGER,
    Marker,
    Transaction,
    TransactionState,
)

ENDED_PER_COMMAND: Final = PARTITIONS_MAX
ID_CHARACTERS_MAX: Final = 32_767
_NONE: Final = -1
_COMPLETE: Final = (TransactionState.COMMITTED, TransactionState.ABORTED)


def init_transaction(context: ApplyContext, command: InitTransaction) -> AnyAnswer:
    """Give a producer its id and epoch, and fence the one before."""
    length = len(command.transactional_id)
    if not 0 < length <= ID_CHARACTERS_MAX or not is_number(command.timeout_ms, 1, INT32_MAX):
        return Refused(
            Refusal.MALFORMED, f"an id of {length} characters, a time-out of {command.timeout_ms}"
        )
    tables = context.tables
    row = tables.transactions.of_id(command.transactional_id)
    if row is None:
        # Also for a producer that names an id and epoch: its row has expired, as in Kafka.
        row = Transaction(
            producer_id=tables.take_producer_ids(1),
            transactional_id=command.transactional_id,
            epoch=0,
            last_epoch=_NONE,
            last_producer_id=_NONE,
            state=TransactionState.EMPTY,
            timeout_ms=command.timeout_ms,
            since=context.position,
            changed_ms=context.time_ms,
            added=0,
            offsets=0,
        )
        tables.transactions.save(row)
        return _settled(row)
    expected = None if command.producer_id == _NONE else (command.producer_id, command.epoch)
    if expected is not None and expected != (row.producer_id, row.epoch):
        if _is_init_again(row, *expected):
            return _settled(row)
        return _fenced(row, command.epoch)
    if row.state is TransactionState.ONGOING:
        row = settle(context, row, commits=False, marker_epoch=_epoch_above(row))
    row = _with_next_epoch(tables, row, last_epoch=_NONE if expected is None else row.epoch)
    row = replace(
        row,
        state=TransactionState.EMPTY,
        timeout_ms=command.timeout_ms,
        since=context.position,
        changed_ms=context.time_ms,
    )
    tables.transactions.save(row)
    return _settled(row)


def add_to_transaction(context: ApplyContext, command: AddToTransaction) -> AnyAnswer:
    """Partitions and groups, all of them or none."""
    tables = context.tables
    row = tables.transactions.of_id(command.transactional_id)
    if row is None:
        return _mismatch(command)
    refusal = _refuse(row, command)
    if refusal is not None:
        return refusal
    named = dict.fromkeys(command.partitions)
    refusal = _refuse_more(tables, max(len(named), len(command.groups)), "partitions or groups")
    if refusal is not None:
        return refusal
    known = tables.transactions.partitions(row.producer_id)
    missing = [key for key in named if key not in known]
    unread = [key for key in named if key not in tables.partitions and is_number(key)]
    tables.load_partitions(unread)
    for key in named:
        if key not in tables.partitions:
            return Refused(Refusal.UNKNOWN_PARTITION, f"there is no partition of key {key}")
    groups = tables.transactions.groups_missing(row.producer_id, command.groups)
    refusal = _refuse_more(tables, row.added + len(missing) + len(groups), "partitions and groups")
    if refusal is not None:
        return refusal
    return _settled(_add(context, row, missing, groups))


def commit_to_transaction(context: ApplyContext, command: CommitToTransaction) -> AnyAnswer:
    """Offsets of partitions that exist, which the group gets when the transaction is committed."""
    refusal = refuse_shard(context, (command.group_id,), command.shard_epoch)
    if refusal is not None:
        return refusal
    tables = context.tables
    row = tables.transactions.of_id(command.transactional_id)
    if row is None:
        return _mismatch(command)
    groups = tables.transactions.groups_missing(row.producer_id, (command.group_id,))
    is_added = row.state is TransactionState.ONGOING and not groups
    # Of one connection that is older offsets are taken, where its group was added by a younger one.
    refusal = _refuse(row, command, spares_late=is_added and command.connection > 0)
    if refusal is not None:
        return refusal
    if not command.adds_group:
        if not is_added:
            return Refused(
                Refusal.INVALID_TRANSACTION_STATE,
                f"group {command.group_id} is not in an ongoing transaction"
                f" of {command.transactional_id}",
            )
        refusal = _refuse_connection(tables, row, command)
        if refusal is not None:
            return refusal
    refusal = _refuse_more(tables, len(command.offsets), "offsets")
    if refusal is not None:
        return refusal
    codes = [offset_code(tables, write) for write in command.offsets]
    stored = [write for write, code in zip(command.offsets, codes, strict=True) if not code]
    new = tables.transactions.new_offset_count(row.producer_id, command.group_id, stored)
    refusal = _refuse_more(tables, row.added + len(groups), "partitions and groups")
    refusal = refusal or _refuse_more(tables, row.offsets + new, "offsets")
    if refusal is not None:
        return refusal
    row = _add(context, row, [], groups)
    if not command.adds_group:
        came_by = command.connection if _is_late(row, command) else YOUNGER
        tables.transactions.set_group_connection(row.producer_id, command.group_id, came_by)
    tables.transactions.add_offsets(row.producer_id, command.group_id, stored, context.time_ms)
    if new:
        tables.transactions.save(replace(row, offsets=row.offsets + new))
    if stored and not tables.group_exists(command.group_id):
        # As a simple consumer's commit makes it. It doesn't expire while an offset is pending.
        tables.save_group(command.group_id, 0, "", context.time_ms, b"")
    return OffsetsCommitted(codes)


def end_transaction(context: ApplyContext, command: EndTransaction) -> AnyAnswer:
    """Commit or abort, or answer again what was answered."""
    row = context.tables.transactions.of_id(command.transactional_id)
    if row is None:
        return _mismatch(command)
    wanted = TransactionState.COMMITTED if command.commits else TransactionState.ABORTED
    if command.bumps and _is_end_again(row, command):
        return _settled(row) if row.state is wanted else _not_ongoing(row)
    refusal = _refuse(row, command)
    if refusal is not None:
        return refusal
    if row.state is TransactionState.ONGOING:
        pass
    elif not command.bumps:
        return _settled(row) if row.state is wanted else _not_ongoing(row)
    elif command.commits:
        return _not_ongoing(row)
    marker_epoch = _epoch_above(row) if command.bumps else row.epoch
    row = settle(context, row, commits=command.commits, marker_epoch=marker_epoch)
    if command.bumps:
        row = _with_next_epoch(context.tables, row, last_epoch=row.epoch)
        context.tables.transactions.save(row)
    return _settled(row)


def abort_transactions(context: ApplyContext, command: AbortTransactions) -> AnyAnswer:
    """Abort those that are as they were seen, until enough has been ended in one entry."""
    refusal = _refuse_items(len(command.items))
    if refusal is not None:
        return refusal
    transactions = context.tables.transactions
    looked_at = aborted = ended = 0
    for transactional_id, producer_id, epoch, since in command.items:
        row = transactions.of_id(transactional_id)
        looked_at += 1
        if (
            row is None
            or row.state is not TransactionState.ONGOING
            or (row.producer_id, row.epoch, row.since) != (producer_id, epoch, since)
            or (command.timed_out and row.changed_ms + row.timeout_ms > context.time_ms)
        ):
            continue
        if aborted and ended + row.added + row.offsets > ENDED_PER_COMMAND:
            looked_at -= 1
            break
        ended += row.added + row.offsets
        aborted += 1
        abort(context, row)
    return TransactionsAborted(looked_at, aborted)


def abort(context: ApplyContext, row: Transaction) -> None:
    """Abort an open transaction, and fence its producer."""
    row = settle(context, row, commits=False, marker_epoch=_epoch_above(row))
    if row.epoch < EPOCH_MAX:
        # Not by `_with_next_epoch`: no producer sees this epoch, which may be the last one.
        row = replace(row, epoch=row.epoch + 1, last_epoch=_NONE, last_producer_id=_NONE)
    else:
        row = _with_next_epoch(context.tables, row, last_epoch=_NONE)
    context.tables.transactions.save(row)


def expire_transactions(context: ApplyContext, command: ExpireTransactions) -> AnyAnswer:
    """Forget those that haven't changed since they were seen."""
    refusal = _refuse_items(len(command.items))
    if refusal is not None:
        return refusal
    transactions = context.tables.transactions
    for transactional_id, producer_id, epoch, changed_ms in command.items:
        row = transactions.of_id(transactional_id)
        if (
            row is not None
            and row.state is not TransactionState.ONGOING
            and (row.producer_id, row.epoch, row.changed_ms) == (producer_id, epoch, changed_ms)
        ):
            transactions.remove(row)
    return Done()


def settle(
    context: ApplyContext, row: Transaction, *, commits: bool, marker_epoch: int
) -> Transaction:
    """End a transaction in its partitions and groups; its row as it is now, which is saved."""
    _write_markers(context, row, Marker(row.producer_id, marker_epoch, commits, context.time_ms))
    tables = context.tables
    if commits and row.offsets:
        tables.flush_offsets()
        groups = tables.transactions.pending_groups(row.producer_id)
        tables.transactions.settle_offsets(row.producer_id)
        context.changes.append(OffsetsSettled(groups=groups))
    tables.transactions.clear(row)
    ended = replace(
        row,
        state=TransactionState.COMMITTED if commits else TransactionState.ABORTED,
        since=context.position,
        changed_ms=context.time_ms,
        added=0,
        offsets=0,
    )
    tables.transactions.save(ended)
    return ended


def _write_markers(context: ApplyContext, row: Transaction, marker: Marker) -> None:
    tables = context.tables
    written = tables.transactions.written(row.producer_id)
    known = tables.partitions
    tables.load_partitions([found[0] for found in written if found[0] not in known])
    generation, crc, time_ms = marker.generation, marker.crc, marker.time_ms
    changes = context.changes
    aborted: list[tuple[int, int, int, int, int]] = []
    places: list[tuple[PartitionKey, int]] = []
    for key, first_offset, other_first in written:
        partition = known.get(key)
        if partition is None:
            continue  # its topic was deleted
        offset = partition.next_offset
        partition.next_offset = offset + 1
        partition.bytes_live += MARKER_BYTES
        tables.dirty_partitions.add(key)
        # The partition's seed has the leader epoch in it.
        number = batch_sum(partition.seed, offset, 0, crc, MARKER_BYTES)
        tables.new_wal_runs.append(
            [
                key,
                offset,
                offset + 1,
                generation,
                row.producer_id,
                MARKER_BYTES,
                time_ms,
                1,
                number,
            ]
        )
        if not marker.commits:
            last_stable = offset + 1 if other_first is None else other_first
            aborted.append((key, offset, row.producer_id, first_offset, last_stable))
        named = PartitionKey(key)
        places.append((named, offset))
        changes.append(HeadMoved(named, partition.log_start, offset + 1))
        first_open = NO_OPEN if other_first is None else other_first
        changes.append(OpenMoved(named, first_open, -1 if marker.commits else offset))
    if aborted:
        tables.transactions.add_aborted(aborted)
    tables.end_in_partitions(
        [key for key, _ in places],
        row.producer_id,
        epoch=marker.producer_epoch,
        time_ms=time_ms,
    )
    if places:
        changes.append(
            MarkersWritten(
                producer_id=row.producer_id,
                producer_epoch=marker.producer_epoch,
                commits=marker.commits,
                time_ms=time_ms,
                places=places,
            )
        )


def admit_batch(
    context: ApplyContext, row: Transaction | None, key: int, *, epoch: int, adds_itself: bool
) -> Refusal | None:
    """Say why a transactional batch can't be stored in a partition; None: it can."""
    if row is None:
        return Refusal.PRODUCER_ID_MISMATCH
    if row.epoch != epoch:
        return Refusal.FENCED_PRODUCER
    tables = context.tables
    ongoing = row.state is TransactionState.ONGOING
    if ongoing and key in tables.transactions.partitions(row.producer_id):
        return None
    if not adds_itself:
        return Refusal.INVALID_TRANSACTION_STATE
    too_large = _refuse_more(tables, row.added + 1, "partitions and groups")
    return None if too_large is None else too_large.reason


def open_partition(context: ApplyContext, row: Transaction, key: int, offset: int) -> None:
    """Note a transaction's batch that is stored at an offset of a partition."""
    transactions = context.tables.transactions
    known = transactions.partitions(row.producer_id)
    if known.get(key, NO_OPEN) != NO_OPEN:
        return
    if key in known:
        transactions.set_first_offsets(row.producer_id, (key,), offset)
    else:
        _add(context, row, [key], [], first_offset=offset)
    context.changes.append(OpenMoved(PartitionKey(key), transactions.first_open(key)))


def _add(
    context: ApplyContext,
    row: Transaction,
    partitions: list[int],
    groups: list[str],
    *,
    first_offset: int = NO_OPEN,
) -> Transaction:
    """Begin a transaction where none is ongoing, and add what isn't in it."""
    transactions = context.tables.transactions
    begins = row.state is not TransactionState.ONGOING
    if not begins and not partitions and not groups:
        return row
    transactions.set_first_offsets(row.producer_id, partitions, first_offset)
    transactions.add_groups(row.producer_id, groups)
    row = replace(row, added=row.added + len(partitions) + len(groups))
    if begins:
        row = replace(
            row,
            state=TransactionState.ONGOING,
            since=context.position,
            changed_ms=context.time_ms,
        )
    transactions.save(row)
    return row


def _refuse(
    row: Transaction,
    command: AddToTransaction | CommitToTransaction | EndTransaction,
    *,
    spares_late: bool = False,
) -> Refused | None:
    """Refuse what is another producer's, a fenced one's, or late."""
    if row.producer_id != command.producer_id:
        return _mismatch(command)
    if row.epoch != command.epoch:
        return _fenced(row, command.epoch)
    if _is_late(row, command) and not spares_late:
        return _late(row, command.seen_position)
    return None


def _is_late(
    row: Transaction, command: AddToTransaction | CommitToTransaction | EndTransaction
) -> bool:
    """Whether a command came by a connection that may be older than the transaction."""
    # Of an epoch without a transaction so far there is nothing that could be late.
    return 0 <= command.seen_position < row.since and row.state is not TransactionState.EMPTY


def _late(row: Transaction, seen_position: int) -> Refused:
    return Refused(
        Refusal.STALE_CONNECTION,
        f"the connection has seen position {seen_position}, the transaction of"
        f" {row.transactional_id} changed at {row.since}",
    )


def _refuse_connection(
    tables: Tables, row: Transaction, command: CommitToTransaction
) -> Refused | None:
    """Take a group's offsets by one connection that is older than the transaction, or by younger
    ones. A producer waits for the answer to its offsets before it ends the transaction: so if any
    of both are late ones, either they are refused here or its own are."""
    if not is_number(command.connection):
        return Refused(Refusal.MALFORMED, f"a connection of number {command.connection}")
    before = tables.transactions.group_connection(row.producer_id, command.group_id)
    if before in (0, command.connection):
        return None
    if _is_late(row, command):
        return _late(row, command.seen_position)
    if before == YOUNGER:
        return None
    return Refused(
        Refusal.OTHER_CONNECTION,
        f"offsets of group {command.group_id} in the transaction of {row.transactional_id} came by "
        "another connection, which is older than the transaction",
    )


def _is_init_again(row: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether an InitTransaction is sent again whose answer was this row's id and epoch."""
    if epoch == _NONE or epoch != row.last_epoch or row.state is TransactionState.ONGOING:
        return False
    if row.epoch == 0:
        return producer_id == row.last_producer_id
    return producer_id == row.producer_id


def _is_end_again(row: Transaction, command: EndTransaction) -> bool:
    """Whether an end of protocol V2 is sent again whose answer was this row's id and epoch."""
    return row.state in _COMPLETE and _is_init_again(row, command.producer_id, command.epoch)


def _with_next_epoch(tables: Tables, row: Transaction, *, last_epoch: int) -> Transaction:
    """The next epoch, or a new producer id where the epochs are used up; its row isn't saved."""
    if row.epoch < EPOCH_EXHAUSTED:
        return replace(row, epoch=row.epoch + 1, last_epoch=last_epoch, last_producer_id=_NONE)
    tables.transactions.remove(row)
    return replace(
        row,
        producer_id=tables.take_producer_ids(1),
        epoch=0,
        last_epoch=last_epoch,
        last_producer_id=row.producer_id,
    )


def _epoch_above(row: Transaction) -> int:
    """The epoch of markers that fence the transaction's own."""
    return min(row.epoch + 1, EPOCH_MAX)


def _partitions_max(tables: Tables) -> int:
    configs = msgspec.json.decode(tables.meta_text(CLUSTER_CONFIGS) or "{}", type=dict[str, str])
    text = configs.get(PARTITIONS_MAX_CONFIG, "")
    # No more than ten digits are a number here: apply must not raise.
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return PARTITIONS_MAX
    return max(1, min(int(text), PARTITIONS_MAX))


def _refuse_more(tables: Tables, count: int, what: str) -> Refused | None:
    if count <= 1:
        return None  # whatever the bound is, without reading it: most have one partition
    most = _partitions_max(tables)
    if count <= most:
        return None
    return Refused(
        Refusal.TRANSACTION_TOO_LARGE,
        f"the transaction would have {count} {what}, {PARTITIONS_MAX_CONFIG} is {most}",
    )


def _refuse_items(count: int) -> Refused | None:
    if count <= ITEMS_MAX:
        return None
    return Refused(Refusal.MALFORMED, f"{count} transactions are named, {ITEMS_MAX} may be")


def _settled(row: Transaction) -> TransactionSettled:
    return TransactionSettled(row.producer_id, row.epoch, row.since)


def _mismatch(command: AddToTransaction | CommitToTransaction | EndTransaction) -> Refused:
    return Refused(
        Refusal.PRODUCER_ID_MISMATCH,
        f"transactional id {command.transactional_id} has no producer id {command.producer_id}",
    )


def _fenced(row: Transaction, epoch: int) -> Refused:
    return Refused(
        Refusal.FENCED_PRODUCER,
        f"epoch {epoch} of {row.transactional_id}, the producer's is {row.epoch}",
    )


def _not_ongoing(row: Transaction) -> Refused:
    return Refused(
        Refusal.INVALID_TRANSACTION_STATE,
        f"the transaction of {row.transactional_id} is {row.state.name.lower()}",
    )
