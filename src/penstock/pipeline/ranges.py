"""The records of a range of offsets, wherever they lie now.

Where runs lie is asked for at the start, and again whenever an object turns out to be gone:
compaction replaces objects, retention deletes them, and the WAL moves into them. After each listing
it is looked whether the topic is still there and the log still begins before what is wanted, so
that what is missing between two runs is what compaction by key left out, and nothing else.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.pipeline.api_messages import RUN_FIELDS, Range, RunPage
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.objects import ObjectAccess
from penstock.records.batch import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    batch_bounds,
    stored_header,
)
from penstock.records.sums import SUM_MASK, partition_seed
from penstock.segment import FOOTER_BYTES, parse_footer, parse_index

BYTES_MAX: Final = 8 << 20
ASKED_AGAIN_MAX: Final = 20
"""How often where runs lie is asked for without any progress in between."""
_INDEX_FROM_BYTES: Final = 4 << 20
"""A run is looked up in its object's index before its middle is read, if that far into it."""
_TAIL_BYTES: Final = 64 << 10
_WAL: Final = -1
_NEWEST: Final = 2**63 - 1


class LogTruncatedError(PenstockError):
    """The log begins later than what was wanted: retention, or a deletion of records, was faster.

    Args:
        topic_id: 32 hexadecimal digits.
        wanted: the first offset that was to be read.
        available: the first one that there is.
        hint: what its user can do about it.
    """

    def __init__(
        self, topic_id: str, partition: int, wanted: int, available: int, hint: str = ""
    ) -> None:
        super().__init__(
            "read",
            f"partition {partition} of topic {topic_id}",
            f"offset {wanted} is wanted, the log begins at {available}",
            hint,
        )
        self.topic_id = topic_id
        self.partition = partition
        self.wanted = wanted
        self.available = available

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.topic_id, self.partition, self.wanted, self.available, self.hint)
        return LogTruncatedError, fields


@dataclass(frozen=True, slots=True)
class RangePart:
    """Whole batches with final offsets, and the offset to go on at. Their CRCs aren't checked.

    Where a whole run is read, what its headers say is compared with the sum of the journal: so CRCs
    that are right prove the batches. A run that takes several parts is compared after its last.
    """

    body: bytes | bytearray | memoryview
    next_offset: int


class AbortedBatches:
    """The aborted transactions of one partition, as `RunPage.aborted` has them."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, int]]] = {}
        """Offsets [first record, marker) by producer id."""

    def add(self, flat: Sequence[int]) -> None:
        """Take note of further ones; the same may come again."""
        at = iter(flat)
        for _, producer_id, first, marker in zip(at, at, at, at, strict=True):
            known = self._of.setdefault(producer_id, [])
            if not known or known[-1] < (first, marker):
                known.append((first, marker))

    def holds(self, producer_id: int, attributes: int, base_offset: int) -> bool:
        """Whether a batch is of an aborted transaction."""
        if not attributes & TRANSACTIONAL or attributes & CONTROL:
            return False
        known = self._of.get(producer_id)
        if known is None:
            return False
        # Transactions of one producer follow one another.
        at = bisect_right(known, (base_offset, _NEWEST)) - 1
        return at >= 0 and base_offset < known[at][1]

    def left_out(self, part: RangePart) -> RangePart:
        """Return a part without the batches that are aborted."""
        if not self._of:
            return part
        view = memoryview(part.body)
        kept: list[memoryview] = []
        start = position = 0
        while position < len(view):
            header = stored_header(view, position)
            end = position + header.length
            if self.holds(header.producer_id, header.attributes, header.base_offset):
                kept.append(view[start:position])
                start = end
            position = end
        if not start:
            return part
        kept.append(view[start:])
        return RangePart(b"".join(kept), part.next_offset)


class _Run(NamedTuple):
    base_offset: int
    end_offset: int
    object_key: str
    """"": in a WAL."""
    object_bytes: int
    raw: int
    """See `penstock.pipeline.api_messages.RunPage.object_raw`."""
    origin: str
    position: int
    length: int
    sum: int
    """See `penstock.pipeline.api_messages.RunPage.sums`."""


def read_range(
    client: PipelineClient, objects: ObjectAccess, wanted: Range, *, bytes_max: int = BYTES_MAX
) -> Iterator[RangePart]:
    """All batches that hold offsets of `wanted`, in order, in parts of about `bytes_max`.

    The first and the last batch may begin before `wanted.start` and end after `wanted.end`, which
    must not be past the high watermark. Between batches, and at either end, offsets may be missing
    that compaction by key left out. A client that reads committed records gets no aborted batch.

    Raises:
        LogTruncatedError: the log starts after `wanted.start`, or after what has been read.
        NotFoundError: the topic or partition was deleted.
        CorruptDataError: stored bytes aren't what the journal names.
        RetryableError: agents or store don't answer, or a WAL's agent is away.
    """
    offset = wanted.start
    asked_again = 0
    while offset < wanted.end:
        before = offset
        try:
            for part in _read_planned(client, objects, wanted, offset, bytes_max):
                offset = part.next_offset
                if part.body:
                    yield part
            return
        except _GoneError as gone:
            asked_again = asked_again + 1 if offset == before else 0
            if asked_again > ASKED_AGAIN_MAX:
                raise RetryableError(
                    "read",
                    f"partition {wanted.partition} of topic {wanted.topic_id}",
                    f"at offset {offset} what is named isn't there: {gone.cause}",
                ) from gone.cause
            client.rest(asked_again)


class _GoneError(Exception):
    """An object or a run isn't where it was a moment ago."""

    def __init__(self, cause: PenstockError) -> None:
        super().__init__(cause)
        self.cause = cause


def _check_start(client: PipelineClient, wanted: Range, offset: int) -> None:
    topics = client.topics(topic_ids=[wanted.topic_id]).topics
    if not topics or wanted.partition >= len(topics[0].partitions):
        raise NotFoundError(
            "read",
            f"partition {wanted.partition} of topic {wanted.topic_id}",
            "there is no such partition: the topic was deleted",
        )
    log_start = topics[0].partitions[wanted.partition].log_start
    if log_start > offset:
        raise LogTruncatedError(wanted.topic_id, wanted.partition, offset, log_start)


def _read_planned(
    client: PipelineClient, objects: ObjectAccess, wanted: Range, offset: int, bytes_max: int
) -> Iterator[RangePart]:
    """Parts from `offset` on by one listing of runs. Raises: _GoneError."""
    rest = Range(wanted.topic_id, wanted.partition, offset, wanted.end)
    seed = partition_seed(bytes.fromhex(wanted.topic_id), wanted.partition)
    gathered: list[_Run] = []
    gathered_bytes = 0
    listed = offset
    aborted = AbortedBatches()
    for page in client.runs([rest]):
        # Before the parts of the page, one of which may begin with runs of the page before.
        aborted.add(page.aborted)
        # Not before: what retention removes between a look at the log's start and a listing would
        # be missing from the listing, and look like a gap.
        _check_start(client, wanted, listed)
        for run in _runs(page):
            listed = max(listed, run.end_offset)
            if run.end_offset <= offset:
                continue
            small = (
                run.object_key
                and run.length <= bytes_max
                and offset <= run.base_offset
                and run.end_offset <= wanted.end
            )
            if small and gathered_bytes + run.length <= bytes_max:
                gathered.append(run)
                gathered_bytes += run.length
                continue
            if gathered:
                yield aborted.left_out(_read_whole(objects, gathered, seed))
                offset = gathered[-1].end_offset
                gathered, gathered_bytes = [], 0
            if small:
                gathered.append(run)
                gathered_bytes = run.length
                continue
            parts = (
                _read_object(objects, run, offset, wanted.end, bytes_max, seed)
                if run.object_key
                else _read_wal(client, wanted, run, offset, bytes_max)
            )
            for part in parts:
                yield aborted.left_out(part)
                offset = part.next_offset
    if gathered:
        yield aborted.left_out(_read_whole(objects, gathered, seed))


def _runs(page: RunPage) -> Iterator[_Run]:
    rows = page.rows
    # An agent of an older release says none.
    sums = page.sums or [-1] * (len(rows) // RUN_FIELDS)
    for at, number in zip(range(0, len(rows), RUN_FIELDS), sums, strict=True):
        _, base, end, index, position, length = rows[at : at + 6]
        if index == _WAL:
            yield _Run(base, end, "", 0, 0, "", 0, length, -1)
        else:
            yield _Run(
                base,
                end,
                page.object_keys[index],
                page.object_bytes[index],
                page.object_raw[index],
                page.object_origins[index],
                position,
                length,
                number,
            )


def _read_wal(
    client: PipelineClient, wanted: Range, run: _Run, offset: int, bytes_max: int
) -> Iterator[RangePart]:
    at = max(offset, run.base_offset)
    end = min(run.end_offset, wanted.end)
    while at < end:
        try:
            body, following = client.records(
                wanted.topic_id, wanted.partition, at, end, bytes_max=bytes_max
            )
        except NotFoundError as error:
            raise _GoneError(error) from error
        if following <= at:
            raise CorruptDataError(
                "read", f"partition {wanted.partition} of topic {wanted.topic_id}", f"stuck at {at}"
            )
        yield RangePart(body, following)
        at = following


def _read_whole(objects: ObjectAccess, runs: list[_Run], seed: int) -> RangePart:
    """Small runs, each whole, in one part."""
    try:
        views = objects.get_views(
            [(run.object_key, run.position, run.position + run.length, run.origin) for run in runs]
        )
    except NotFoundError as error:
        raise _GoneError(error) from error
    parts: list[bytes | bytearray | memoryview] = []
    for run, view in zip(runs, views, strict=True):
        data: bytearray | memoryview = bytearray(view) if run.raw else view
        _, total = _settle(data, run, run.position, run.base_offset, seed)
        _check_sum(run, total)
        parts.append(data)
    return RangePart(parts[0] if len(parts) == 1 else b"".join(parts), runs[-1].end_offset)


def _read_object(
    objects: ObjectAccess, run: _Run, offset: int, end_offset: int, bytes_max: int, seed: int
) -> Iterator[RangePart]:
    """A run that is large, or whose beginning isn't wanted, in parts of whole batches."""
    try:
        position, base_offset = _first_place(objects, run, offset)
        end = run.position + run.length
        ask = bytes_max
        is_whole, total = position == run.position, 0
        while position < end:
            data = objects.get_range(
                run.object_key, position, min(position + ask, end), origin=run.origin
            )
            whole, last, needed = _whole_batches(data, run)
            if not whole:
                if position + len(data) >= end:
                    raise _corrupt(run, position, "the run ends within a batch")
                # The first batch is larger than a part.
                ask = max(needed, 2 * ask)
                continue
            ask = bytes_max
            batches = memoryview(data)[:whole]
            if run.raw:
                batches = memoryview(bytearray(batches))
            base_offset, found = _settle(batches, run, position, base_offset, seed)
            total += found
            position += whole
            if is_whole and position == end:
                _check_sum(run, total)
            first, following, over = _cut(batches, last, offset, end_offset)
            if following > offset:
                yield RangePart(batches[first:over], following)
                offset = following
            if over < whole or offset >= end_offset:
                return
    except NotFoundError as error:
        raise _GoneError(error) from error
    # Compaction may have left out the run's last records.
    if offset < run.end_offset:
        yield RangePart(b"", run.end_offset)


def _first_place(objects: ObjectAccess, run: _Run, offset: int) -> tuple[int, int]:
    """Return the byte of the object to begin at, and that batch's offset, which raw runs need."""
    start = run.position, run.base_offset
    if run.raw or offset <= run.base_offset or run.length < _INDEX_FROM_BYTES:
        # The offsets in a raw run are known from its beginning on alone.
        return start
    key, size_bytes = run.object_key, run.object_bytes
    tail_from = max(0, size_bytes - _TAIL_BYTES)
    tail = objects.get_range(key, tail_from, size_bytes, origin=run.origin)
    footer = parse_footer(tail[-FOOTER_BYTES:], size_bytes=size_bytes, subject=key)
    at, end = footer.index_position, footer.index_position + footer.index_length
    block = (
        tail[at - tail_from : end - tail_from]
        if at >= tail_from
        else objects.get_range(key, at, end, origin=run.origin)
    )
    for indexed in parse_index(block, footer, subject=key):
        if indexed.position <= run.position < indexed.position + indexed.length:
            position, _ = indexed.stretch_of_offset(offset)
            return max(position, run.position), run.base_offset
    return start


def _whole_batches(data: bytes, run: _Run) -> tuple[int, int, int]:
    """Bytes of whole batches at the beginning of `data`, where the last of them begins, and the
    size of the first one if known."""
    position, last, end, needed = 0, 0, len(data), HEADER_BYTES
    while end - position >= HEADER_BYTES:
        _, size = batch_bounds(data, position)
        if size < HEADER_BYTES:
            raise _corrupt(run, position, f"a batch of {size} bytes")
        if not position:
            needed = size
        if position + size > end:
            break
        last = position
        position += size
    return position, last, needed


def _cut(batches: memoryview, last: int, offset: int, end_offset: int) -> tuple[int, int, int]:
    """Cut whole batches, the last of which begins at `last`, to the wanted ones: return their
    start, the offset after them, and their end."""
    newest = stored_header(batches, last)
    if newest.base_offset < end_offset and stored_header(batches, 0).end_offset > offset:
        return 0, newest.end_offset, len(batches)
    position, first, following = 0, 0, offset
    while position < len(batches):
        header = stored_header(batches, position)
        if header.base_offset >= end_offset:
            break
        position += header.length
        if header.end_offset <= offset:
            first = position
        else:
            following = header.end_offset
    return first, following, position


def _settle(
    data: bytearray | memoryview, run: _Run, position: int, base_offset: int, seed: int
) -> tuple[int, int]:
    """Write final offsets into whole batches of a raw run; the offset behind them, and their sum.

    Args:
        data: from byte `position` of the object on.
        base_offset: of the first batch; where offsets are final it may begin later, or before
            where reading began in the middle of its run.
    """
    # Loading kernels takes a while, and planning needs none.
    from penstock.kernels.settle import settle

    behind, following, _, total = settle(
        np.frombuffer(data, dtype=np.uint8),
        0,
        len(data),
        expected=base_offset if run.raw else 0,
        raw=run.raw,
        log_start=0,
        seed=seed,
    )
    if behind != len(data):
        raise _corrupt(run, position, f"no whole batches in {len(data)} bytes")
    return following, total


def _check_sum(run: _Run, total: int) -> None:
    if run.sum not in {-1, total & SUM_MASK}:
        raise _corrupt(
            run,
            run.position,
            f"the {run.length} bytes are not the batches of offsets {run.base_offset} to"
            f" {run.end_offset - 1}: their sum differs from the journal's",
        )


def _corrupt(run: _Run, position: int, detail: str) -> CorruptDataError:
    return CorruptDataError("read", f"{run.object_key} at byte {position}", detail)
