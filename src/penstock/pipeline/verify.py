"""Verify a whole cluster through an agent, in parallel: what `penstock verify --url` does.

The driver looks at what the journal names: offsets without gap or overlap from each log's start to
its high watermark. Executors read every object and every WAL: indexes, CRCs, counts, offsets. Last
the store's listing is compared with the journal's objects: what is missing, what nothing names.

The cluster may be in use meanwhile. The job holds deletion back, so what was named when it began is
there to the end; what looks wrong in the journal is looked at again before it is a finding.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from penstock.log.run_walk import DueRun
from penstock.model.errors import NotFoundError
from penstock.model.ids import PartitionKey
from penstock.pipeline.api_messages import (
    RUN_FIELDS,
    STORED_LIVE,
    STORED_UNKNOWN,
    PartitionState,
    Range,
    RunPage,
    TopicState,
)
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.verify_task import Checked, NamedRun, ObjectItem, WalItem, check_item
from penstock.records.sums import partition_seed
from penstock.recovery.verify import FindingKind, VerifyReport
from penstock.state.leader_epochs import FIRST_EPOCH
from penstock.state.rows import StoredRun

KIND: Final = "verify"
LOOKS_MAX: Final = 5
_IN_WAL: Final = -1
_ANY_KEY: Final = PartitionKey(0)
"""Agents name partitions by topic id and number, and walking a run needs no key."""

Watch = Callable[[int, int], None]
"""Called with progress: bytes read, bytes in all."""


def verify_cluster(
    client: PipelineClient, engine: Engine, *, watch: Watch | None = None
) -> VerifyReport:
    """Read everything that a cluster has.

    Raises:
        RetryableError: agents or store didn't answer for too long.
        FencedError: another process closed the job.
    """
    with JobLease(client, kind=KIND, name="penstock verify") as lease:
        verifier = _Verifier(client, watch)
        items = verifier.plan()
        with closing(engine.run(check_item, items)) as results:
            for index, checked in results:
                lease.check()
                verifier.take(items[index], checked)
        verifier.check_store()
    return verifier.report


class _Partition:
    """A partition's state, and the runs that were listed for it."""

    def __init__(self, topic: TopicState, number: int) -> None:
        self.topic = topic
        self.number = number
        self.state: PartitionState = topic.partitions[number]
        self.clean_end = self.state.clean_end
        self.runs: list[tuple[int, int]] = []

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.number}"

    def fault(self) -> tuple[FindingKind, str] | None:
        """The first thing that is wrong with its offsets."""
        expected = self.state.log_start
        clean_end = self.clean_end
        for index, (base, end) in enumerate(sorted(self.runs)):
            if base > max(expected, clean_end):
                return FindingKind.GAP, f"offsets {expected} to {base - 1} have no run"
            # The first run may begin before the log start, which trims whole runs only.
            if base < expected and not (not index and end > expected):
                return (
                    FindingKind.OVERLAP,
                    f"a run begins at offset {base} where {expected} is due",
                )
            expected = max(expected, end)
        high = self.state.high_watermark
        if expected < high and high > clean_end:
            return FindingKind.GAP, f"offsets {expected} to {high - 1} have no run"
        return None


class _Verifier:
    def __init__(self, client: PipelineClient, watch: Watch | None) -> None:
        self.report = VerifyReport()
        self._client = client
        self._watch = watch
        self._total_bytes = 0
        self._read_bytes = 0

    # -- what the journal names --------------------------------------------------------------------

    def plan(self) -> list[ObjectItem | WalItem]:
        """Check offsets, and give what is to be read: the largest objects first."""
        topics = {topic.topic_id: topic for topic in self._client.topics(uncommitted=True).topics}
        partitions = {
            (topic_id, number): _Partition(topic, number)
            for topic_id, topic in topics.items()
            for number in range(len(topic.partitions))
        }
        self.report.topics = len(topics)
        self.report.partitions = len(partitions)
        objects: dict[str, ObjectItem] = {}
        wals: list[WalItem] = []
        pages = list(self._client.runs())
        # What is clean only grows: asked for after the runs, it is true of all of them.
        for topic in self._client.topics(uncommitted=True).topics:
            for number, state in enumerate(topic.partitions):
                if (topic.topic_id, number) in partitions:
                    partitions[topic.topic_id, number].clean_end = state.clean_end
        for page in pages:
            for partition, run, index in _named(page, partitions):
                partition.runs.append((run.due.run.base_offset, run.due.run.end_offset))
                self._total_bytes += run.due.run.length
                if index == _IN_WAL:
                    wals.append(WalItem(api=self._client.options, run=run))
                    continue
                key = page.object_keys[index]
                item = objects.get(key)
                if item is None:
                    item = objects[key] = ObjectItem(
                        api=self._client.options,
                        key=key,
                        size_bytes=page.object_bytes[index],
                        raw=bool(page.object_raw[index]),
                        origin=page.object_origins[index],
                        runs=[],
                    )
                item.runs.append(run)
        for partition in partitions.values():
            self._check_offsets(partition)
        return [*sorted(objects.values(), key=_weight, reverse=True), *wals]

    def _check_offsets(self, partition: _Partition) -> None:
        for _ in range(LOOKS_MAX):
            fault = partition.fault()
            if fault is None:
                return
            # Runs were joined, trimmed or added while they were listed, page by page.
            found = self._look_again(partition)
            if found is None:
                return
            partition = found
        fault = partition.fault()
        if fault is not None:
            self.report.add(fault[0], partition.name, fault[1])

    def _look_again(self, partition: _Partition) -> _Partition | None:
        """A partition as it is now; None when it was deleted."""
        topic_id = partition.topic.topic_id
        found = self._client.topics(topic_ids=[topic_id], uncommitted=True).topics
        if not found or partition.number >= len(found[0].partitions):
            return None
        again = _Partition(found[0], partition.number)
        state = again.state
        if state.log_start >= state.high_watermark:
            return again
        wanted = Range(topic_id, partition.number, state.log_start, state.high_watermark)
        try:
            for page in self._client.runs([wanted]):
                again.runs += [
                    (run.due.run.base_offset, run.due.run.end_offset)
                    for _, run, _ in _named(page, {(topic_id, partition.number): again})
                ]
        except NotFoundError:
            return None
        return again

    # -- what executors found ----------------------------------------------------------------------

    def take(self, item: ObjectItem | WalItem, checked: Checked) -> None:
        """Add up what was read; what is gone is a finding only if it is still named."""
        report = self.report
        for name in ("runs", "batches", "records", "bytes", "objects"):
            setattr(report, name, getattr(report, name) + getattr(checked, name))
        runs = item.runs if isinstance(item, ObjectItem) else [item.run]
        key = item.key if isinstance(item, ObjectItem) else ""
        if checked.gone and any(self._is_named(run, key) for run in runs):
            self.report.add(FindingKind.MISSING, key or runs[0].due.partition,
                            checked.gone)  # fmt: skip
        for kind, subject, detail in checked.findings:
            report.add(FindingKind(kind), subject, detail)
        self._read_bytes += sum(run.due.run.length for run in runs)
        if self._watch is not None:
            self._watch(min(self._read_bytes, self._total_bytes), self._total_bytes)

    def _is_named(self, run: NamedRun, key: str) -> bool:
        """Whether the journal still says that these offsets lie in that object (""; a WAL)."""
        row = run.due.run
        try:
            pages = list(
                self._client.runs(
                    [Range(run.topic_id, run.partition, row.base_offset, row.end_offset)]
                )
            )
        except NotFoundError:
            return False
        for page in pages:
            for at in range(0, len(page.rows), RUN_FIELDS):
                index = page.rows[at + 3]
                if (page.object_keys[index] if index != _IN_WAL else "") == key:
                    return True
        return False

    # -- the store ---------------------------------------------------------------------------------

    def check_store(self) -> None:
        """Compare the store's listing with the journal's objects, prefix by prefix."""
        suspects: dict[str, list[tuple[FindingKind, str, str]]] = defaultdict(list)
        for number in range(256):
            prefix = f"{number:02x}"
            suspects[prefix] = list(self._suspects(prefix))
        known = {finding.subject for finding in self.report.findings}
        for prefix, found in suspects.items():
            if not found:
                continue
            # An upload under way is named a moment later; what was just deleted is not there.
            again = set(self._suspects(prefix))
            for suspect in found:
                if suspect in again and suspect[1] not in known:
                    kind, subject, detail = suspect
                    self.report.add(kind, subject, detail)

    def _suspects(self, prefix: str) -> Iterator[tuple[FindingKind, str, str]]:
        stored = self._client.stored(prefix)
        for key, size, state in zip(stored.keys, stored.sizes, stored.states, strict=True):
            if state == STORED_LIVE and size < 0:
                yield FindingKind.MISSING, key, "runs name it, it is not in the store"
            elif state == STORED_UNKNOWN:
                yield FindingKind.ORPHAN, key, "nothing names it; it is deleted in time"


def _weight(item: ObjectItem) -> int:
    return sum(run.due.run.length for run in item.runs)


def _named(
    page: RunPage, partitions: dict[tuple[str, int], _Partition]
) -> Iterator[tuple[_Partition, NamedRun, int]]:
    """The runs of a page with their partitions, and the index of their object. Topics that were
    made since are left out: nothing was asked about them."""
    rows = page.rows
    # An agent of an older release says no sums.
    sums = page.sums or [-1] * (len(rows) // RUN_FIELDS)
    for at, number in zip(range(0, len(rows), RUN_FIELDS), sums, strict=True):
        place, base, end, index, position, length, newest, batches = rows[at : at + RUN_FIELDS]
        partition = partitions.get(tuple(page.partitions[place]))  # type: ignore[arg-type]
        if partition is None:
            continue
        run = StoredRun(
            _ANY_KEY,
            base,
            end,
            generation=0,
            object_key=page.object_keys[index] if index != _IN_WAL else "",
            position=position,
            length=length,
            max_timestamp=newest,
            batch_count=batches,
            raw=page.object_raw[index] if index != _IN_WAL else 0,
            leader_epoch=page.object_raw[index] - 1 if index != _IN_WAL else 0,
            sum=None if number == -1 else number,
        )
        yield (
            partition,
            NamedRun(partition.topic.topic_id, partition.number, _due(partition, run)),
            index,
        )


def _due(partition: _Partition, run: StoredRun) -> DueRun:
    topic_id = bytes.fromhex(partition.topic.topic_id)
    return DueRun(
        run,
        partition.clean_end,
        tuple(partition.state.epoch_starts) or FIRST_EPOCH,
        partition_seed(topic_id, partition.number),
        partition.name,
    )
