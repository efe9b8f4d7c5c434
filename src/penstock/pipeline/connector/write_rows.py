"""Rows to the batches of partitions: choosing partitions, topics' limits, encoding.

No I/O: topics, time and chance come from the caller.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.kernels.arrays import Int64s
from penstock.kernels.encode import EncodedBatch, Rows, encode_rows
from penstock.kernels.partitions import partition_of_keys
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.connector.write_columns import WriteColumns, timestamps_ms
from penstock.pipeline.connector.write_plan import TopicTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Batches of some rows for one partition, in order."""

    topic_id: str
    partition: int
    batches: list[EncodedBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEncoder:
    """Turns chunks of rows into batches.

    Args:
        topic: the option; "": the column says.
        find_topic: a topic by its name; NotFoundError if there is none.
        below: a random integer below a bound.
    """

    columns: WriteColumns
    topic: str
    codec: str
    batch_bytes: int
    find_topic: Callable[[str], TopicTarget]
    below: Callable[[int], int]

    def encode(self, chunk: pa.RecordBatch, *, now_ms: int) -> Iterator[EncodedRows]:
        """The rows of a chunk, partition by partition; within one, in the chunk's order.

        Raises:
            InvalidRequestError: a row that its topic doesn't take, named by its topic and content.
            NotFoundError: no such topic or partition.
        """
        count = chunk.num_rows
        columns = self.columns
        times = timestamps_ms(_column(chunk, columns.timestamp), now_ms, count)
        rows = Rows.of(
            _column(chunk, columns.key),
            _column(chunk, columns.value),
            times,
            _column(chunk, columns.headers),
        )
        for target, chosen in self._by_topic(chunk):
            self._check(target, chunk, times, chosen, now_ms)
            partitions = self._partitions(target, chunk, chosen)
            order = np.argsort(partitions, kind="stable")
            ordered = partitions[order]
            starts = np.flatnonzero(np.diff(ordered, prepend=-1))
            ends = np.append(starts[1:], len(ordered))
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                yield EncodedRows(
                    topic_id=target.topic_id,
                    partition=int(ordered[start]),
                    batches=self._batches(target, rows, chosen[order[start:end]], now_ms),
                )

    def _by_topic(self, chunk: pa.RecordBatch) -> Iterator[tuple[TopicTarget, Int64s]]:
        if self.topic:
            yield self.find_topic(self.topic), np.arange(chunk.num_rows, dtype=np.int64)
            return
        column = chunk.column(self.columns.topic)
        if column.null_count:
            raise InvalidRequestError(
                "write",
                "column topic",
                f"{column.null_count} of {chunk.num_rows} rows have none",
                "give the option topic, or filter such rows",
            )
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            yield self.find_topic(name), np.flatnonzero(codes == code).astype(np.int64)

    def _check(
        self,
        target: TopicTarget,
        chunk: pa.RecordBatch,
        times: Int64s,
        chosen: Int64s,
        now_ms: int,
    ) -> None:
        if target.compacts:
            keys = _column(chunk, self.columns.key)
            nulls = (
                len(chosen)
                if keys is None
                else int((~keys.is_valid().to_numpy(zero_copy_only=False)[chosen]).sum())
            )
            if nulls:
                raise InvalidRequestError(
                    "write",
                    f"topic {target.name}",
                    f"{nulls} of {len(chosen)} rows have no key; the topic is compacted",
                )
        if target.log_append_time or not len(chosen):
            return
        own = times[chosen]
        oldest, newest = int(own.min()), int(own.max())
        if oldest < 0:
            raise _time_error(target, f"timestamp {oldest} ms lies before 1970")
        if newest - now_ms > target.timestamp_after_max_ms:
            raise _time_error(
                target,
                f"timestamp {newest} is {newest - now_ms} ms ahead of {now_ms}; "
                f"message.timestamp.after.max.ms is {target.timestamp_after_max_ms}",
            )
        if now_ms - oldest > target.timestamp_before_max_ms:
            raise _time_error(
                target,
                f"timestamp {oldest} is {now_ms - oldest} ms behind {now_ms}; "
                f"message.timestamp.before.max.ms is {target.timestamp_before_max_ms}",
            )

    def _partitions(self, target: TopicTarget, chunk: pa.RecordBatch, chosen: Int64s) -> Int64s:
        """Return partitions of rows: as the row says, else by its key, else many rows in turn."""
        keys = _column(chunk, self.columns.key)
        if keys is None:
            partitions = np.full(len(chosen), -1, dtype=np.int64)
        else:
            partitions = partition_of_keys(keys, target.partition_count)[chosen]
        free = np.flatnonzero(partitions < 0)
        if len(free):
            bytes_per_row = max(1, chunk.nbytes // max(1, chunk.num_rows))
            together = max(1, self.batch_bytes // bytes_per_row)
            turns = np.arange(len(free)) // together + self.below(target.partition_count)
            partitions[free] = turns % target.partition_count
        given = _column(chunk, self.columns.partition)
        if given is not None:
            said = given.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)[chosen]
            is_said = given.is_valid().to_numpy(zero_copy_only=False)[chosen]
            wrong = said[is_said & ((said < 0) | (said >= target.partition_count))]
            if len(wrong):
                raise NotFoundError(
                    "write",
                    f"{target.name}-{wrong[0]}",
                    f"the topic has {target.partition_count} partitions",
                )
            partitions = np.where(is_said, said, partitions)
        return partitions

    def _batches(
        self, target: TopicTarget, rows: Rows, chosen: Int64s, now_ms: int
    ) -> list[EncodedBatch]:
        try:
            return encode_rows(
                rows,
                codec=self.codec,
                rows=chosen,
                batch_bytes=self.batch_bytes,
                message_bytes_max=target.message_bytes_max,
                log_append_ms=now_ms if target.log_append_time else -1,
            )
        except InvalidRequestError as error:
            raise InvalidRequestError("write", f"topic {target.name}", error.detail) from error


def _column(chunk: pa.RecordBatch, position: int) -> Any:
    return None if position < 0 else chunk.column(position)


def _time_error(target: TopicTarget, detail: str) -> InvalidRequestError:
    return InvalidRequestError("write", f"topic {target.name}", detail)
