"""Verifying reads everything in a data directory, and reports what is damaged or missing.

First the state is checked, as of one moment: SQLite's own integrity; each partition's offsets,
which have no overlap from the log start to the high watermark, and gaps only where compaction by
key leaves them; and the sums that the state keeps. Then the bytes are read: every run's batches
(CRC-32C, header, offsets, and the state's sum over the run, which reveals batches from another
place), every WAL frame that the state names, walked as recovery would walk it, and every segment's
header, index and footer. Last the store is listed: no object is missing, and none is unknown to the
state.

Verifying only reads, and needs no lock: runs that a live server moves meanwhile are looked up
    again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.log.opening.rebuild import NOT_OURS
from penstock.log.run_walk import DueRun, RunWalk
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.model.ids import PARTITION_COUNT_MAX, PartitionKey, TopicKey, partition_key
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.records.sums import partition_seed
from penstock.recovery.verify_journal import verify_tail
from penstock.recovery.verify_report import Finding, FindingKind, VerifyReport
from penstock.segment import ask_index
from penstock.state.leader_epochs import FIRST_EPOCH, EpochStart
from penstock.state.read.queries import ObjectRow, Queries, StoredRun
from penstock.state.rows import GENERATION_BITS, GENERATION_MASK
from penstock.state.transactions import is_marker, marker_bytes
from penstock.wal import WalReader
from penstock.wal.recovery import check_named, find_files

__all__ = ["Finding", "FindingKind", "VerifyReport", "verify"]

_PAGE: Final = 1000
_ATTEMPTS: Final = 20
_SEGMENTS_PREFIX: Final = "segments/"


Progress = Callable[[int, int], None]
"""A function that is called with the bytes read so far and the bytes in all."""

FindWal = Callable[[int], Device | None]
"""A function that returns the directory of a WAL, by the WAL's key."""


async def verify(
    *,
    queries: Queries,
    store: ObjectStore,
    wal: WalReader | None,
    device: Device | None,
    find_wal: FindWal | None = None,
    progress: Progress | None = None,
    report: VerifyReport | None = None,
    archived_ms: int | None = None,
) -> VerifyReport:
    """Read everything.

    Args:
        queries: queries of the data directory's state, or of a cluster's replica.
        wal, device: the data directory, whose WAL files are walked; None for a cluster, where only
            agents have WALs: runs in them are counted, not read.
        find_wal: gives the directories of the host's other workers, by their WALs' keys.
        progress: called at intervals with the progress.
        report: gets the findings; None: a new report.
        archived_ms: the state's journal time, if the state is that of the archive's end and the
            journal may have gone on: younger objects are counted, and not taken for orphans. None:
            the state is that of the journal's head.
    """
    verifier = _Verifier(queries, store, wal, device, find_wal, progress or _silent)
    verifier.report = report or verifier.report
    verifier.archived_ms = archived_ms
    try:
        return await verifier.run()
    finally:
        verifier.close()


def _silent(read_bytes: int, total_bytes: int) -> None:
    pass


_NAMED_AFTER_MS: Final = 60_000
"""An entry may name an object up to this long after it was stored, by the store's clock."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Offsets [start, end) of a partition, which must be there."""

    key: PartitionKey
    name: str
    start: int
    end: int
    clean_end: int
    """Offsets below this are compacted by key: runs may have gaps, and batches fewer records than
    offsets."""
    epoch_starts: tuple[EpochStart, ...]
    seed: int
    """The start value of the sums of the partition's runs (`penstock.records.sums`)."""


class _Verifier:
    def __init__(
        self,
        queries: Queries,
        store: ObjectStore,
        wal: WalReader | None,
        device: Device | None,
        find_wal: FindWal | None,
        progress: Progress,
    ) -> None:
        self._queries = queries
        self._store = store
        self._device = device
        self._find_wal = find_wal
        self._wals: dict[int, WalReader] = {} if wal is None else {0: wal}
        self._opened: list[WalReader] = []
        self._progress = progress
        self._total_bytes = 0
        self.report = VerifyReport()
        self.archived_ms: int | None = None

    async def run(self) -> VerifyReport:
        try:
            stretches = self._check_state()
            for stretch in stretches:
                await self._check_bytes(stretch)
            if self._device is not None:
                for wal_key in [0, *(wal.wal_key for wal in self._queries.wals())]:
                    for place in sorted(self._queries.wal_generations(wal_key)):
                        self._check_frames(wal_key, place)
                verify_tail(self.report, self._device, self._queries.position)
            await self._check_objects()
        except PenstockError as error:
            # Damaged pages of the database end the check, since only the database says what to
            # check.
            self.report.add(FindingKind.DATABASE, error.subject, error.detail)
        except NOT_OURS as error:
            # The rows are not this program's, and the directory has no journal.
            self.report.add(
                FindingKind.DATABASE, str(self._queries.path), f"{type(error).__name__}: {error}"
            )
        return self.report

    def close(self) -> None:
        """Close the connections that this object has opened."""
        for reader in self._opened:
            reader.close()

    # -- the state, as of one moment -------------------------------------------------------------

    def _check_state(self) -> list[_Stretch]:
        report, queries = self.report, self._queries
        for problem in queries.integrity_problems():
            report.add(FindingKind.DATABASE, str(queries.path), problem)
        queries.begin()
        try:
            sizes = queries.partition_bytes(None)
            heads = {key: (start, end) for key, start, end in queries.heads()}
            clean = queries.clean_rows(list(heads))
            epochs = queries.epoch_starts()
            self._total_bytes = sum(sizes.values())
            # Rows of deleted topics count in their objects until an entry clears them.
            live_runs = Counter(queries.leftover_runs() if queries.has_leftovers() else {})
            stretches = []
            for topic_key, topic_id, name, partitions, *_ in queries.topic_rows():
                report.topics += 1
                for number in range(min(partitions, PARTITION_COUNT_MAX)):
                    key = partition_key(TopicKey(topic_key), number)
                    head = heads.pop(key, None)
                    if head is None:
                        report.add(
                            FindingKind.DATABASE, f"{name}-{number}", "the partition has no row"
                        )
                        continue
                    report.partitions += 1
                    clean_end = clean[key].clean_end if key in clean else -1
                    stretch = _Stretch(
                        key,
                        f"{name}-{number}",
                        *head,
                        clean_end,
                        epochs.get(key, FIRST_EPOCH),
                        partition_seed(topic_id, number),
                    )
                    stretches.append(stretch)
                    self._check_offsets(stretch, sizes[key], live_runs)
            for key in heads:
                report.add(FindingKind.DATABASE, f"partition key {key}", "its topic has no row")
            for row in self._object_rows():
                if row.live_runs != live_runs[row.key]:
                    report.add(
                        FindingKind.DATABASE,
                        row.key,
                        f"{live_runs[row.key]} runs name it, its row counts {row.live_runs}",
                    )
        finally:
            queries.end()
        return stretches

    def _check_offsets(self, stretch: _Stretch, size: int, live_runs: Counter[str]) -> None:
        """Check one partition's runs: each begins where the run before ends, or later in compacted
        offsets, and their bytes add up to the partition's size."""
        report, name = self.report, stretch.name
        expected, length, is_first = stretch.start, 0, True
        # Ends of losses that were accepted, by the offsets at which they begin.
        lost = dict(self._queries.lost_ranges_of(stretch.key))
        report.lost_offsets += sum(
            max(0, end - max(start, stretch.start)) for start, end in lost.items()
        )
        for run in self._runs(stretch):
            if run.end_offset <= stretch.start:
                # The run lies below the log start; a later entry clears its row.
                length += run.length
                if run.object_key:
                    live_runs[run.object_key] += 1
                continue
            while expected < run.base_offset and expected in lost:
                expected = lost[expected]
            if run.base_offset > max(expected, stretch.clean_end):
                report.add(
                    FindingKind.GAP,
                    name,
                    f"offsets {expected} to {run.base_offset - 1} have no run",
                )
            # The first run may begin before the log start, which trims whole runs only.
            if run.base_offset < expected and not (is_first and run.end_offset > expected):
                report.add(
                    FindingKind.OVERLAP,
                    name,
                    f"a run begins at offset {run.base_offset} where {expected} is due",
                )
            expected, is_first = max(expected, run.end_offset), False
            length += run.length
            if run.object_key:
                live_runs[run.object_key] += 1
        while expected < stretch.end and expected in lost:
            expected = lost[expected]
        if expected < stretch.end:
            report.add(
                FindingKind.GAP, name, f"offsets {expected} to {stretch.end - 1} have no run"
            )
        elif expected > stretch.end:
            report.add(
                FindingKind.DATABASE,
                name,
                f"runs go up to offset {expected}, the high watermark is {stretch.end}",
            )
        if length != size:
            report.add(
                FindingKind.DATABASE, name, f"its runs have {length} bytes, its row says {size}"
            )

    def _runs(self, stretch: _Stretch) -> Iterator[StoredRun]:
        """All runs of a partition by base offset, those that overlap too."""
        page = self._queries.runs_from(stretch.key, 0, limit=_PAGE)
        while page:
            yield from page
            last = page[-1].base_offset
            # The next page begins at the last run's base, not at its end, so that a run inside it
            # is found.
            again = self._queries.runs_from(stretch.key, last, limit=_PAGE)
            page = [run for run in again if run.base_offset > last]

    def _object_rows(self) -> Iterator[ObjectRow]:
        after = ""
        while page := self._queries.objects(after, limit=_PAGE):
            yield from page
            after = page[-1].key

    # -- the bytes -------------------------------------------------------------------------------

    async def _check_bytes(self, stretch: _Stretch) -> None:
        """Check every batch of a stretch; runs may be moved or trimmed meanwhile."""
        expected, attempts = stretch.start, 0
        while expected < stretch.end:
            runs = self._queries.runs_from(stretch.key, expected, limit=_PAGE)
            if not runs or runs[0].base_offset >= stretch.end:
                return  # trimmed or deleted meanwhile; a gap has been reported
            for run in runs:
                if run.base_offset >= stretch.end:
                    return
                if not await self._check_run(stretch, run, expected, attempts):
                    attempts += 1
                    break
                expected, attempts = max(expected, run.end_offset), 0
                self._progress(min(self.report.bytes, self._total_bytes), self._total_bytes)

    async def _check_run(
        self, stretch: _Stretch, run: StoredRun, start: int, attempts: int
    ) -> bool:
        """Check a run; return False if it has moved and must be looked up again.

        Args:
            start: offsets below this have been checked. A run that was joined from several may
                begin below it.
        """
        if run.generation > 0 and self._device is None:
            self.report.unread_runs += 1
            return True
        place = _place_of(run)
        subject = f"{stretch.name} offsets {run.base_offset} to {run.end_offset - 1} in {place}"
        try:
            data = await self._read(run)
        except (RetryableError, NotFoundError) as error:
            if attempts < _ATTEMPTS and self._has_moved(run):
                return False
            self.report.add(FindingKind.MISSING, subject, error.detail)
            return True
        except CorruptDataError as error:
            self.report.add(FindingKind.DAMAGED, subject, f"{error.subject}: {error.detail}")
            return True
        walk = _walk(stretch, run, stretch.clean_end, start, data)
        if walk.fault is not None:
            # A live server may have compacted the partition since.
            clean = self._queries.clean_rows([stretch.key]).get(stretch.key)
            if clean is not None and clean.clean_end > stretch.clean_end:
                walk = _walk(stretch, run, clean.clean_end, start, data)
        report, fault = self.report, walk.fault
        report.runs += 1
        report.batches += walk.batches
        report.records += walk.records
        report.bytes += walk.bytes
        if fault is not None:
            report.add(FindingKind.DAMAGED, subject, f"{fault.detail}, at byte {fault.position}")
        return True

    async def _read(self, run: StoredRun) -> memoryview:
        """Read the run's stored bytes."""
        if is_marker(run.generation):
            return marker_bytes(run)
        if run.generation:
            wal = self._wal_of(run.wal_key)
            return memoryview(wal.read(run.file_generation, run.position, run.length))
        end = run.position + run.length
        return memoryview(await self._store.get_range(run.object_key, run.position, end))

    def _has_moved(self, run: StoredRun) -> bool:
        return run not in self._queries.runs_from(run.partition_key, run.base_offset, limit=1)

    # -- the WAL's frames ------------------------------------------------------------------------

    def _device_of(self, wal_key: int) -> Device | None:
        if wal_key == 0:
            return self._device
        return self._find_wal(wal_key) if self._find_wal is not None else None

    def _wal_of(self, wal_key: int) -> WalReader:
        """Raises: NotFoundError."""
        reader = self._wals.get(wal_key)
        if reader is None:
            device = self._device_of(wal_key)
            if device is None:
                raise NotFoundError("read WAL", f"WAL {wal_key}", "no worker's directory holds it")
            reader = self._wals[wal_key] = WalReader(device)
            self._opened.append(reader)
        return reader

    def _check_frames(self, wal_key: int, place: int) -> None:
        """Walk a file up to its last named byte, as recovery would at the next start."""
        subject, generation = _wal_place(place), place & GENERATION_MASK
        for _ in range(_ATTEMPTS):
            named_end = self._named_end(wal_key, place)
            if not named_end:
                return  # all runs of the file have moved meanwhile
            try:
                device = self._device_of(wal_key)
                if device is None:
                    return  # its missing runs have been reported
                report = check_named(device, {generation: named_end}, find_files(device))
            except CorruptDataError as error:
                self.report.add(FindingKind.DAMAGED, error.subject, error.detail)
                return
            except FileNotFoundError:
                continue  # removed between the listing and the look
            if not self._named_end(wal_key, place):
                continue  # the file may have been recycled while it was read
            for stretch in report.damaged:
                if report.lost:
                    detail = "the journal names it, but no file has it"
                    self.report.add(FindingKind.MISSING, subject, detail)
                else:
                    name = f"{stretch.name} at byte {stretch.start}"
                    detail = f"{stretch.detail}; damaged up to byte {stretch.end - 1}"
                    self.report.add(FindingKind.DAMAGED, name, detail)
            return

    def _named_end(self, wal_key: int, place: int) -> int:
        return max(
            (
                run.position + run.length
                for run in self._queries.wal_runs(wal_key)
                if run.generation == place
            ),
            default=0,
        )

    # -- the store -------------------------------------------------------------------------------

    async def _check_objects(self) -> None:
        unnamed = {info.key: info.modified_ms async for info in self._store.list(_SEGMENTS_PREFIX)}
        for row in list(self._object_rows()):
            unnamed.pop(row.key, None)
            if row.condemned_ms is None and row.live_runs:
                self.report.objects += 1
                await self._check_object(row)
        for key in sorted(unnamed):
            # The journal may name an upload a moment later, and an object may be deleted meanwhile.
            if self._queries.object_known(key) or not await self._exists(key):
                continue
            if self.archived_ms is not None and unnamed[key] >= self.archived_ms - _NAMED_AFTER_MS:
                self.report.younger_objects += 1
            else:
                self.report.add(
                    FindingKind.ORPHAN,
                    key,
                    "the state doesn't name it; the server deletes it in time",
                )

    async def _check_object(self, row: ObjectRow) -> None:
        key, size_bytes = row.key, row.size_bytes
        try:
            found_bytes = await self._store.size(key)
            if found_bytes != size_bytes:
                raise CorruptDataError(
                    "verify", key, f"it has {found_bytes} bytes, the journal says {size_bytes}"
                )
            await self._read_index(row)
        except NotFoundError:
            if self._is_live(key):
                self.report.add(
                    FindingKind.MISSING, key, "runs name it, but the store doesn't have it"
                )
        except CorruptDataError as error:
            self.report.add(FindingKind.DAMAGED, error.subject, error.detail)

    async def _read_index(self, row: ObjectRow) -> None:
        asked = ask_index(row.key, row.size_bytes, raw=bool(row.raw))
        with suppress(StopIteration):
            start, end = next(asked)
            while True:
                start, end = asked.send(await self._store.get_range(row.key, start, end))

    def _is_live(self, key: str) -> bool:
        """Whether runs name an object now; a live server may have deleted the object since."""
        return any(row.key == key and row.live_runs for row in self._object_rows())

    async def _exists(self, key: str) -> bool:
        try:
            await self._store.size(key)
        except NotFoundError:
            return False
        return True


def _walk(
    stretch: _Stretch, run: StoredRun, clean_end: int, start: int, data: memoryview
) -> RunWalk:
    """Walk a run, and count the batches past `start`."""
    due = DueRun(run, clean_end, stretch.epoch_starts, stretch.seed, stretch.name)
    walk = RunWalk(due, counted_from=start)
    walk.add(data)
    walk.end()
    return walk


def _place_of(run: StoredRun) -> str:
    if is_marker(run.generation):
        return "a marker's row"
    return _wal_place(run.generation) if run.generation else run.object_key


def _wal_place(place: int) -> str:
    wal_key, generation = place >> GENERATION_BITS, place & GENERATION_MASK
    return f"WAL generation {generation}" + (f" of worker WAL {wal_key}" if wal_key else "")
