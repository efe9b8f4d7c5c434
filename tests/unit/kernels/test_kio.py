"""Uncompressed batches as kio, a library of others, reads and writes them.

kio leaves compression to its caller, and cuts timestamps to seconds.
"""

import io
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from penstock.kernels.decode import decode
from penstock.kernels.encode import encode

rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.integers(0, 4_000_000_000),
        st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(rows)
def test_kio_reads_what_is_encoded(some) -> None:
    (batch,) = encode(
        pa.array([key for key, _, _, _ in some], pa.binary()),
        pa.array([value for _, value, _, _ in some], pa.binary()),
        np.array([1000 * seconds for _, _, seconds, _ in some]),
        pa.array([headers for _, _, _, headers in some], HEADERS),
        base_offset=7,
    )
    read, size = read_batch(bytes(batch.body), 0)
    assert size == batch.length
    assert (read.base_offset, read.last_offset_delta) == (7, len(some) - 1)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (-1, -1, -1)
    assert read.max_timestamp == batch.max_timestamp
    assert [
        (
            record.key,
            record.value,
            int(record.timestamp.timestamp()),
            [(header.key.decode(), header.value) for header in record.headers],
        )
        for record in read.records
    ] == some
    assert [record.offset for record in read.records] == list(range(7, 7 + len(some)))


@given(rows)
def test_what_kio_writes_is_decoded(some) -> None:
    written = io.BytesIO()
    write_new_batch(
        written,
        NewRecordBatch(
            producer_id=i64(5),
            producer_epoch=i16(1),
            base_sequence=i32(9),
            attributes=i16(0),
            records=tuple(
                KioRecord(
                    attributes=i8(0),
                    timestamp=TZAwareMicros.parse(datetime.fromtimestamp(seconds, UTC)),
                    offset=i64(30 + number),
                    key=key,
                    value=value,
                    headers=tuple(
                        RecordHeader(key=name.encode(), value=content) for name, content in headers
                    ),
                )
                for number, (key, value, seconds, headers) in enumerate(some)
            ),
        ),
    )
    assert decode(written.getvalue()).table().to_pylist() == [
        {
            "offset": 30 + number,
            "timestamp": 1000 * seconds,
            "timestamp_type": 0,
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": content} for name, content in headers],
        }
        for number, (key, value, seconds, headers) in enumerate(some)
    ]
