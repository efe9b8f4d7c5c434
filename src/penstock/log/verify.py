"""Verify: read everything a data directory holds and say what is not as it must be.

Checked: every batch's CRC and header; offsets of each partition without gap or overlap from the
log start to the high watermark; every segment's index and footer; no object missing, none that
nothing names; the SQLite file's own integrity. Reads only; runs beside a live server, where a
run that moves meanwhile is looked up again.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.log.fetch.reader import read_wal_run
from penstock.metadata.queries import Queries, StoredRun
from penstock.metadata.view import MetadataView, Topic
from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.model.ids import PartitionKey, partition_key
from penstock.ports.objects import ObjectStore
from penstock.records.batch import HEADER_BYTES, MAGIC, crc_is_right, stored_header
from penstock.segment import FOOTER_BYTES, parse_footer, parse_index
from penstock.wal import WalReader

_PAGE: Final = 1000
_ATTEMPTS: Final = 5
_SEGMENTS_PREFIX: Final = "segments/"


class FindingKind(enum.StrEnum):
    """What is wrong."""

    DAMAGED = "damaged"
    GAP = "gap"
    OVERLAP = "overlap"
    MISSING = "missing"
    ORPHAN = "orphan"
    DATABASE = "database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it must be. An orphan is not damage: it is deleted in time."""

    kind: FindingKind
    subject: str
    detail: str

    @property
    def is_damage(self) -> bool:
        """Whether acknowledged data is affected."""
        return self.kind is not FindingKind.ORPHAN


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was read and what was found."""

    topics: int = 0
    partitions: int = 0
    runs: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    objects: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No damage was found."""
        return not any(finding.is_damage for finding in self.findings)

    def add(self, kind: FindingKind, subject: str, detail: str) -> None:
        """Take note of a finding."""
        self.findings.append(Finding(kind=kind, subject=subject, detail=detail))


Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""


async def verify(
    *,
    queries: Queries,
    store: ObjectStore,
    wal: WalReader,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read everything.

    Args:
        queries: of the data directory's metadata.
        progress: told now and then how far it is.
    """
    report = VerifyReport()
    for problem in queries.integrity_problems():
        report.add(FindingKind.DATABASE, "metadata", problem)
    view = MetadataView.load(queries)
    total = sum(queries.partition_bytes(None).values())
    tell = progress or _silent
    for topic in view.topics():
        report.topics += 1
        for number in range(topic.partitions):
            report.partitions += 1
            await _verify_partition(
                report, queries, store, wal, view, topic, number, lambda: tell(report.bytes, total)
            )
    await _verify_objects(report, queries, store)
    return report


def _silent(read_bytes: int, total_bytes: int) -> None:
    pass


async def _verify_partition(
    report: VerifyReport,
    queries: Queries,
    store: ObjectStore,
    wal: WalReader,
    view: MetadataView,
    topic: Topic,
    number: int,
    tell: Callable[[], None],
) -> None:
    key = partition_key(topic.topic_key, number)
    name = f"{topic.name}-{number}"
    head = view.head(key)
    if head is None:
        report.add(FindingKind.DATABASE, name, "the partition has no row")
        return
    expected = head.log_start
    while expected < head.next_offset:
        runs = queries.runs_from(key, expected, limit=_PAGE)
        runs = [run for run in runs if run.base_offset < head.next_offset]
        if not runs:
            report.add(
                FindingKind.GAP, name, f"offsets {expected} to {head.next_offset - 1} have no run"
            )
            return
        for run in runs:
            if run.base_offset > expected:
                report.add(
                    FindingKind.GAP,
                    name,
                    f"offsets {expected} to {run.base_offset - 1} are missing",
                )
            elif run.base_offset < expected and expected != head.log_start:
                report.add(
                    FindingKind.OVERLAP, name, f"offset {run.base_offset} where {expected} is due"
                )
            await _verify_run(report, queries, store, wal, key, name, run)
            expected = run.end_offset
            tell()


async def _verify_run(
    report: VerifyReport,
    queries: Queries,
    store: ObjectStore,
    wal: WalReader,
    key: PartitionKey,
    name: str,
    run: StoredRun,
) -> None:
    report.runs += 1
    place = f"WAL generation {run.generation}" if run.generation else run.object_key
    subject = f"{name} offsets {run.base_offset} to {run.end_offset - 1} in {place}"
    try:
        data, run = await _read_run(queries, store, wal, key, run)
    except NotFoundError as error:
        report.add(FindingKind.MISSING, subject, str(error))
        return
    except CorruptDataError as error:
        report.add(FindingKind.DAMAGED, subject, str(error))
        return
    report.bytes += len(data)
    position, expected = 0, run.base_offset
    while position < len(data):
        fault = _batch_fault(data, position, expected)
        if fault:
            report.add(FindingKind.DAMAGED, subject, f"{fault} at byte {run.position + position}")
            return
        header = stored_header(data, position)
        report.batches += 1
        report.records += header.record_count
        expected = header.end_offset
        position += header.length
    if expected != run.end_offset:
        report.add(
            FindingKind.DAMAGED, subject, f"records end at offset {expected - 1}, not as journaled"
        )


def _batch_fault(data: memoryview, position: int, expected: int) -> str:
    if len(data) - position < HEADER_BYTES:
        return f"{len(data) - position} bytes are no batch"
    header = stored_header(data, position)
    if header.magic != MAGIC or not HEADER_BYTES <= header.length <= len(data) - position:
        return f"batch of magic {header.magic} with {header.length} bytes"
    if header.base_offset != expected:
        return f"base offset {header.base_offset} where {expected} is due"
    if not crc_is_right(data[position : position + header.length]):
        return "CRC-32C differs"
    return ""


async def _read_run(
    queries: Queries, store: ObjectStore, wal: WalReader, key: PartitionKey, run: StoredRun
) -> tuple[memoryview, StoredRun]:
    """A run's bytes; looked up again where a live server moved it meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            if run.generation:
                return read_wal_run(wal, run), run
            data = await store.get_range(run.object_key, run.position, run.position + run.length)
            return memoryview(data), run
        except (RetryableError, NotFoundError):
            if attempt == _ATTEMPTS - 1:
                raise
            found = queries.runs_from(key, run.base_offset, limit=1)
            if not found or found[0].base_offset != run.base_offset:
                raise
            run = found[0]
    raise AssertionError("unreachable")


async def _verify_objects(report: VerifyReport, queries: Queries, store: ObjectStore) -> None:
    stored = {info.key: info.size_bytes async for info in store.list(_SEGMENTS_PREFIX)}
    after = ""
    named: set[str] = set()
    while page := queries.objects(after, limit=_PAGE):
        for row in page:
            named.add(row.key)
            if row.condemned_ms is not None:
                continue
            report.objects += 1
            if row.key not in stored:
                report.add(FindingKind.MISSING, row.key, "named by the journal, not in the store")
                continue
            if stored[row.key] != row.size_bytes:
                report.add(
                    FindingKind.DAMAGED,
                    row.key,
                    f"{stored[row.key]} bytes, the journal says {row.size_bytes}",
                )
                continue
            await _verify_index(report, store, row.key, row.size_bytes)
        after = page[-1].key
    for key in stored.keys() - named:
        report.add(FindingKind.ORPHAN, key, "nothing names it; it is deleted after the grace")


async def _verify_index(
    report: VerifyReport, store: ObjectStore, key: str, size_bytes: int
) -> None:
    try:
        tail = bytes(await store.get_range(key, max(0, size_bytes - FOOTER_BYTES), size_bytes))
        footer = parse_footer(tail, size_bytes=size_bytes, subject=key)
        block = await store.get_range(
            key, footer.index_position, footer.index_position + footer.index_length
        )
        parse_index(bytes(block), footer, subject=key)
    except CorruptDataError as error:
        report.add(FindingKind.DAMAGED, key, str(error))
