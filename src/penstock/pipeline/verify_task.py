"""What an executor checks of a cluster: objects whole, and the batches that the journal names.

Its findings are plain values; whether what is missing is still named is the driver's to ask.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.log.checking import OTHERS
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.client import DoorClient, DoorOptions
from penstock.pipeline.objects import ObjectAccess
from penstock.records.batch import (
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    batch_bounds,
    crc_is_right,
    stored_header,
)
from penstock.records.sums import SUM_MASK, batch_sum, partition_seed
from penstock.recovery.verify import FindingKind, label_fault
from penstock.segment import (
    FOOTER_BYTES,
    IndexedRun,
    check_header,
    parse_footer,
    parse_index,
)
from penstock.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from penstock.state.leader_epochs import FIRST_EPOCH

PART_BYTES: Final = 8 << 20
_TAIL_BYTES: Final = 64 << 10


class NamedRun(msgspec.Struct, frozen=True, array_like=True):
    """A run as the journal names it. `clean_end`: compacted by key below it, so that
    offsets may be missing there. `epoch_starts`: of its partition, see `PartitionState`. `sum`: of
    its batches, -1: not known. `leader_epoch`: of batches whose headers aren't final."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    end_offset: int
    position: int
    length: int
    batch_count: int
    clean_end: int = -1
    epoch_starts: tuple[tuple[int, int], ...] = ()
    sum: int = -1
    leader_epoch: int = -1


class ObjectItem(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and its runs by position. Holds no secret: it goes to executors."""

    door: DoorOptions
    key: str
    size_bytes: int
    raw: bool
    origin: str
    runs: list[NamedRun]


class WalItem(msgspec.Struct, frozen=True, kw_only=True):
    """A run that lies in an agent's WAL; `position` and `length` mean nothing."""

    door: DoorOptions
    run: NamedRun


Found = tuple[str, str, str]
"""Kind, subject, detail."""


class Checked(msgspec.Struct, kw_only=True):
    """What was read, and what was found. `gone`: the object isn't there, or the WAL's records."""

    runs: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    objects: int = 0
    gone: str = ""
    findings: list[Found] = []

    def add(self, kind: FindingKind, subject: str, detail: str) -> None:
        """Take note of a finding."""
        self.findings.append((kind.value, subject, detail))


def check_item(item: ObjectItem | WalItem) -> Checked:
    """Check one of either kind.

    Raises:
        RetryableError: agents or store don't answer.
    """
    with DoorClient(item.door) as client, ObjectAccess(client) as objects:
        if isinstance(item, WalItem):
            return _check_wal(client, item)
        return _check_object(objects, item)


# -- objects ---------------------------------------------------------------------------------------


def _check_object(objects: ObjectAccess, item: ObjectItem) -> Checked:
    checked = Checked(objects=1)
    try:
        indexed = _index(objects, item)
        for run in item.runs:
            _check_run(objects, item, run, indexed, checked)
    except NotFoundError as error:
        checked.gone = error.detail
    except CorruptDataError as error:
        checked.add(FindingKind.DAMAGED, error.subject, error.detail)
    return checked


def _index(objects: ObjectAccess, item: ObjectItem) -> tuple[IndexedRun, ...]:
    """Raises: CorruptDataError, NotFoundError."""
    key, size_bytes, origin = item.key, item.size_bytes, item.origin
    head = objects.get_range(key, 0, SEGMENT_HEADER_BYTES, origin=origin)
    check_header(head, subject=key)
    tail_from = max(0, size_bytes - _TAIL_BYTES)
    tail = objects.get_range(key, tail_from, size_bytes, origin=origin)
    footer = parse_footer(tail[-FOOTER_BYTES:], size_bytes=size_bytes, subject=key)
    if footer.offsets_final == item.raw:
        raise CorruptDataError(
            "verify", key, "footer and journal differ on whether its offsets are final"
        )
    start = footer.index_position
    end = start + footer.index_length
    block = (
        tail[start - tail_from : end - tail_from]
        if start >= tail_from
        else objects.get_range(key, start, end, origin=origin)
    )
    return parse_index(block, footer, subject=key)


def _check_run(
    objects: ObjectAccess,
    item: ObjectItem,
    run: NamedRun,
    indexed: tuple[IndexedRun, ...],
    checked: Checked,
) -> None:
    subject = _subject(run, item.key)
    end = run.position + run.length
    found = next(
        (one for one in indexed if one.position <= run.position < one.position + one.length), None
    )
    if found is None or end > found.position + found.length:
        checked.add(
            FindingKind.DAMAGED, subject, f"its index has no run at bytes {run.position} to {end}"
        )
        return
    if (found.topic_id.hex(), found.partition) != (run.topic_id, run.partition):
        checked.add(
            FindingKind.DAMAGED,
            subject,
            f"its index says partition {found.partition} of topic {found.topic_id.hex()}",
        )
        return
    walk = _Walk(run, subject, checked, raw=item.raw)
    for batch in _batches(objects, item, run):
        if not walk.take(batch):
            return
    walk.end()
    checked.runs += 1


def _batches(objects: ObjectAccess, item: ObjectItem, run: NamedRun) -> Iterator[memoryview]:
    """The batches of a run, a few MB in memory at a time; the last one may be cut short."""
    position, end = run.position, run.position + run.length
    left = b""
    while position < end:
        read_end = min(position + PART_BYTES, end)
        data = memoryview(
            left + objects.get_range(item.key, position, read_end, origin=item.origin)
        )
        position = read_end
        at = 0
        while len(data) - at >= HEADER_BYTES:
            _, size = batch_bounds(data, at)
            if size < HEADER_BYTES or size > len(data) - at:
                break
            yield data[at : at + size]
            at += size
        left = bytes(data[at:])
        if len(left) >= HEADER_BYTES and not HEADER_BYTES <= batch_bounds(left, 0)[1] <= run.length:
            break
    if left:
        yield memoryview(left)


class _Walk:
    """Goes through a run's batches in order."""

    def __init__(self, run: NamedRun, subject: str, checked: Checked, *, raw: bool) -> None:
        self._run = run
        self._subject = subject
        self._checked = checked
        self._raw = raw
        self._expected = run.base_offset
        self._position = run.position
        self._batches = 0
        self._skipped_to = run.base_offset
        self._seed = partition_seed(bytes.fromhex(run.topic_id), run.partition)
        self._sum = 0

    def skip_to(self, offset: int) -> None:
        """The next batch is the one that holds `offset`, wherever it begins."""
        self._skipped_to = offset

    def take(self, batch: memoryview) -> bool:
        """Returns: false if it is damaged, so that what follows can't be told."""
        fault = self._fault(batch)
        if fault:
            self._checked.add(
                FindingKind.DAMAGED, self._subject, f"{fault} at byte {self._position}"
            )
            return False
        header = stored_header(batch, 0)
        base = self._expected if self._raw else header.base_offset
        epoch = self._run.leader_epoch if self._raw else header.leader_epoch
        self._sum += batch_sum(self._seed, base, epoch, header.crc, header.length)
        self._expected = base + header.end_offset - header.base_offset
        self._position += header.length
        self._batches += 1
        self._checked.batches += 1
        self._checked.records += header.record_count
        self._checked.bytes += header.length
        return True

    def end(self) -> None:
        """Compare with what the journal names."""
        run = self._run
        if self._batches != run.batch_count:
            self._checked.add(
                FindingKind.DAMAGED,
                self._subject,
                f"{self._batches} batches, the journal names {run.batch_count}",
            )
        elif self._expected != run.end_offset and not (
            self._expected < run.end_offset <= run.clean_end
        ):
            self._checked.add(
                FindingKind.DAMAGED,
                self._subject,
                f"its batches end at offset {self._expected - 1}",
            )
        elif run.sum not in {-1, self._sum & SUM_MASK}:
            self._checked.add(
                FindingKind.DAMAGED, self._subject, f"{OTHERS}, at byte {run.position}"
            )

    def _fault(self, batch: memoryview) -> str:
        if len(batch) < HEADER_BYTES:
            return f"{len(batch)} bytes are no batch"
        header = stored_header(batch, 0)
        if header.magic != MAGIC or header.length != len(batch):
            return f"a batch of magic {header.magic} with {header.length} bytes"
        if not crc_is_right(batch):
            return "CRC-32C differs"
        is_clean = self._run.clean_end > self._expected
        span = header.end_offset - header.base_offset
        if span <= 0 or header.record_count > span:
            return f"{header.record_count} records in {span} offsets"
        if not self._raw:
            if header.base_offset < self._expected or header.end_offset > self._run.end_offset:
                return f"base offset {header.base_offset} where {self._expected} is due"
            may_lack_before = max(self._run.clean_end, self._skipped_to)
            if header.base_offset > max(self._expected, may_lack_before):
                return f"base offset {header.base_offset} where {self._expected} is due"
            if fault := label_fault(header, self._run.epoch_starts or FIRST_EPOCH):
                return fault
        # An import that keeps offsets writes such batches too, without a producer.
        if header.record_count < span and not is_clean and header.producer_id >= 0:
            return f"{header.record_count} records in {span} offsets"
        return ""


# -- WALs ------------------------------------------------------------------------------------------


def _check_wal(client: DoorClient, item: WalItem) -> Checked:
    run = item.run
    checked = Checked()
    subject = _subject(run, "a WAL")
    walk = _Walk(run, subject, checked, raw=False)
    offset = run.base_offset
    while offset < run.end_offset:
        try:
            body, following = client.records(
                run.topic_id, run.partition, offset, run.end_offset, bytes_max=PART_BYTES
            )
        except NotFoundError as error:
            log_start = _log_start(client, run)
            if not offset < log_start < run.end_offset:
                checked.gone = error.detail
                return checked
            # DeleteRecords leaves the run whole: what lies behind the log's start is there.
            offset = log_start
            walk.skip_to(log_start)
            continue
        view = memoryview(body)
        at = 0
        while at < len(view):
            size = _size(view[at:])
            batch = view[at : at + size]
            if stored_header(batch, 0).base_offset >= run.end_offset:
                break
            if not walk.take(batch):
                return checked
            at += size
        offset = max(following, offset + 1)
    checked.runs += 1
    return checked


def _log_start(client: DoorClient, run: NamedRun) -> int:
    """Where a run's log begins now; -1: its partition is gone."""
    found = client.topics(topic_ids=[run.topic_id]).topics
    if not found or run.partition >= len(found[0].partitions):
        return -1
    return found[0].partitions[run.partition].log_start


def _size(view: memoryview) -> int:
    if len(view) < HEADER_BYTES:
        return len(view)
    return max(HEADER_BYTES, LENGTH_END + int.from_bytes(view[8:12], "big", signed=True))


def _subject(run: NamedRun, place: str) -> str:
    return (
        f"{run.topic}-{run.partition} offsets {run.base_offset} to {run.end_offset - 1} in {place}"
    )
