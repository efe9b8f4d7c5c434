"""Applying ReplaceRuns: a job's runs replace those of objects, which stay where anything changed.

Any change of an input is seen here: retention that trimmed it, another job, the deletion of the
topic. What a partition has lost meanwhile can't come back by a job that read it before.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from penstock.model.ids import PartitionKey
from penstock.records.sums import join_sums
from penstock.state.answers import AnyAnswer, Refusal, Refused, RunsReplaced
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.jobs import (
    find_job,
    last_commit,
    refuse_objects,
    save_commit,
    unknown_job,
)
from penstock.state.changes import RunsMoved
from penstock.state.numbers import are_int64
from penstock.state.pipeline_commands import (
    INPUT_FIELDS,
    OUTPUT_FIELDS,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
)
from penstock.state.schema import INTEGRITY_LEVEL, MERGING_LEVEL
from penstock.state.tables import PartitionRow, RunValues, Tables

_LISTED: Final = (
    "SELECT base_offset, end_offset, object_id, position, length, sum, batch_count"
    " FROM object_runs WHERE partition_key = ? AND base_offset >= ? AND base_offset < ?"
    " ORDER BY base_offset"
)
_IN_WAL: Final = (
    "SELECT 1 FROM wal_runs WHERE partition_key = ? AND base_offset >= ? AND base_offset < ?"
    " LIMIT 1"
)
_DELETE: Final = (
    "DELETE FROM object_runs WHERE partition_key = ? AND base_offset >= ? AND base_offset < ?"
)
_CLEAN: Final = (
    "INSERT INTO clean VALUES (?, ?, ?) ON CONFLICT (partition_key) DO UPDATE SET"
    " clean_end = max(clean_end, excluded.clean_end), time_ms = excluded.time_ms"
)

_Run = tuple[int, ...]


def replace_runs(context: ApplyContext, command: ReplaceRuns) -> AnyAnswer:
    """Partition by partition, once per number of the job."""
    tables = context.tables
    job = find_job(tables, command.job)
    if job is None:
        return unknown_job(command.job)
    if command.n == job.last_n and job.last_n:
        return last_commit(tables, job)
    if command.n != job.last_n + 1:
        return Refused(
            Refusal.OUT_OF_ORDER_COMMIT, f"commit {command.n}, the job's last is {job.last_n}"
        )
    answer: AnyAnswer | None = refuse_objects(context, command.job, command.objects)
    if answer is None:
        tables.flush()
        answer = RunsReplaced(_Replacing(context, command).codes())
    save_commit(tables, command.job, command.n, answer)
    return answer


class _Replacing:
    """One command on its way: what its indices stand for, and what its objects have come to."""

    def __init__(self, context: ApplyContext, command: ReplaceRuns) -> None:
        self._context = context
        self._command = command
        tables = context.tables
        self._inputs = [_object_id(tables, key) for key in command.input_keys]
        self._outputs = [tables.add_object(new.key, new.size_bytes) for new in command.objects]
        self._live: Counter[int] = Counter()
        level = tables.meta_int("feature_level")
        self._knows_sums = level >= INTEGRITY_LEVEL
        self._merges = level >= MERGING_LEVEL

    def codes(self) -> list[int]:
        """Replace each partition that can be; 0 or a Refusal for each."""
        codes = [int(self._replace(listed) or 0) for listed in self._command.partitions]
        for object_id, count in sorted(self._live.items()):
            self._context.tables.add_live_runs(object_id, count)
        return codes

    def _replace(self, listed: ReplacedPartition) -> Refusal | None:
        tables = self._context.tables
        key = listed.partition_key
        numbers = (listed.inputs, listed.outputs, listed.sums, listed.markers)
        if not are_int64((key, listed.clean_end, *chain.from_iterable(numbers))):
            return Refusal.INVALID_REPLACEMENT
        partition = tables.partition(key)
        if partition is None:
            return Refusal.UNKNOWN_PARTITION
        inputs = _runs(listed.inputs, INPUT_FIELDS)
        outputs = _runs(listed.outputs, OUTPUT_FIELDS)
        sums = self._sums(listed)
        if (
            inputs is None
            or outputs is None
            or len(sums) != len(outputs)
            or listed.clean_end > partition.next_offset
            or max(listed.markers, default=-1) >= max(listed.clean_end, 0)
            or not _fits(inputs, outputs, self._command.objects)
            or _loses(inputs, outputs, below=max(listed.clean_end, partition.log_start))
        ):
            return Refusal.INVALID_REPLACEMENT
        if inputs:
            before = self._rows_before(key, inputs)
            if before is None:
                return Refusal.INPUT_CHANGED
            if self._merges and listed.merged:
                if listed.clean_end >= 0 or not _may_be_merged(before, outputs, sums):
                    return Refusal.INVALID_REPLACEMENT
            elif (
                # All batches are kept.
                listed.clean_end < 0
                and inputs[0][0] >= partition.log_start
                and _differ([row[0] for row in before], sums)
            ):
                return Refusal.INVALID_REPLACEMENT
            after = zip(outputs, sums, strict=True)
            self._move(key, partition, inputs, after, cleaned=listed.clean_end >= 0)
        if listed.clean_end >= 0:
            tables.execute(_CLEAN, (key, listed.clean_end, self._context.time_ms))
            tables.transactions.forget_aborted(key, listed.markers)
        return None

    def _sums(self, listed: ReplacedPartition) -> list[int | None]:
        """The sum of each output."""
        if not self._knows_sums or not listed.sums:
            return [None] * (len(listed.outputs) // OUTPUT_FIELDS)
        return [None if number < 0 else number for number in listed.sums]

    def _rows_before(self, key: int, inputs: list[_Run]) -> list[tuple[int | None, int]] | None:
        """Sum and count of batches of the inputs. None: they are no longer as they are listed."""
        execute = self._context.tables.execute
        span = (key, inputs[0][0], inputs[-1][1])
        names = self._inputs
        wanted = [
            (base, end, names[name] if 0 <= name < len(names) else None, position, length)
            for base, end, name, position, length in inputs
        ]
        found = execute(_LISTED, span).fetchall()
        if [row[:5] for row in found] != wanted or execute(_IN_WAL, span).fetchone() is not None:
            return None
        return [(row[5], row[6]) for row in found]

    def _move(
        self,
        key: int,
        partition: PartitionRow,
        inputs: list[_Run],
        outputs: Iterable[tuple[_Run, int | None]],
        *,
        cleaned: bool,
    ) -> None:
        tables = self._context.tables
        start, end = inputs[0][0], inputs[-1][1]
        tables.execute(_DELETE, (key, start, end))
        for _, _, name, _, length in inputs:
            object_id = self._inputs[name]
            assert object_id is not None
            self._live[object_id] -= 1
            partition.bytes_live -= length
        rows: list[RunValues] = [
            [key, base, last, self._outputs[name], position, length, newest, batches, number]
            for (base, last, name, position, length, newest, batches), number in outputs
            # Of a run that a trim had cut in two nothing comes back below the log's start.
            if last > partition.log_start
        ]
        tables.executemany("INSERT INTO object_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        for row in rows:
            self._live[row[3]] += 1
            partition.bytes_live += row[5]
        tables.dirty_partitions.add(key)
        self._context.changes.append(
            RunsMoved(partition_key=PartitionKey(key), start=start, end=end, cleaned=cleaned)
        )


def _object_id(tables: Tables, key: str) -> int | None:
    state = tables.object_state(key)
    return None if state is None else state[0]


def _runs(flat: Sequence[int], fields: int) -> list[_Run] | None:
    """Flat numbers as one tuple per run; None: their count is none."""
    if len(flat) % fields:
        return None
    return list(zip(*(flat[field::fields] for field in range(fields)), strict=True))


def _fits(inputs: list[_Run], outputs: list[_Run], objects: Sequence[OutputObject]) -> bool:
    """Whether runs are in order and outputs lie within the inputs' offsets and their objects."""
    if not inputs:
        return not outputs
    if not _ascend(inputs) or not _ascend(outputs):
        return False
    if outputs and not (inputs[0][0] <= outputs[0][0] and outputs[-1][1] <= inputs[-1][1]):
        return False
    return all(
        0 <= name < len(objects)
        and position >= 0
        and length > 0
        and position + length <= objects[name].size_bytes
        and batches > 0
        for _, _, name, position, length, _, batches in outputs
    )


def _loses(inputs: list[_Run], outputs: list[_Run], *, below: int) -> bool:
    """Whether offsets of inputs are missing where nothing may be: from `below` on, and at the very
    end, since behind a gap there must always be something to read."""
    if not inputs:
        return False
    if not outputs or outputs[-1][1] != inputs[-1][1]:
        return True
    ends = [run[1] for run in inputs]
    start = inputs[0][0]
    for output in outputs:
        start, base = max(start, below), output[0]
        if start < base and inputs[bisect_right(ends, start)][0] < base:
            return True
        start = output[1]
    return False


def _differ(before: Sequence[int | None], after: Sequence[int | None]) -> bool:
    """Whether outputs that keep every record, and so every batch, have other batches than the
    inputs have, as far as all sums are known."""
    left, right = _total(before), _total(after)
    return left is not None and right is not None and left != right


def _may_be_merged(
    before: Sequence[tuple[int | None, int]], outputs: list[_Run], sums: Sequence[int | None]
) -> bool:
    """Whether outputs may be inputs with other batches: nothing here says what is in these, so at
    least their own sums must be known, and they can't have become more."""
    return None not in sums and sum(run[6] for run in outputs) <= sum(row[1] for row in before)


def _total(sums: Sequence[int | None]) -> int | None:
    total: int | None = 0
    for number in sums:
        total = join_sums(total, number)
    return total


def _ascend(runs: list[_Run]) -> bool:
    end = 0
    for run in runs:
        if not end <= run[0] < run[1]:
            return False
        end = run[1]
    return True
