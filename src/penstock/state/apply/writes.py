"""Applying what writers outside of the agents write: exactly once per (writer, batch).

The last batch of each writer is state, with its answer: a writer that lost the answer, or replays
the batch after a restart, gets it again, and the objects of the replay are named by nothing.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from penstock.state.answers import (
    AnyAnswer,
    BatchStatus,
    Done,
    Refusal,
    Refused,
    WriteCommitted,
    decode_answers,
    encode_answers,
)
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.jobs import find_job, refuse_objects, unknown_job
from penstock.state.apply.records import announce_heads, place_batches, split_batches
from penstock.state.commands import BATCH_FIELDS, EPOCH_MAX
from penstock.state.numbers import INT32_MAX, are_int64, is_number
from penstock.state.pipeline_commands import CommitWrite, ExpireWriters, WriteRun
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.sequences import ProducerState, judge
from penstock.state.tables import Tables

NAME_CHARACTERS_MAX: Final = 1000
"""Bound for a writer's id, its incarnation, a table's name."""


def is_name(text: str) -> bool:
    """Whether a text may be a key of the state."""
    return 0 < len(text) <= NAME_CHARACTERS_MAX


def commit_write(context: ApplyContext, command: CommitWrite) -> AnyAnswer:
    """Judge the whole before anything of it is stored."""
    tables = context.tables
    writer = tables.execute(
        "SELECT incarnation, batch_id, answer FROM writers WHERE writer_id = ?",
        (command.writer_id,),
    ).fetchone()
    if writer is not None and writer[:2] == (command.incarnation, command.batch_id):
        # Before the job is looked at: who lost the answer has perhaps lost the job, too.
        (first,) = decode_answers(writer[2])
        assert isinstance(first, WriteCommitted)
        return WriteCommitted(first.ranges, repeated=True)
    if find_job(tables, command.job) is None:
        return unknown_job(command.job)
    refusal = (
        _refuse_writer(command, writer)
        or refuse_objects(context, command.job, command.objects)
        or _refuse_runs(context, command)
    )
    if refusal is not None:
        return refusal
    answer = WriteCommitted(_store(context, command))
    tables.execute(
        "INSERT OR REPLACE INTO writers VALUES (?, ?, ?, ?, ?)",
        (
            command.writer_id,
            command.incarnation,
            command.batch_id,
            context.time_ms,
            encode_answers([answer]),
        ),
    )
    return answer


def expire_writers(context: ApplyContext, command: ExpireWriters) -> AnyAnswer:
    """Forget those that have not written since they were seen."""
    context.tables.executemany(
        "DELETE FROM writers WHERE writer_id = ? AND time_ms = ?",
        ((writer_id, time_ms) for writer_id, time_ms in command.writers if is_number(time_ms)),
    )
    return Done()


def _refuse_writer(command: CommitWrite, writer: tuple[str, int, bytes] | None) -> Refused | None:
    if not is_name(command.writer_id) or not is_name(command.incarnation):
        return Refused(
            Refusal.MALFORMED, f"a writer's id has 1 to {NAME_CHARACTERS_MAX} characters"
        )
    if not is_number(command.batch_id):
        return Refused(Refusal.MALFORMED, f"batch {command.batch_id}")
    if writer is None:
        return None
    incarnation, batch_id, _ = writer
    if incarnation != command.incarnation:
        return Refused(
            Refusal.WRITER_IN_USE,
            f"writer {command.writer_id} has written batch {batch_id} from another checkpoint",
        )
    if command.batch_id < batch_id:
        return Refused(
            Refusal.STALE_WRITE,
            f"batch {command.batch_id}, writer {command.writer_id} is at {batch_id}",
        )
    return None


def _refuse_runs(context: ApplyContext, command: CommitWrite) -> Refused | None:
    """Say why not all batches of the write can be stored; None: they can."""
    tables = context.tables
    producers: dict[tuple[int, int], ProducerState] = {}
    # The bits above an epoch are those of transactions, which a write can't be of.
    knows_transactions = tables.meta_int("feature_level") >= TRANSACTIONS_LEVEL
    epoch_max = EPOCH_MAX if knows_transactions else INT32_MAX
    for run in command.runs:
        fault = _fault(run, command, epoch_max)
        if fault:
            return Refused(Refusal.MALFORMED, fault)
        if tables.partition(run.partition_key) is None:
            return Refused(
                Refusal.UNKNOWN_PARTITION, f"there is no partition of key {run.partition_key}"
            )
        refusal = _refuse_sequences(tables, run, producers)
        if refusal is not None:
            return refusal
    return None


def _fault(run: WriteRun, command: CommitWrite, epoch_max: int) -> str:
    """Say what is wrong with a run's numbers; empty: nothing."""
    batches = run.batches
    if not is_number(run.partition_key):
        return f"partition key {run.partition_key}"
    if not is_number(run.object, 0, len(command.objects) - 1):
        return f"object {run.object} of {len(command.objects)}"
    if not batches or len(batches) % BATCH_FIELDS:
        return f"{len(batches)} numbers of batches"
    newest = 0
    for length, count, newer, producer_id, epoch, sequence in split_batches(run.batches):
        newest += newer
        if not (is_number(length, 1, INT32_MAX) and is_number(count, 1, INT32_MAX)):
            return f"a batch of {count} records in {length} bytes"
        if not are_int64((newer, newest)):
            return f"max timestamp {newest}"
        if producer_id != -1 and not (
            is_number(producer_id)
            and is_number(epoch, 0, epoch_max)
            and is_number(sequence, 0, INT32_MAX)
        ):
            return f"producer {producer_id} epoch {epoch} sequence {sequence}"
    end = run.position + sum(batches[::BATCH_FIELDS])
    size_bytes = command.objects[run.object].size_bytes
    if not 0 <= run.position <= end <= size_bytes:
        return f"bytes {run.position} to {end} of an object of {size_bytes}"
    return ""


def _refuse_sequences(
    tables: Tables, run: WriteRun, producers: dict[tuple[int, int], ProducerState]
) -> Refused | None:
    """Judge batches of idempotent producers, by states that only this look is of."""
    for _, count, _, producer_id, epoch, sequence in split_batches(run.batches):
        if producer_id < 0:
            continue
        key = (run.partition_key, producer_id)
        state = producers.get(key)
        if state is None:
            known = tables.producers.get(key) or tables.producer(key)
            state = producers[key] = (
                ProducerState(epoch, [], 0)
                if known is None
                else ProducerState(
                    known.epoch, list(known.ranges), 0, in_transaction=known.in_transaction
                )
            )
            fresh = known is None
        else:
            fresh = False
        if not fresh:
            status, value = judge(state, epoch, sequence, count)
            if status is not BatchStatus.STORED:
                reason = Refusal.OUT_OF_ORDER_SEQUENCE
                if status is BatchStatus.REFUSED:
                    reason = Refusal(value)
                return Refused(
                    reason,
                    f"producer {producer_id} epoch {epoch} sequence {sequence}:"
                    f" {state.next_sequence} of epoch {state.epoch} is next",
                )
        if state.in_transaction:
            return Refused(
                Refusal.PLAIN_IN_TRANSACTION,
                f"producer {producer_id} has a transaction open in the partition",
            )
        state.record(epoch, sequence, count, 0, 0)
    return None


def _store(context: ApplyContext, command: CommitWrite) -> list[int]:
    """Name the objects and give offsets; `WriteCommitted.ranges`."""
    tables = context.tables
    places = [tables.add_object(new.key, new.size_bytes, raw=True) for new in command.objects]
    rows = tables.new_object_runs
    starts = _starts(tables, command.runs)
    touched: dict[int, None] = {}
    # By object: within one of them runs that are adjacent are joined, as in CommitRuns.
    for index, runs in groupby(command.runs, key=lambda run: run.object):
        row_count_before = len(rows)
        place_batches(context, list(runs), places[index], rows, touched)
        tables.add_live_runs(places[index], len(rows) - row_count_before)
    announce_heads(context, touched)
    ranges: list[int] = []
    for key, start in starts.items():
        ranges += (key, start, tables.partitions[key].next_offset)
    return ranges


def _starts(tables: Tables, runs: Sequence[WriteRun]) -> dict[int, int]:
    """Return the next offset by partition, in the order of first use."""
    starts: dict[int, int] = {}
    for run in runs:
        partition = tables.partition(run.partition_key)
        assert partition is not None
        starts.setdefault(run.partition_key, partition.next_offset)
    return starts
