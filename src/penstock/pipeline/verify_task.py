"""Check a part of a cluster in an executor: whole objects, and the batches that the journal names.

Its findings are plain values; whether what is missing is still named is the driver's to ask.
"""

from functools import partial
from typing import Final

import msgspec

from penstock.log.checking import Fault
from penstock.log.run_walk import DueRun, RunWalk
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.objects import ObjectAccess
from penstock.records.batch import HEADER_BYTES, stored_header
from penstock.recovery.verify import FindingKind
from penstock.segment import IndexedRun, ask_index, read_index

PART_BYTES: Final = 8 << 20


class NamedRun(msgspec.Struct, frozen=True, array_like=True):
    """A run as the journal names it, and the partition that agents are asked for."""

    topic_id: str
    partition: int
    due: DueRun


class ObjectItem(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and its runs by position. Holds no secret: it goes to executors."""

    api: ClientOptions
    key: str
    size_bytes: int
    raw: bool
    origin: str
    runs: list[NamedRun]


class WalItem(msgspec.Struct, frozen=True, kw_only=True):
    """A run that lies in an agent's WAL; `position` and `length` mean nothing."""

    api: ClientOptions
    run: NamedRun


Found = tuple[str, str, str]
"""Kind, subject, detail."""


class Checked(msgspec.Struct, kw_only=True):
    """The result of reading an item. `gone`: the object is missing, or the WAL's records are."""

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

    def take(self, walk: RunWalk, fault: Fault | None, subject: str) -> None:
        """Count what a walk found right in a run, and note its fault."""
        self.batches += walk.batches
        self.records += walk.records
        self.bytes += walk.bytes
        if fault is not None:
            detail = f"{fault.detail}, at byte {fault.position}"
            self.add(FindingKind.DAMAGED, subject, detail)


def check_item(item: ObjectItem | WalItem) -> Checked:
    """Check one of either kind.

    Raises:
        RetryableError: agents or store don't answer.
    """
    with PipelineClient(item.api) as client, ObjectAccess(client) as objects:
        if isinstance(item, WalItem):
            return _check_wal(client, item)
        return _check_object(objects, item)


# -- objects ---------------------------------------------------------------------------------------


def _check_object(objects: ObjectAccess, item: ObjectItem) -> Checked:
    checked = Checked(objects=1)
    try:
        indexed = read_index(
            ask_index(item.key, item.size_bytes, raw=item.raw),
            partial(objects.get_range, item.key, origin=item.origin),
        )
        for run in item.runs:
            _check_run(objects, item, run, indexed, checked)
    except NotFoundError as error:
        checked.gone = error.detail
    except CorruptDataError as error:
        checked.add(FindingKind.DAMAGED, error.subject, error.detail)
    return checked


def _check_run(
    objects: ObjectAccess,
    item: ObjectItem,
    run: NamedRun,
    indexed: tuple[IndexedRun, ...],
    checked: Checked,
) -> None:
    subject = _subject(run, item.key)
    position = run.due.run.position
    end = position + run.due.run.length
    found = next(
        (one for one in indexed if one.position <= position < one.position + one.length), None
    )
    if found is None or end > found.position + found.length:
        checked.add(
            FindingKind.DAMAGED, subject, f"its index has no run at bytes {position} to {end}"
        )
        return
    if (found.topic_id.hex(), found.partition) != (run.topic_id, run.partition):
        checked.add(
            FindingKind.DAMAGED,
            subject,
            f"its index says partition {found.partition} of topic {found.topic_id.hex()}",
        )
        return
    walk = RunWalk(run.due)
    checked.runs += 1
    for start in range(position, end, PART_BYTES):
        part = objects.get_range(item.key, start, min(start + PART_BYTES, end), origin=item.origin)
        walk.add(memoryview(part))
        if walk.fault is not None:
            break
    checked.take(walk, walk.end(), subject)


# -- WALs ------------------------------------------------------------------------------------------


def _check_wal(client: PipelineClient, item: WalItem) -> Checked:
    run = item.run
    checked = Checked()
    subject = _subject(run, "a WAL")
    end_offset = run.due.run.end_offset
    walk: RunWalk | None = None
    offset = run.due.run.base_offset
    while offset < end_offset:
        try:
            body, following = client.records(
                run.topic_id, run.partition, offset, end_offset, bytes_max=PART_BYTES
            )
        except NotFoundError as error:
            log_start = _log_start(client, run)
            if not offset < log_start < end_offset:
                checked.gone = error.detail
                break
            # DeleteRecords leaves the run whole: what follows the log's start is there.
            if walk is not None:
                checked.take(walk, None, subject)
            offset, walk = log_start, None
            continue
        view = memoryview(body)
        if walk is None:
            walk = _from_within(run.due, view, offset)
        walk.add(_before(view, end_offset))
        if walk.fault is not None:
            break
        offset = max(following, offset + 1)
    else:
        checked.runs += 1
    if walk is not None:
        # Not compared with the row: by now the run may have been joined, trimmed or cleaned.
        checked.take(walk, walk.fault, subject)
    return checked


def _from_within(due: DueRun, view: memoryview, offset: int) -> RunWalk:
    """Walk from the batch that holds `offset` on, wherever it begins."""
    first = stored_header(view, 0).base_offset if len(view) >= HEADER_BYTES else offset
    begin = first if first <= max(offset, due.gap_end) else offset
    run = msgspec.structs.replace(due.run, base_offset=begin)
    return RunWalk(msgspec.structs.replace(due, run=run), is_final=True)


def _before(view: memoryview, end_offset: int) -> memoryview:
    """Leave out batches that begin at `end_offset` or later: an answer may hold one."""
    at = 0
    while len(view) - at >= HEADER_BYTES:
        header = stored_header(view, at)
        if header.base_offset >= end_offset:
            return view[:at]
        if header.length < HEADER_BYTES:
            break
        at += header.length
    return view


def _log_start(client: PipelineClient, run: NamedRun) -> int:
    """Return a run's present log start; -1: its partition is gone."""
    found = client.topics(topic_ids=[run.topic_id]).topics
    if not found or run.partition >= len(found[0].partitions):
        return -1
    return found[0].partitions[run.partition].log_start


def _subject(run: NamedRun, place: str) -> str:
    row = run.due.run
    return f"{run.due.partition} offsets {row.base_offset} to {row.end_offset - 1} in {place}"
