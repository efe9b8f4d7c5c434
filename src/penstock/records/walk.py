"""Walking the records of a batch without keeping any: lengths, counts, deltas, keys, times. Pure.

Bytes come from clients. The walk asks its stream for a piece at a time, holds that and what is left
of the one before, and stops at its bounds; nothing that the bytes announce is believed before it is
there. Of a record, big-endian where it isn't a varint (protobuf's, zigzag):

| field | type | what is required |
| --- | --- | --- |
| length | varint, 32 bits | equal to what follows |
| attributes | 1 byte | nothing: unused |
| timestamp delta | varint, 64 bits | base timestamp + delta within the topic's limits |
| offset delta | varint, 32 bits | one more than the record's before; the first has 0 |
| key | varint length, bytes | length at least -1, which is null: not in a compacted topic |
| value | varint length, bytes | length at least -1, which is null |
| headers | varint count; then of each a name and a value | count not negative |
| name | varint length, bytes | length not negative |
| value of a header | varint length, bytes | length at least -1, which is null |

Source: Kafka docs, "Record"; Kafka's DefaultRecord and ByteUtils, which read a varint of at most
five bytes and a varlong of at most ten. Kafka takes any negative length for null, librdkafka -1
alone.
"""

from typing import Final

from penstock.records.alike import skip_alike
from penstock.records.batch import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    NO_TIMESTAMP,
    TIMESTAMP_MAX,
    BatchError,
    BatchFault,
    BatchLimits,
    RecordError,
    timestamp_problem,
)
from penstock.records.streams import PIECE_BYTES, open_stream
from penstock.records.varints import INT32_BITS, INT64_BITS, MalformedError, read_raw

RECORD_ERRORS_MAX: Final = 10
"""Records that an error names at most; Kafka's message names three."""
_ALL: Final = 1 << 63
_SKIPPED_MIN: Final = 16
"""So many records are first looked at together: in fewer, nothing is won."""
ALIKE_RECORDS: Final = 10
"""So many in a run cost what one does that is walked alone, or less."""
_RUN_WORK: Final = 16
"""Looking at a run costs what walking so many records does, however short the run is."""
_ALONE_MIN: Final = 16
_ALONE_MAX: Final = 1024
"""Records that are walked one by one where those that follow are not alike: from few to many."""
_FAR_PAST: Final = -(1 << 65)
_FAR_FUTURE: Final = 1 << 65


class RecordWalk:
    """A walk over the records of one whole batch (magic 2), a stretch at a time.

    Args:
        batch: its header is right, with a count from 1 on.
        limits: the topic's.
        now_ms: what timestamps are compared with, ms since the epoch.

    Raises:
        BatchError: TOO_LARGE: the header says more records than `limits` allow: seen before
            anything is decompressed.
    """

    __slots__ = (
        "_alone",
        "_at",
        "_base_timestamp",
        "_count",
        "_data",
        "_decoded_bytes",
        "_errors",
        "_faults",
        "_headers_left",
        "_high",
        "_limits",
        "_low",
        "_max_delta",
        "_now_ms",
        "_seen",
        "_spared",
        "_stream",
        "max_timestamp",
    )

    def __init__(self, batch: memoryview, limits: BatchLimits, now_ms: int) -> None:
        fields = HEADER.unpack_from(batch)
        self._limits = limits
        self._now_ms = now_ms
        self._base_timestamp: int = fields[7]
        self._count: int = fields[12]
        if self._count > limits.records_max:
            raise BatchError(
                BatchFault.TOO_LARGE,
                f"{self._count} records in one batch; batch_records_max is {limits.records_max}",
            )
        self._stream = open_stream(fields[5] & CODEC_MASK, batch[HEADER_BYTES:])
        self._data = b""
        self._at = 0
        self._decoded_bytes = 0
        self._seen = 0
        self._spared = 0
        self._alone = _ALONE_MIN
        self._headers_left = limits.records_max
        self._low, self._high = _FAR_PAST, _FAR_FUTURE
        if not limits.log_append_time:
            # What lies outside is looked at closely, by `timestamp_problem`.
            low = max(0, now_ms - limits.timestamp_before_max_ms)
            high = min(TIMESTAMP_MAX, now_ms + limits.timestamp_after_max_ms)
            self._low = low - self._base_timestamp
            self._high = high - self._base_timestamp
        self._max_delta = _FAR_PAST
        self._errors: list[RecordError] = []
        self._faults: set[BatchFault] = set()
        self.max_timestamp = NO_TIMESTAMP
        """The greatest of the records', in ms; known once the walk is over."""

    @property
    def work(self) -> int:
        """Count the records, and headers of records, that were walked, or what costs as much."""
        return self._seen - self._spared + self._limits.records_max - self._headers_left

    @property
    def decoded_bytes(self) -> int:
        """Count the bytes of records that were decompressed."""
        return self._decoded_bytes

    def advance(
        self,
        *,
        records: int = _ALL,
        decoded_bytes: int = _ALL,
        long_records: bool = True,
    ) -> bool:
        """Walk on; whether the walk is over.

        Args:
            records: after about so much `work` more, the walk stops for now.
            decoded_bytes: after about so many, the walk stops for now.
            long_records: whether records of more than PIECE_BYTES are walked, each to its end
                whatever the other two say; if not, the walk stops for now at the first.

        Raises:
            BatchError: the records are refused. INVALID, NULL_KEY or TIMESTAMP with the first
                RECORD_ERRORS_MAX records that are at fault; TOO_LARGE.
        """
        work_max = self.work + records
        while True:
            self._walk_held(work_max)
            if self._seen == self._count:
                self._finish()
                return True
            if self.work >= work_max or decoded_bytes <= 0:
                return False
            if len(self._data) - self._at >= PIECE_BYTES:
                # One record fills what is held, and more: pieces are let go as they come.
                if not long_records:
                    return False
                self._walk_long()
            else:
                before = self._decoded_bytes
                if not self._refill():
                    self._refuse(f"the records end after {self._seen} of {self._count}")
                decoded_bytes -= self._decoded_bytes - before

    def _walk_held(self, work_max: int) -> None:
        """Walk the records that lie whole in what is held, until `work` is about `work_max`."""
        while self._at < len(self._data) and (left := work_max - self.work) > 0:
            if self._count - self._seen >= _SKIPPED_MIN:
                if self._skip_run(min(self._count, self._seen + ALIKE_RECORDS * left)):
                    self._alone = _ALONE_MIN
                    continue
                # Looking in vain costs what walking a few does: done less and less often.
                self._alone = min(2 * self._alone, _ALONE_MAX)
            alone_until = min(self._count, self._seen + min(self._alone, left))
            self._walk(alone_until)
            if self._seen < alone_until or self._seen == self._count:
                break

    def _skip_run(self, stop_at: int) -> bool:
        """Skip right records, at most to number `stop_at`; whether there is such a run."""
        before = self._seen
        self._at, self._seen, max_delta, self._headers_left = skip_alike(
            self._data,
            self._at,
            seen=before,
            stop_at=stop_at,
            low=self._low,
            high=self._high,
            needs_keys=self._limits.compacts,
            headers_left=self._headers_left,
        )
        if max_delta is None:
            return False
        self._max_delta = max(self._max_delta, max_delta)
        count = self._seen - before
        self._spared += count - count // ALIKE_RECORDS - _RUN_WORK
        return True

    def _walk(self, stop_at: int) -> None:
        """Walk so far one by one.

        Written out without calls: it runs once per record of everything that is produced. One and
        two bytes are by far the most common varints.
        """
        data, end, position = self._data, len(self._data), self._at
        first = seen = self._seen
        low, high, max_delta = self._low, self._high, self._max_delta
        needs_keys = self._limits.compacts
        start = position
        try:
            # Where what is held is used up, the next byte is an IndexError.
            for seen in range(first, stop_at):
                start = position
                length = data[position]
                position += 1
                if length >= 0x80:
                    second = data[position]
                    if second < 0x80:
                        length = length & 0x7F | second << 7
                        position += 1
                    else:
                        length, position = read_raw(data, start, INT32_BITS)
                if length & 1:
                    raise MalformedError("its length is negative")
                stop = position + (length >> 1)
                if stop > end:
                    position = start
                    break
                delta = data[position + 1]  # behind the attributes
                position += 2
                if delta >= 0x80:
                    second = data[position]
                    if second < 0x80:
                        delta = delta & 0x7F | second << 7
                        position += 1
                    else:
                        delta, position = read_raw(data, position - 1, INT64_BITS)
                delta = (delta >> 1) ^ -(delta & 1)
                if delta > max_delta:  # noqa: PLR1730 - a call costs more
                    max_delta = delta
                if not low <= delta <= high:
                    self._check_time(seen, delta)
                offset = data[position]
                position += 1
                if offset >= 0x80:
                    second = data[position]
                    if second < 0x80:
                        offset = offset & 0x7F | second << 7
                        position += 1
                    else:
                        offset, position = read_raw(data, position - 1, INT32_BITS)
                if offset != seen << 1:
                    self._blame(
                        seen,
                        BatchFault.INVALID,
                        f"offset delta {(offset >> 1) ^ -(offset & 1)}; it must be {seen}",
                    )
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = read_raw(data, position - 1, INT32_BITS)
                if not size & 1:
                    position += size >> 1
                elif size != 1:
                    raise MalformedError(f"the key's length is {-(size >> 1) - 1}")
                elif needs_keys:
                    self._blame(seen, BatchFault.NULL_KEY, "no key; the topic is compacted")
                size = data[position]
                position += 1
                if size >= 0x80:
                    second = data[position]
                    if second < 0x80:
                        size = size & 0x7F | second << 7
                        position += 1
                    else:
                        size, position = read_raw(data, position - 1, INT32_BITS)
                if not size & 1:
                    position += size >> 1
                elif size != 1:
                    raise MalformedError(f"the value's length is {-(size >> 1) - 1}")
                headers = data[position]
                position += 1
                if headers:
                    position = self._walk_headers(seen, data, position - 1, stop)
                if position != stop:
                    raise MalformedError(
                        f"its length is {length >> 1} bytes, its fields end {position - stop} later"
                    )
            else:
                seen = stop_at
        except IndexError:
            # What is held ends in this record: with more of it the fields fit its length or not.
            position = start
        except MalformedError as error:
            self._seen = seen
            self._refuse(str(error))
        self._at, self._seen, self._max_delta = position, seen, max_delta

    def _walk_headers(self, record: int, data: bytes, position: int, stop: int) -> int:
        """The position after a record's headers."""
        count, position = read_raw(data, position, INT32_BITS)
        self._take_headers(record, count)
        for _ in range(count >> 1):
            size = data[position]
            position += 1
            if size >= 0x80:
                size, position = read_raw(data, position - 1, INT32_BITS)
            if size & 1:
                raise MalformedError(f"the length of a header's name is {-(size >> 1) - 1}")
            position += size >> 1
            size = data[position]
            position += 1
            if size >= 0x80:
                size, position = read_raw(data, position - 1, INT32_BITS)
            if not size & 1:
                position += size >> 1
            elif size != 1:
                raise MalformedError(f"the length of a header's value is {-(size >> 1) - 1}")
            if position > stop:
                break
        return position

    def _take_headers(self, record: int, count: int) -> None:
        """Count a record's headers, as its varint has them."""
        if count & 1:
            raise MalformedError(f"it has {-(count >> 1) - 1} headers")
        self._headers_left -= count >> 1
        if self._headers_left < 0:
            raise BatchError(
                BatchFault.TOO_LARGE,
                f"record {record} and those before it have more headers than "
                f"batch_records_max allows, which is {self._limits.records_max}",
            )

    def _walk_long(self) -> None:
        """Walk one record field by field, whatever its size."""
        start = self._consumed()
        try:
            length = self._varint(INT32_BITS)
            if length & 1:
                raise MalformedError("its length is negative")
            length >>= 1
            stop = self._consumed() + length
            self._skip(1)
            delta = self._varint(INT64_BITS)
            delta = (delta >> 1) ^ -(delta & 1)
            self._max_delta = max(self._max_delta, delta)
            if not self._low <= delta <= self._high:
                self._check_time(self._seen, delta)
            offset = self._varint(INT32_BITS)
            if offset != self._seen << 1:
                self._blame(
                    self._seen,
                    BatchFault.INVALID,
                    f"offset delta {(offset >> 1) ^ -(offset & 1)}; it must be {self._seen}",
                )
            if not self._skip_field("key") and self._limits.compacts:
                self._blame(self._seen, BatchFault.NULL_KEY, "no key; the topic is compacted")
            self._skip_field("value")
            count = self._varint(INT32_BITS)
            self._take_headers(self._seen, count)
            for _ in range(count >> 1):
                if not self._skip_field("header's name"):
                    raise MalformedError("a header has no name")
                self._skip_field("header's value")
                if self._consumed() > stop:
                    break
            if self._consumed() != stop:
                raise MalformedError(
                    f"its length is {length} bytes, its fields end {self._consumed() - stop} later"
                )
        except MalformedError as error:
            self._refuse(str(error))
        except IndexError:
            self._refuse(f"the records end {self._consumed() - start} bytes into it")
        self._seen += 1

    def _consumed(self) -> int:
        return self._decoded_bytes - len(self._data) + self._at

    def _varint(self, bits: int) -> int:
        while len(self._data) - self._at < 10 and self._refill():
            pass
        raw, self._at = read_raw(self._data, self._at, bits)
        return raw

    def _skip_field(self, name: str) -> bool:
        """Skip a field with its length; whether it isn't null."""
        size = self._varint(INT32_BITS)
        if size & 1:
            if size != 1:
                raise MalformedError(f"the length of the {name} is {-(size >> 1) - 1}")
            return False
        self._skip(size >> 1)
        return True

    def _skip(self, count: int) -> None:
        while count > len(self._data) - self._at:
            count -= len(self._data) - self._at
            self._at = len(self._data)
            if not self._refill():
                raise IndexError
        self._at += count

    def _refill(self) -> bool:
        """Let go what was walked and take a piece more; False: there is none."""
        piece = self._stream.read(PIECE_BYTES)
        if not piece:
            return False
        self._decoded_bytes += len(piece)
        if self._decoded_bytes > self._limits.decoded_bytes_max:
            raise BatchError(
                BatchFault.TOO_LARGE,
                f"more than {self._limits.decoded_bytes_max} bytes of records when decompressed, "
                "which is batch_decoded_bytes_max",
            )
        self._data = self._data[self._at :] + piece
        self._at = 0
        return True

    def _finish(self) -> None:
        if self._at < len(self._data) or self._refill():
            raise BatchError(
                BatchFault.INVALID,
                f"{len(self._data) - self._at} bytes or more after the last of {self._count} "
                "records",
            )
        if self._errors:
            self._raise_errors()
        self.max_timestamp = self._base_timestamp + self._max_delta

    def _check_time(self, record: int, delta: int) -> None:
        problem = timestamp_problem(self._base_timestamp + delta, self._limits, self._now_ms)
        if problem is not None:
            self._blame(record, BatchFault.TIMESTAMP, problem)

    def _blame(self, record: int, fault: BatchFault, message: str) -> None:
        self._errors.append(RecordError(record, message))
        self._faults.add(fault)
        if len(self._errors) >= RECORD_ERRORS_MAX:
            self._raise_errors()

    def _raise_errors(self) -> None:
        # As in Kafka: timestamps alone are INVALID_TIMESTAMP, anything else INVALID_RECORD.
        fault = self._faults.pop() if len(self._faults) == 1 else BatchFault.INVALID
        first = self._errors[0]
        raise BatchError(
            fault,
            f"record {first.record}: {first.message}",
            record_errors=tuple(self._errors),
        )

    def _refuse(self, message: str) -> None:
        raise BatchError(
            BatchFault.INVALID,
            f"record {self._seen}: {message}",
            record_errors=(*self._errors, RecordError(self._seen, message)),
        )
