"""Applying commands about records and producers: where offsets come from."""

from collections.abc import Iterable, Iterator, Sequence

from penstock.model.ids import PartitionKey
from penstock.records.sums import (
    CRC_BYTES,
    MULTIPLIER,
    SUM_MASK,
    SUM_SHIFT,
    unpack_crcs,
)
from penstock.state.answers import (
    AnyAnswer,
    BatchStatus,
    Done,
    ProducerIds,
    Refusal,
    Refused,
    RunsCommitted,
)
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.transactions import admit_batch, open_partition
from penstock.state.apply.wals import refuse_wal
from penstock.state.changes import HeadMoved
from penstock.state.commands import (
    ADDS_ITSELF,
    BATCH_FIELDS,
    EPOCH_MAX,
    AllocateProducerIds,
    CommitRuns,
    ExpireProducers,
    RunCommit,
)
from penstock.state.meta import LAST_WAL_GENERATION
from penstock.state.numbers import INT64_MAX
from penstock.state.pipeline_commands import WriteRun
from penstock.state.rows import GENERATION_MASK
from penstock.state.schema import CLUSTER_LEVEL, INTEGRITY_LEVEL, TRANSACTIONS_LEVEL
from penstock.state.sequences import ProducerState, judge
from penstock.state.tables import RunValues

_STORED = int(BatchStatus.STORED)
_REFUSED = int(BatchStatus.REFUSED)
_UNKNOWN_PARTITION = int(Refusal.UNKNOWN_PARTITION)

# Positions in a run's row, as `wal_runs` and `object_runs` have them.
_END, _POSITION, _LENGTH, _NEWEST, _BATCHES, _SUM = 2, 4, 5, 6, 7, 8


def allocate_producer_ids(context: ApplyContext, command: AllocateProducerIds) -> AnyAnswer:
    """A block of ids that were never given out."""
    count = max(0, command.count)
    return ProducerIds(context.tables.take_producer_ids(count), count)


def expire_producers(context: ApplyContext, command: ExpireProducers) -> AnyAnswer:
    """Forget those that have not written since they were seen."""
    items = command.items
    context.tables.expire_producers(list(zip(items[0::3], items[1::3], items[2::3], strict=True)))
    return Done()


def commit_runs(context: ApplyContext, command: CommitRuns) -> AnyAnswer:
    """Give offsets batch by batch; join what is stored and adjacent into one row."""
    tables = context.tables
    place = command.wal
    rows = tables.new_wal_runs
    if command.object_key:
        refusal = refuse_object(context, command.object_key)
        if refusal is not None:
            return refusal
        if command.raw and tables.meta_int("feature_level") < CLUSTER_LEVEL:
            return Refused(Refusal.LEVEL_NOT_ON, "raw objects are of the cluster's feature level")
        place = tables.add_object(command.object_key, command.object_bytes, raw=command.raw)
        rows = tables.new_object_runs
    elif place > GENERATION_MASK:
        refusal = refuse_wal(context, place)
        if refusal is not None:
            return refusal
    elif place > tables.meta_int(LAST_WAL_GENERATION):
        tables.set_meta(LAST_WAL_GENERATION, place)
    row_count_before = len(rows)
    touched: dict[int, None] = {}
    answers = place_batches(context, command.runs, place, rows, touched)
    if command.object_key:
        tables.add_live_runs(place, len(rows) - row_count_before)
    announce_heads(context, touched)
    return RunsCommitted(answers)


def place_batches(
    context: ApplyContext,
    runs: Sequence[RunCommit] | Sequence[WriteRun],
    place: int,
    rows: list[RunValues],
    touched: dict[int, None],
) -> list[list[int]]:
    """Judge batches, give those that are stored offsets, and append their runs' rows to `rows`.

    The hot path of apply: one turn of the inner loop per batch, of the outer one per run.

    Args:
        place: object id, or place in a WAL, that the runs lie in.
        touched: gets the keys of the partitions that have new records.

    Returns:
        `RunsCommitted.runs`.
    """
    tables = context.tables
    time_ms = context.time_ms
    known = tables.partitions
    unread = {run.partition_key: None for run in runs if run.partition_key not in known}
    if len(unread) > 1:
        tables.load_partitions(list(unread))
    answers: list[list[int]] = []
    row: RunValues | None = None
    row_key = row_end = -1
    level = tables.meta_int("feature_level")
    knows_sums = level >= INTEGRITY_LEVEL
    epoch_max = EPOCH_MAX if level >= TRANSACTIONS_LEVEL else INT64_MAX
    from_bytes = int.from_bytes
    for run in runs:
        key = run.partition_key
        batches = run.batches
        partition = known.get(key) or tables.partition(key)
        answer: list[int] = []
        answers.append(answer)
        if partition is None:
            answer += (_REFUSED, _UNKNOWN_PARTITION) * (len(batches) // BATCH_FIELDS)
            continue
        position = run.position
        next_offset = partition.next_offset
        newest = bytes_stored = 0
        packed = run.crcs if knows_sums else b""
        crcs: Iterator[int] | None = None
        crc = -1
        split: Iterable[Sequence[int]]
        if len(batches) == BATCH_FIELDS:
            # Most runs are of one batch.
            split = (batches,)
            if len(packed) == CRC_BYTES:
                crc = from_bytes(packed, "big")
        else:
            split = split_batches(batches)
            if len(packed) * BATCH_FIELDS == len(batches) * CRC_BYTES:
                crcs = iter(unpack_crcs(packed))
        for length, count, newer, producer_id, epoch, sequence in split:
            newest += newer
            if crcs is not None:
                crc = next(crcs)
            if producer_id >= 0:
                producer_key = (key, producer_id)
                state = tables.producers.get(producer_key) or tables.producer(producer_key)
                if (
                    state is None
                    or epoch != state.epoch
                    or sequence != state.next_sequence
                    or state.in_transaction
                ):
                    # No state has an epoch with bits above it: those of transactions come here.
                    has_bits = epoch > epoch_max
                    look = _judge_transactional if has_bits else _judge_plain
                    state, status, value = look(
                        context, producer_key, state, epoch, sequence, count, next_offset
                    )
                    if status != _STORED:
                        answer += (status, value)
                        position += length
                        continue
                    assert state is not None
                    if has_bits:
                        epoch &= EPOCH_MAX
                state.record(epoch, sequence, count, next_offset, time_ms)
                tables.dirty_producers.add(producer_key)
            answer += (_STORED, next_offset)
            end_offset = next_offset + count
            number: int | None = None
            if crc >= 0:
                # As `penstock.records.sums.batch_sum`, without a call.
                product = (partition.seed + next_offset) * ((crc << 32 | length) ^ MULTIPLIER)
                number = (product ^ product >> SUM_SHIFT) & SUM_MASK
            if row is not None and position == row_end and key == row_key:
                # Adjacent in offsets too: what lies between was not stored, and has no bytes.
                row[_END] = end_offset
                row[_LENGTH] += length
                row[_BATCHES] += 1
                if newest > row[_NEWEST]:  # noqa: PLR1730 - a call of max costs more
                    row[_NEWEST] = newest
                row[_SUM] = (
                    None if number is None or row[_SUM] is None else (row[_SUM] + number) & SUM_MASK
                )
            else:
                row = [key, next_offset, end_offset, place, position, length, newest, 1, number]
                rows.append(row)
                row_key = key
            next_offset = end_offset
            bytes_stored += length
            position += length
            row_end = position
        if bytes_stored:
            partition.next_offset = next_offset
            partition.bytes_live += bytes_stored
            touched[key] = None
    return answers


def _judge_plain(
    context: ApplyContext,
    producer_key: tuple[int, int],
    state: ProducerState | None,
    epoch: int,
    sequence: int,
    count: int,
    next_offset: int,  # noqa: ARG001 - as `_judge_transactional`
) -> tuple[ProducerState | None, int, int]:
    """Decide what becomes of a batch of no transaction that isn't the next one of its producer.

    Returns: its producer's state in the partition, and as `judge`.
    """
    if state is not None:
        status, value = judge(state, epoch, sequence, count)
        if status == _STORED and state.in_transaction:
            return state, BatchStatus.REFUSED, Refusal.PLAIN_IN_TRANSACTION
        return state, status, value
    # Unknown to the partition: it may start anywhere, as in Kafka (ProducerAppendInfo.
    # checkSequence), since its state may have expired.
    state = context.tables.producers[producer_key] = ProducerState(epoch, [], context.time_ms)
    return state, _STORED, 0


def _judge_transactional(
    context: ApplyContext,
    producer_key: tuple[int, int],
    state: ProducerState | None,
    flagged_epoch: int,
    sequence: int,
    count: int,
    next_offset: int,
) -> tuple[ProducerState | None, int, int]:
    """Decide what becomes of a batch of a transaction; note it there if it is stored.

    Returns: its producer's state in the partition, and as `judge`.
    """
    tables = context.tables
    key, producer_id = producer_key
    epoch, adds_itself = flagged_epoch & EPOCH_MAX, bool(flagged_epoch & ADDS_ITSELF)
    row = tables.transactions.of_producer(producer_id)
    refusal = admit_batch(context, row, key, epoch=epoch, adds_itself=adds_itself)
    if refusal is not None:
        return state, BatchStatus.REFUSED, refusal
    assert row is not None
    if state is None:
        # Protocol V2 knows that its first batch is the transaction's first, too (KIP-890).
        if adds_itself and sequence:
            return state, BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE
        state = tables.producers[producer_key] = ProducerState(epoch, [], context.time_ms)
    else:
        status, value = judge(state, epoch, sequence, count)
        if status != _STORED:
            return state, status, value
    open_partition(context, row, key, next_offset)
    state.in_transaction = True
    return state, _STORED, 0


def split_batches(batches: list[int]) -> Iterable[tuple[int, ...]]:
    """The fields of each batch of `RunCommit.batches`."""
    at = iter(batches)
    return zip(at, at, at, at, at, at, strict=True)


def announce_heads(context: ApplyContext, touched: Iterable[int]) -> None:
    """Note partitions that have new records, for the end of the transaction and for the view."""
    tables = context.tables
    tables.dirty_partitions.update(touched)
    partitions = tables.partitions
    for key in touched:
        moved = partitions[key]
        context.changes.append(HeadMoved(PartitionKey(key), moved.log_start, moved.next_offset))


def refuse_object(context: ApplyContext, key: str) -> Refused | None:
    """Say why no command may name this object now; None: any may."""
    known = context.tables.object_state(key)
    if known is None:
        return None
    if known[2]:
        return Refused(Refusal.OBJECT_CONDEMNED, f"object {key} is being deleted")
    return Refused(Refusal.OBJECT_EXISTS, f"object {key} was named before")
