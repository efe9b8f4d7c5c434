"""Describing one partition's batches for a segment's index. Pure."""

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.records.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_END, MAGIC
from penstock.records.sums import MULTIPLIER, SUM_MASK, SUM_SHIFT, epoch_seed
from penstock.segment.format import Mark, SegmentRun

JOINED_BYTES: Final = 8 * 1024
"""Views that are smaller than this on average are joined."""
MARK_BYTES: Final = 64 * 1024
"""A seek reads at most about this much beyond what it wants."""


class RunDescriber:
    """Goes through the batches of a run, view by view in offset order.

    Args:
        base_offset: of the run; the first batch may begin later.
        operation: what is being done, and
        subject: to which partition, for errors.
        seed: not None: of the partition's sums, and `sum` is made.
    """

    def __init__(
        self, *, base_offset: int, operation: str, subject: str, seed: int | None = None
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        """One more than the last record's, so far."""
        self.length = 0
        self.record_count = 0
        self.batch_count = 0
        self.max_timestamp = -1
        self.sum = 0
        """Sum of the batches so far (`penstock.records.sums`), with final offsets and labels."""
        self._seed = seed
        self._operation = operation
        self._subject = subject
        self._marks: list[Mark] = []
        self._marked = -MARK_BYTES
        self._views: list[memoryview] = []

    def add(
        self,
        view: memoryview,
        *,
        checks_crc: bool = False,
        raw_offset: int = -1,
        leader_epoch: int = 0,
    ) -> None:
        """Describe further batches.

        Args:
            view: whole batches.
            checks_crc: whether their CRCs are compared too.
            raw_offset: not -1: what base offsets say isn't final; the final ones, from this one on
                and without gaps, are written into the view.
            leader_epoch: is written with them.

        Raises:
            CorruptDataError: damaged, or not behind the batches before.
        """
        # Of each batch of a segment, so by position and with locals: names cost twice the time.
        unpack = HEADER.unpack_from
        pack = HEADER.pack_into
        expected, newest = self.end_offset, self.max_timestamp
        start, marked, marks = self.length, self._marked, self._marks
        records = batches = 0
        at, end = 0, len(view)
        raw = raw_offset >= 0
        seed, total = self._seed, 0
        sum_epoch, start_sum = 0, seed or 0
        if raw:
            if raw_offset < expected:
                raise self._fault(f"batch of offset {raw_offset} where {expected} is due")
            expected = raw_offset
        while at < end:
            if end - at < HEADER_BYTES:
                raise self._fault(f"{end - at} bytes at {start + at} hold no batch")
            fields = unpack(view, at)
            offset, length, epoch, magic, crc, _, delta, _, newest_here, _, _, _, count = fields
            length += LENGTH_END
            if raw:
                offset = expected
            if offset < expected or not HEADER_BYTES <= length <= end - at:
                raise self._fault(
                    f"batch of offset {offset} and {length} bytes where {expected} is due"
                )
            if checks_crc:
                if magic != MAGIC or crc32c(view[at + CRC_FROM : at + length]) != crc:
                    raise self._fault(f"CRC-32C of the batch of offset {offset} differs")
                if delta < 0 or count < 0:
                    raise self._fault(f"batch of offset {offset} with last offset delta {delta}")
            if raw and (fields[0] != offset or epoch != leader_epoch):
                pack(view, at, offset, fields[1], leader_epoch, *fields[3:])
            if seed is not None:
                label = leader_epoch if raw else epoch
                if label != sum_epoch:
                    sum_epoch, start_sum = label, epoch_seed(seed, label)
                # As `penstock.records.sums.batch_sum`, without a call.
                product = (start_sum + offset) * ((crc << 32 | length) ^ MULTIPLIER)
                total += product ^ product >> SUM_SHIFT
            if start + at - marked >= MARK_BYTES:
                marked = start + at
                marks.append(Mark(base_offset=offset, position=marked, max_timestamp=newest))
            expected = offset + delta + 1
            if newest_here > newest:  # noqa: PLR1730 - a call of max costs more
                newest = newest_here
            records += count
            batches += 1
            at += length
        self.end_offset, self.max_timestamp, self._marked = expected, newest, marked
        self.record_count += records
        self.batch_count += batches
        self.length += end
        self.sum = (self.sum + total) & SUM_MASK
        self._views.append(view)

    def describe(
        self, topic_id: bytes, partition: int, parts: Sequence[memoryview] = ()
    ) -> SegmentRun:
        """The run for `penstock.segment.build_segment`.

        Args:
            parts: the bytes that were added, where they lie in fewer pieces.
        """
        views: Sequence[memoryview] = parts or self._views
        if self.length < len(views) * JOINED_BYTES:
            # Small ones cost more as buffers of a write than as a copy.
            views = [memoryview(b"".join(views))]
        return SegmentRun(
            topic_id=topic_id,
            partition=partition,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            record_count=self.record_count,
            batch_count=self.batch_count,
            max_timestamp=self.max_timestamp,
            parts=views,
            length=self.length,
            marks=self._marks,
            sum=-1 if self._seed is None else self.sum,
        )

    def _fault(self, detail: str) -> CorruptDataError:
        return CorruptDataError(self._operation, self._subject, detail)
