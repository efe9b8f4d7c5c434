"""Any history of commits, moves, trims, replacements and deletions keeps the state's invariants:
runs without overlap, nothing lost, exact counts; and every replica of it is the same."""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import PartitionKey
from penstock.records.sums import SUM_MASK, batch_sum, pack_crcs, partition_seed
from penstock.replica.replica import Replica
from penstock.state.answers import Refusal, RunsReplaced, WriteCommitted
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import CondemnObjects, DeleteTopic, ForgetObjects, TrimLog
from penstock.state.pipeline_commands import (
    CloseJob,
    CommitWrite,
    ReplacedPartition,
    ReplaceRuns,
    WriteRun,
)
from penstock.state.read.queries import Queries
from penstock.state.schema import FEATURE_LEVEL_MAX, INTEGRITY_LEVEL, PIPELINE_LEVEL
from unit.state.orders import KEY, TOPIC_ID, batch, commit, store
from unit.state.pipelines import OTHER, Pipeline, check_state, output, replacing

KEYS = (KEY, OTHER)
INPUT_CHANGED = int(Refusal.INPUT_CHANGED)


class History:
    """Draws commands, and knows of each partition which offsets must be there."""

    def __init__(self, pipeline: Pipeline, data: st.DataObject, *, knows: bool) -> None:
        self.pipeline = pipeline
        self.knows = knows
        """Whether the level is on from which sums are kept."""
        self.draw = data.draw
        self.jobs: dict[int, int] = {}
        self.stale: list[ReplaceRuns] = []
        self.written: dict[str, tuple[CommitWrite, WriteCommitted]] = {}
        self.live: dict[PartitionKey, set[int]] = {key: set() for key in KEYS}
        self.sums: dict[PartitionKey, list[tuple[int, int, int | None]]] = {key: [] for key in KEYS}
        """What is known of offsets [base, end): the number of a batch, or of what a job joined."""
        self.numbers = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def key(self) -> PartitionKey:
        return self.draw(st.sampled_from(KEYS))

    def job(self) -> int:
        if not self.jobs or self.draw(st.integers(0, 9)) == 0:
            self.jobs[self.pipeline.open_job(lease_ms=1 << 40, age_max_ms=1 << 40)] = 0
        return self.draw(st.sampled_from(sorted(self.jobs)))

    def add(
        self, key: PartitionKey, start: int, batches: list[list[int]], crcs: Sequence[int]
    ) -> None:
        seed = partition_seed(TOPIC_ID, key - KEY)
        for at, (length, count, *_) in enumerate(batches):
            self.live[key].update(range(start, start + count))
            number = batch_sum(seed, start, 0, crcs[at], length) if crcs and self.knows else None
            self.sums[key].append((start, start + count, number))
            start += count

    def batches(self, count: int) -> tuple[list[list[int]], list[int]]:
        """Batches and their CRCs, now and then as an older release says them, without."""
        batches = [batch(self.draw(st.integers(1, 3))) for _ in range(count)]
        crcs = [self.draw(st.integers(0, 3)) for _ in batches]
        return batches, crcs if self.draw(st.integers(0, 7)) else []

    def sum_of(self, key: PartitionKey, start: int, end: int) -> int | None:
        """Of the batches in offsets [start, end), if all of them are known."""
        total = 0
        for base, last, number in self.sums[key]:
            if start <= base and last <= end:
                if number is None:
                    return None
                total += number
        return total & SUM_MASK

    # -- steps -----------------------------------------------------------------------------------

    def named(self) -> None:
        key = self.key()
        head = self.pipeline.view.head(key)
        start = head.next_offset if head else 0
        batches, crcs = self.batches(self.draw(st.integers(1, 2)))
        self.pipeline.named(f"o{self.number()}", *batches, partition=key, crcs=crcs)
        if head is not None:
            self.add(key, start, batches, crcs)

    def in_wal(self) -> None:
        key = self.key()
        head = self.pipeline.view.head(key)
        if head is not None:
            start = head.next_offset
            batches, crcs = self.batches(1)
            self.pipeline.one(commit(*batches, key=key, position=1000 * self.number(), crcs=crcs))
            self.add(key, start, batches, crcs)

    def moved(self) -> None:
        runs = [run for run in self.pipeline.queries.wal_runs() if run.partition_key == KEY]
        if runs:
            self.pipeline.one(store(runs, object_key=f"o{self.number()}"))

    def trimmed(self) -> None:
        key = self.key()
        head = self.pipeline.view.head(key)
        if head is not None:
            start = self.draw(st.integers(0, head.next_offset))
            self.pipeline.one(TrimLog(items=[key, start]))

    def planned(self) -> ReplaceRuns | None:
        """Join what lies side by side from some run on; as it is now."""
        key = self.key()
        found = self.pipeline.queries.run_rows((key, -1), limit=1 << 30)
        rows = [row for row in found.rows if row[0] == key]
        objects = [index for index, row in enumerate(rows) if row[4]]
        if not objects:
            return None
        first = last = self.draw(st.sampled_from(objects))
        while last + 1 < len(rows) and rows[last + 1][4] and self.draw(st.booleans()):
            last += 1
        job = self.job()
        start, end = rows[first][1], rows[last][2]
        command = replacing(
            self.pipeline.queries, job, key=key, start=start, end=end, number=self.number()
        )
        known = self.sum_of(key, start, end)
        said = [] if self.draw(st.integers(0, 7)) == 0 else [-1 if known is None else known]
        return with_sums(command, said)

    def kept_for_later(self) -> None:
        command = self.planned()
        if command is not None:
            self.stale.append(command)

    def replaced(self) -> None:
        command = self.planned()
        if command is not None:
            assert self.commit(command) == [0], "nothing has changed since it was planned"

    def replaced_wrongly(self) -> None:
        """Another sum than that of the inputs is refused, if it can be compared."""
        command = self.planned()
        if command is None:
            return
        (listed,) = command.partitions
        key = PartitionKey(listed.partition_key)
        known = self.sum_of(key, *listed.outputs[:2])
        head = self.pipeline.view.head(key)
        assert head is not None
        code = Refusal.INVALID_REPLACEMENT
        if known is None or listed.inputs[0] < head.log_start:
            code = 0
        assert self.commit(with_sums(command, [(known or 0) ^ 1])) == [code]

    def replaced_late(self) -> None:
        if self.stale:
            command = self.stale.pop(self.draw(st.integers(0, len(self.stale) - 1)))
            if command.job in self.jobs:
                (code,) = self.commit(command)
                assert code in (0, INPUT_CHANGED, Refusal.UNKNOWN_PARTITION)

    def commit(self, command: ReplaceRuns) -> list[int]:
        self.jobs[command.job] += 1
        numbered = msgspec.structs.replace(command, n=self.jobs[command.job])
        answer = self.pipeline.one(numbered)
        assert isinstance(answer, RunsReplaced), answer
        if self.draw(st.booleans()):
            assert self.pipeline.one(numbered) == answer
        if answer.codes == [0]:
            self.note(*command.partitions)
        return answer.codes

    def note(self, listed: ReplacedPartition) -> None:
        """What a job has said of its outputs is what is known of them."""
        key, start, end = PartitionKey(listed.partition_key), listed.inputs[0], listed.inputs[-4]
        kept = [one for one in self.sums[key] if not (start <= one[0] and one[1] <= end)]
        spans = zip(listed.outputs[0::7], listed.outputs[1::7], strict=True)
        said = listed.sums or [-1] * (len(listed.outputs) // 7)
        self.sums[key] = kept + [
            (*span, number if number >= 0 and self.knows else None)
            for span, number in zip(spans, said, strict=True)
        ]

    def cleaned(self) -> None:
        """By key: some offsets of the middle go."""
        command = self.planned()
        if command is None:
            return
        (listed,) = command.partitions
        start, end = listed.inputs[0], listed.outputs[1]
        at = self.draw(st.integers(start, end - 1))
        to = self.draw(st.integers(at, end - 1))
        size, key = listed.outputs[4], PartitionKey(listed.partition_key)
        outputs = [start, at, 0, 16, size, 0, 1] if at > start else []
        outputs += [to, end, 0, 16 + size, size, 0, 1]
        said = [self.draw(st.integers(-1, 9)) for _ in outputs[::7]]
        cleaned = msgspec.structs.replace(listed, outputs=outputs, clean_end=end, sums=said)
        (code,) = self.commit(msgspec.structs.replace(command, partitions=[cleaned]))
        assert code == 0
        self.live[key] -= set(range(at, to))

    def written_now(self) -> None:
        writer = self.draw(st.sampled_from(["v", "w"]))
        known = self.written.get(writer)
        heads = {key: self.pipeline.view.head(key) for key in KEYS}
        following = {key: head.next_offset for key, head in heads.items() if head}
        runs = []
        added = []
        for index, key in enumerate(self.draw(st.lists(st.sampled_from(KEYS), max_size=3))):
            batches, crcs = self.batches(1)
            added.append((key, batches, crcs))
            runs.append(
                WriteRun(
                    partition_key=key,
                    object=0,
                    position=16 + 1000 * index,
                    batches=batches[0],
                    crcs=pack_crcs(crcs),
                )
            )
        job = self.job()
        command = CommitWrite(
            job=job,
            writer_id=writer,
            batch_id=known[0].batch_id + 1 if known else 0,
            incarnation="c",
            objects=[output(job, self.number())],
            runs=runs,
        )
        answer = self.pipeline.one(command)
        if isinstance(answer, WriteCommitted):
            for key, batches, crcs in added:
                self.add(key, following[key], batches, crcs)
                following[key] += batches[0][1]
            ends = dict(zip(answer.ranges[0::3], answer.ranges[2::3], strict=True))
            assert all(following[PartitionKey(key)] == end for key, end in ends.items())
            self.written[writer] = (command, answer)
        else:
            assert not self.live[KEY], "its topic is gone"

    def written_again(self) -> None:
        for command, answer in self.written.values():
            replayed = msgspec.structs.replace(
                command, job=self.job(), objects=[output(1, self.number())], runs=command.runs[:1]
            )
            repeated = self.pipeline.one(replayed)
            assert repeated == WriteCommitted(answer.ranges, repeated=True)

    def swept(self) -> None:
        keys = self.pipeline.queries.unreferenced_objects(limit=99)
        self.pipeline.one(CondemnObjects(keys=keys))
        self.pipeline.one(ForgetObjects(keys=keys[: self.draw(st.integers(0, len(keys)))]))

    def closed(self) -> None:
        if self.jobs:
            job = self.draw(st.sampled_from(sorted(self.jobs)))
            self.pipeline.one(CloseJob(job=job))
            del self.jobs[job]

    def deleted(self) -> None:
        if self.draw(st.integers(0, 4)) == 0:
            self.pipeline.one(DeleteTopic(topic_id=TOPIC_ID))
            for key in KEYS:
                self.live[key].clear()
                self.sums[key].clear()

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        check_state(self.pipeline.queries)
        for key in KEYS:
            head = self.pipeline.view.head(key)
            there = {
                offset
                for row in self.pipeline.queries.run_rows((key, -1), limit=1 << 30).rows
                if row[0] == key
                for offset in range(row[1], row[2])
            }
            start = head.log_start if head else 1 << 60
            # More may be covered: a run that was joined over a gap has it inside.
            assert {offset for offset in self.live[key] if offset >= start} <= there
            assert not head or not there or max(there) < head.next_offset
            for run in self.pipeline.queries.runs_from(key, 0, limit=1 << 30):
                assert run.sum == self.sum_of(key, run.base_offset, run.end_offset)


def with_sums(command: ReplaceRuns, said: list[int]) -> ReplaceRuns:
    """With these sums of its only partition's outputs."""
    (listed,) = command.partitions
    changed = msgspec.structs.replace(listed, sums=said)
    return msgspec.structs.replace(command, partitions=[changed])


STEPS = [
    History.named,
    History.named,
    History.in_wal,
    History.moved,
    History.trimmed,
    History.kept_for_later,
    History.replaced,
    History.replaced,
    History.replaced_late,
    History.replaced_late,
    History.replaced_wrongly,
    History.cleaned,
    History.written_now,
    History.written_again,
    History.swept,
    History.closed,
    History.deleted,
]


@given(data=st.data())
def test_any_history_keeps_the_invariants_and_replays_to_the_same(data: st.DataObject) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        level = data.draw(st.sampled_from([PIPELINE_LEVEL, FEATURE_LEVEL_MAX, FEATURE_LEVEL_MAX]))
        pipeline = stack.enter_context(closing(Pipeline(directory, level=level)))
        history = History(pipeline, data, knows=level >= INTEGRITY_LEVEL)
        for _ in range(data.draw(st.integers(5, 40), label="steps")):
            data.draw(st.sampled_from(STEPS), label="step")(history)
            history.check()
            if data.draw(st.integers(0, 7)) == 0:
                pipeline.machine.drop_caches()
        fresh = stack.enter_context(
            closing(Replica.open(directory / "fresh.sqlite", LogMachine(), fsync=False))
        )
        # In one transaction, where the other had one for each entry.
        for entry in pipeline.replica.journal_after(0):
            fresh.apply(entry.body, stamp_ms=entry.time_ms, position=entry.position)
        fresh.commit()
        assert fresh.digest() == pipeline.replica.digest()


def test_a_replica_at_an_older_level_is_brought_along(tmp_path: Path) -> None:
    """A file of version 4, with runs, whose sums come with its migration."""
    golden = Path(__file__).parents[2] / "golden" / "metadata" / "format-4.sqlite"
    path = shutil.copyfile(golden, tmp_path / "metadata.sqlite")
    with closing(Queries(path)) as before:
        runs = before.run_rows((-1, -1), limit=99)
        assert runs.rows
    with closing(Replica.open(path, LogMachine(), fsync=False)), closing(Queries(path)) as after:
        assert after.run_rows((-1, -1), limit=99) == runs
        check_state(after)
