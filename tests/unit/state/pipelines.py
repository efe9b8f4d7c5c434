"""What the tests of the pipeline's commands share: one replica at that level, short commands."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.model.ids import PartitionKey
from penstock.order.outcome import Standing
from penstock.records.sums import pack_crcs
from penstock.replica.replica import Replica
from penstock.segment import job_object_key
from penstock.state.answers import AnyAnswer, JobOpened, Refusal, Refused
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import CommitRuns, RegisterAgent, RunCommit, SetFeatureLevel
from penstock.state.entries import Entry, encode_entry
from penstock.state.pipeline_commands import (
    CommitWrite,
    OpenJob,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
    WriteRun,
)
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.schema import PIPELINE_LEVEL
from unit.state.orders import KEY, PLAIN, batch, topic

OTHER = PartitionKey(KEY + 1)
SIZE = 1_000_000


class Pipeline:
    """One agent's entries on one replica, with the topic "t" of two partitions."""

    def __init__(self, directory: Path, *, level: int = PIPELINE_LEVEL) -> None:
        self.path = directory / "metadata.sqlite"
        self.machine = LogMachine()
        self.replica = Replica.open(self.path, self.machine, fsync=False)
        self.view = StateView()
        self.time_ms = 1_000
        self._n = 0
        self.send(RegisterAgent(agent=1, level_max=9), topic())
        if level > 1:
            self.send(SetFeatureLevel(level=level))
        self.queries = Queries(self.path)
        self.changes: list[Any] = []

    def send(self, *commands: Any) -> list[AnyAnswer]:
        """Apply one entry."""
        entry = Entry(agent=1, epoch=1, n=self._n, stamp_ms=self.time_ms, commands=list(commands))
        self._n += 1
        outcome = self.replica.append(encode_entry(entry), stamp_ms=self.time_ms).outcome
        assert outcome.standing is Standing.APPLIED, outcome
        self.view.apply(outcome.changes)
        self.changes = outcome.changes
        return outcome.answers

    def one(self, command: Any) -> AnyAnswer:
        (answer,) = self.send(command)
        return answer

    def open_job(self, **fields: Any) -> int:
        command = {"kind": "test", "name": "n", "lease_ms": 100, "age_max_ms": 1_000} | fields
        answer = self.one(OpenJob(**command))
        assert isinstance(answer, JobOpened), answer
        return answer.job

    def named(
        self,
        key: str,
        *batches: list[int],
        partition: PartitionKey = KEY,
        crcs: Sequence[int] = (),
    ) -> str:
        """Commit batches of one run in an object of an agent."""
        flat = [value for one in batches for value in one]
        runs = [RunCommit(partition_key=partition, position=16, batches=flat, crcs=pack_crcs(crcs))]
        self.one(CommitRuns(runs=runs, object_key=key, object_bytes=SIZE, raw=True))
        return key

    def live_runs(self) -> dict[str, int]:
        return {row.key: row.live_runs for row in self.queries.objects("", 999)}

    def runs(self, key: PartitionKey = KEY) -> list[tuple[int, int, str]]:
        return [
            (run.base_offset, run.end_offset, run.object_key)
            for run in self.queries.runs_from(key, 0, limit=999)
        ]

    def bytes_of(self, key: PartitionKey = KEY) -> int:
        return self.queries.partition_bytes([key])[key]

    def check(self) -> None:
        """What holds after any history: see `check_state`."""
        check_state(self.queries)

    def close(self) -> None:
        self.queries.close()
        self.replica.close()


def check_state(queries: Queries) -> None:
    """Runs don't overlap and lie within their partition, nothing lies wholly below its start, and
    all counts are exact."""
    found = queries.run_rows((-1, -1), limit=1 << 30)
    sizes: dict[int, int] = {}
    live: dict[int, int] = {}
    ends: dict[int, int] = {}
    heads = {key: (start, end) for key, start, end in queries.heads()}
    for key, base, end, generation, object_id, _, length, _, batches, _ in found.rows:
        assert ends.get(key, 0) <= base < end, "runs overlap"
        start, next_offset = heads[PartitionKey(key)]
        assert start < end <= next_offset, "a run outside of its log"
        assert (generation == 0) == (object_id != 0)
        assert batches > 0
        ends[key] = end
        sizes[key] = sizes.get(key, 0) + length
        if object_id:
            live[object_id] = live.get(object_id, 0) + 1
    expected = {key: size for key, size in queries.partition_bytes(None).items() if size}
    assert sizes == expected, "bytes of live runs"
    counts = {found.objects[object_id].key: count for object_id, count in live.items()}
    stored = {row.key: row.live_runs for row in queries.objects("", 1 << 30) if row.live_runs}
    assert counts == stored, "live runs of objects"


def key_of(job: int, number: int = 0) -> str:
    return job_object_key(job=job, name=f"{number:032x}")


def output(job: int, number: int = 0, size: int = SIZE) -> OutputObject:
    return OutputObject(key=key_of(job, number), size_bytes=size)


def replacing(
    queries: Queries,
    job: int,
    n: int = 1,
    *,
    key: PartitionKey = KEY,
    start: int = 0,
    end: int = 1 << 60,
    number: int = 0,
    keep: int = 1,
    clean_end: int = -1,
) -> ReplaceRuns:
    """Join all runs of a partition that begin in [start, end), as they are now, into one; `keep`:
    of each `keep` bytes one is left."""
    found = queries.run_rows_within(key, start, end, limit=1 << 30, with_wal=False)
    rows = [row for row in found.rows if row[1] >= start]
    names = sorted({found.objects[row[4]].key for row in rows})
    inputs: list[int] = []
    for _, base, last, _, object_id, position, length, _, _, _ in rows:
        inputs += (base, last, names.index(found.objects[object_id].key), position, length)
    length = max(1, sum(row[6] for row in rows) // keep)
    outputs = [rows[0][1], rows[-1][2], 0, 16, length, max(row[7] for row in rows), len(rows)]
    listed = ReplacedPartition(
        partition_key=key, inputs=inputs, outputs=outputs, clean_end=clean_end
    )
    return ReplaceRuns(
        job=job, n=n, input_keys=names, objects=[output(job, number)], partitions=[listed]
    )


def write(job: int, batch_id: int = 0, **fields: Any) -> CommitWrite:
    """One batch of three records to one partition."""
    runs = [WriteRun(partition_key=KEY, object=0, position=16, batches=batch(3, producer=PLAIN))]
    command: dict[str, Any] = {
        "job": job,
        "writer_id": "w",
        "batch_id": batch_id,
        "incarnation": "first",
        "objects": [output(job, abs(batch_id))],
        "runs": runs,
    }
    return CommitWrite(**(command | fields))


def reason(answer: AnyAnswer) -> Refusal:
    assert isinstance(answer, Refused), answer
    return answer.reason
