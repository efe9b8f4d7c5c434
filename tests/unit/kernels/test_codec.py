"""Batches into Arrow and back: equal to the plain twins, and safe against whatever bytes."""

import itertools

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import decode as decoding
from penstock.kernels.decode import ALL, decode, decode_chunks
from penstock.kernels.encode import encode
from penstock.kernels.index import index_batches
from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    BatchError,
    crc_is_right,
    stored_header,
)
from penstock.records.decode import CODECS, DECOMPRESSED_BYTES_MAX, Record, decode_batch
from penstock.records.encode import encode_batch
from support.examples import examples

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

records = st.builds(
    Record,
    offset_delta=st.just(0),
    timestamp=st.integers(-(1 << 60), 1 << 60),
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2
    ).map(tuple),
)


def with_delta(record: Record, delta: int) -> Record:
    return Record(
        offset_delta=delta,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


@st.composite
def regions(draw: st.DrawFn) -> bytes:
    """Batches with gaps in and between them, of any codec, empty and control ones too."""
    out, offset = b"", draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 5))):
        some = draw(st.lists(records, min_size=1, max_size=6))
        deltas = sorted(draw(st.sets(st.integers(0, 40), min_size=len(some), max_size=len(some))))
        attributes = draw(st.sampled_from((0, 0, 0, LOG_APPEND_TIME, DELETE_HORIZON, CONTROL)))
        batch = encode_batch(
            [with_delta(record, delta) for delta, record in zip(deltas, some, strict=True)],
            codec=draw(st.sampled_from(CODECS)),
            base_offset=offset,
            attributes=attributes,
        )
        if draw(st.integers(0, 9)) == 0:
            batch = emptied(batch)
        out += batch
        offset += deltas[-1] + 1 + draw(st.integers(0, 9))
    return out


def emptied(batch: bytearray) -> bytearray:
    """As compaction leaves a batch of which no record is left."""
    fields = list(HEADER.unpack_from(batch))
    fields[1], fields[5], fields[12] = HEADER.size - 12, fields[5] & ~7, 0
    return sealed(bytearray(HEADER.pack(*fields)))


def sealed(batch: bytearray) -> bytearray:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


def batches_of(region: bytes) -> list[memoryview]:
    out, position = [], 0
    while position < len(region):
        length = stored_header(region, position).length
        out.append(memoryview(region)[position : position + length])
        position += length
    return out


def twin(region: bytes, start: int = 0, end: int = 1 << 62) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for batch in batches_of(region):
        header = stored_header(batch, 0)
        if header.attributes & CONTROL or not header.record_count:
            continue
        rows += [
            {
                "offset": header.base_offset + record.offset_delta,
                "timestamp": record.timestamp,
                "timestamp_type": int(header.attributes & LOG_APPEND_TIME != 0),
                "key": record.key,
                "value": record.value,
                "headers": [{"key": name, "value": value} for name, value in record.headers],
            }
            for record in decode_batch(batch)
            if start <= header.base_offset + record.offset_delta < end
        ]
    return rows


@given(regions(), st.integers(0, 120), st.integers(0, 250))
def test_decoding_equals_the_twin(region: bytes, start: int, end: int) -> None:
    assert decode(region).table().to_pylist() == twin(region)
    part = decode(region, start_offset=start, end_offset=end)
    assert part.table().to_pylist() == twin(region, start, end)
    for chunk in part.chunks:
        chunk.validate(full=True)


@given(regions(), st.integers(0, 3000))
def test_chunks_joined_are_the_whole(region: bytes, chunk_bytes: int) -> None:
    chunks = decode_chunks(
        index_batches(region), columns=(*ALL, "headers"), chunk_bytes=chunk_bytes
    )
    assert [row for chunk in chunks for row in chunk.to_pylist()] == twin(region)


@given(regions(), st.sets(st.sampled_from(ALL)), st.booleans())
def test_columns_that_are_not_wanted_are_left_out(region, columns, headers) -> None:
    table = decode(region, columns=columns, headers=headers).table()
    wanted = [name for name in ALL if name in columns] + (["headers"] if headers else [])
    assert table.column_names == wanted
    whole = twin(region)
    if wanted:
        assert table.to_pylist() == [{name: row[name] for name in wanted} for row in whole]
    assert table.num_rows == len(whole) or not wanted


def test_columns_are_of_the_types_that_spark_takes() -> None:
    batch = encode_batch([Record(offset_delta=0, timestamp=1, key=b"k", value=None, headers=())])
    schema = decode(batch).table().schema
    assert schema.field("key").type == pa.binary()
    assert schema.field("value").type == pa.binary()
    assert schema.field("headers").type == HEADERS
    assert schema.field("timestamp_type").type == pa.int32()


@given(regions())
def test_the_next_offset_is_behind_the_last_batch(region: bytes) -> None:
    batches = batches_of(region)
    expected = stored_header(batches[-1], 0).end_offset if batches else 0
    assert decode(region).next_offset == expected


def test_a_delete_horizon_is_no_timestamp() -> None:
    """KIP-534: the base timestamp is the horizon, and deltas count from it."""
    batch = encode_batch(
        [Record(offset_delta=0, timestamp=900, key=b"k", value=None, headers=())],
        attributes=DELETE_HORIZON,
    )
    fields = list(HEADER.unpack_from(batch))
    body = bytearray(batch[HEADER.size :])
    body[2] = 199  # zigzag of -100
    assert fields[7] == 900
    fields[7] = 1000
    batch = HEADER.pack(*fields[:1], fields[1] + 1, *fields[2:]) + bytes(body[:2])
    batch += bytes((199, 1)) + bytes(body[3:])
    moved = bytearray(batch)
    moved[HEADER.size] += 2  # the record is a byte longer
    assert decode(sealed(moved)).column("timestamp").to_pylist() == [900]


def test_names_of_headers_that_are_not_utf8_are_replaced() -> None:
    batch = encode_batch(
        [Record(offset_delta=0, timestamp=0, key=None, value=None, headers=(("ab", b"1"),))]
    )
    at = batch.index(b"ab")
    batch[at : at + 2] = b"\xff\xfe"
    expected = [[{"key": "\ufffd\ufffd", "value": b"1"}]]
    assert decode(sealed(batch)).column("headers").to_pylist() == expected
    assert next(decode_batch(memoryview(batch))).headers == (("\ufffd\ufffd", b"1"),)


@given(regions(), st.data())
def test_a_cut_region_is_refused(region: bytes, data: st.DataObject) -> None:
    ends = {0}
    for batch in batches_of(region):
        ends.add(max(ends) + len(batch))
    cut = data.draw(st.integers(0, len(region)))
    if cut in ends:
        decode(region[:cut])
    else:
        with pytest.raises(CorruptDataError):
            decode(region[:cut])


def test_a_flipped_bit_is_refused_by_the_crc() -> None:
    batch = encode_batch(
        [Record(offset_delta=0, timestamp=1, key=b"k", value=b"value", headers=())]
    )
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 4
        with pytest.raises(CorruptDataError):
            decode(damaged)


@pytest.mark.slow
@settings(max_examples=examples(5))
@given(regions(), st.data())
def test_hostile_bytes_give_our_error_alone(region: bytes, data: st.DataObject) -> None:
    """Also where the CRC is right: it is the sender's own."""
    damaged = bytearray(region or b"x")
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(damaged)
    position = 0
    while len(damaged) - position >= 61:
        size = 12 + int.from_bytes(damaged[position + 8 : position + 12], "big", signed=True)
        if not 61 <= size <= len(damaged) - position:
            break
        damaged[position : position + size] = sealed(damaged[position : position + size])
        position += size
    decode_or_refuse(damaged)


@settings(max_examples=examples(5))
@given(st.binary(max_size=80), st.integers(0, 20), st.sampled_from((0, 1, 2, 3, 4, 5, 7)))
def test_any_records_block_is_decoded_as_by_the_twin_or_refused_by_both(
    block: bytes, count: int, codec: int
) -> None:
    body = block
    if codec in {1, 2, 3, 4} and len(block) % 2:
        name = CODECS[codec]
        compress = cramjam.snappy.compress_raw if codec == 2 else getattr(cramjam, name).compress
        body = bytes(compress(block))
    batch = sealed(
        bytearray(
            HEADER.pack(
                7, HEADER.size - 12 + len(body), 0, 2, 0, codec, 30, 10, 20, -1, -1, -1, count
            )
            + body
        )
    )
    try:
        expected = twin(bytes(batch))
    except BatchError:
        with pytest.raises(CorruptDataError):
            decode(batch)
        return
    got = decode_or_refuse(batch)
    if got is not None:  # offsets out of order or out of the batch are refused here alone
        assert got == expected


def decode_or_refuse(region: bytearray) -> list[dict[str, object]] | None:
    try:
        decoded = decode(region)
    except CorruptDataError:
        return None
    for chunk in decoded.chunks:
        chunk.validate(full=True)
    return decoded.table().to_pylist()


@pytest.mark.slow
def test_a_batch_that_grows_a_thousandfold_takes_no_more_than_its_bound() -> None:
    body = bytes(cramjam.zstd.compress(bytes(200 << 20)))
    batch = sealed(
        bytearray(
            HEADER.pack(0, HEADER.size - 12 + len(body), 0, 2, 0, 4, 0, 0, 0, -1, -1, -1, 1) + body
        )
    )
    with pytest.raises(CorruptDataError, match="134217728"):
        decode(batch)


def test_more_records_than_bytes_take_no_memory() -> None:
    batch = sealed(
        bytearray(
            HEADER.pack(0, HEADER.size - 12, 0, 2, 0, 0, 2**31 - 1, 0, 0, -1, -1, -1, 2**31 - 1)
        )
    )
    with pytest.raises(CorruptDataError, match="more records than bytes"):
        decode(batch)


# -- encoding --------------------------------------------------------------------------------


@given(
    st.lists(records, max_size=30),
    st.sampled_from(CODECS),
    st.integers(1, 7),
    st.integers(80, 2000),
    st.integers(0, 1 << 40),
)
def test_what_is_encoded_is_read_back(some, codec, batch_records, batch_bytes, base_offset) -> None:
    batches = encode_records(
        some,
        codec=codec,
        batch_records=batch_records,
        batch_bytes=batch_bytes,
        base_offset=base_offset,
    )
    region = b"".join(batch.body for batch in batches)
    assert twin(region) == [
        {
            "offset": base_offset + number,
            "timestamp": record.timestamp,
            "timestamp_type": 0,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for number, record in enumerate(some)
    ]
    assert decode(region).table().to_pylist() == twin(region)
    for batch, view in zip(batches, batches_of(region), strict=True):
        header = stored_header(view, 0)
        assert crc_is_right(view)
        assert (header.record_count, header.max_timestamp) == (
            batch.record_count,
            batch.max_timestamp,
        )
        assert header.max_timestamp == max(record.timestamp for record in decode_batch(view))
        assert header.record_count <= batch_records
        assert header.record_count == header.end_offset - header.base_offset


@given(st.lists(records, min_size=1, max_size=8))
def test_one_batch_is_the_twins_byte_for_byte(some: list[Record]) -> None:
    (batch,) = encode_records(some)
    numbered = [with_delta(record, delta) for delta, record in enumerate(some)]
    expected = encode_batch(numbered)
    expected[12:16] = bytes(4)  # the leader epoch, which the log writes anyway
    assert bytes(batch.body) == bytes(expected)


@given(st.lists(records, min_size=1, max_size=30), st.integers(200, 2000))
def test_batches_are_full_but_not_larger(some: list[Record], batch_bytes: int) -> None:
    batches = encode_records(some, batch_bytes=batch_bytes)
    for batch in batches:
        assert len(batch.body) <= batch_bytes or batch.record_count == 1
    for batch, following in itertools.pairwise(batches):
        first = next(decode_batch(following.body))
        alone = len(encode_batch([first])) - HEADER.size
        assert len(batch.body) + alone + 12 > batch_bytes


@given(st.lists(records, min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_rows_are_taken_in_the_order_that_is_asked_for(some, chance) -> None:
    order = [chance.randrange(len(some)) for _ in range(12)]
    chosen = encode_records(some, rows=np.array(order, dtype=np.int64))
    plain = encode_records([some[number] for number in order])
    assert [bytes(batch.body) for batch in chosen] == [bytes(batch.body) for batch in plain]


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_the_stamp_of_all(codec: str) -> None:
    some = [Record(offset_delta=0, timestamp=5, key=b"k", value=b"v", headers=())] * 3
    (batch,) = encode_records(some, codec=codec, log_append_ms=77)
    assert batch.max_timestamp == 77
    table = decode(batch.body).table()
    assert table.column("timestamp").to_pylist() == [77] * 3
    assert table.column("timestamp_type").to_pylist() == [1] * 3


def test_a_record_that_the_topic_refuses_is_named() -> None:
    some = [
        Record(offset_delta=0, timestamp=0, key=None, value=bytes(size), headers=())
        for size in (10, 5000, 10)
    ]
    with pytest.raises(InvalidRequestError, match=r"row 1: .*max\.message\.bytes is 1000"):
        encode_records(some, message_bytes_max=1000)
    assert len(encode_records(some, message_bytes_max=1000, codec="zstd")) >= 1


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_compresses_badly_is_not_refused_for_it(codec: str) -> None:
    value = np.random.default_rng(1).bytes(900)
    some = [Record(offset_delta=0, timestamp=0, key=None, value=value, headers=())]
    size = len(encode_records(some)[0].body)
    (batch,) = encode_records(some, codec=codec, message_bytes_max=size)
    assert len(batch.body) == size
    assert decode(batch.body).column("value").to_pylist() == [value]


def test_a_header_without_a_name_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    with pytest.raises(InvalidRequestError, match="name"):
        encode(None, None, np.array([1]), headers)


def test_slices_strings_and_chunks_are_columns_too() -> None:
    keys = pa.array(["a", None, "ccc", "dd"])[1:]
    values = pa.chunked_array([pa.array([b"1", b"22"]), pa.array([None], pa.binary())])
    headers = pa.array(
        [[("x", b"1")], [("y", None), ("z", b"")], None, []],
        HEADERS,
    )[1:]
    (batch,) = encode(keys, values, pa.array([1, 2, 3]), headers)
    assert [(record.key, record.value, record.headers) for record in decode_batch(batch.body)] == [
        (None, b"1", (("y", None), ("z", b""))),
        (b"ccc", b"22", ()),
        (b"dd", None, ()),
    ]


def test_stretches_follow_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.kernels import encode as encoding

    monkeypatch.setattr(encoding, "STRETCH_BYTES", 500)
    some = [
        Record(offset_delta=0, timestamp=number, key=None, value=bytes(100), headers=())
        for number in range(20)
    ]
    region = b"".join(batch.body for batch in encode_records(some))
    assert [row["offset"] for row in twin(region)] == list(range(20))
    assert len(batches_of(region)) > 4


def test_spark_refuses_chunks_of_2_gib_so_none_can_be() -> None:
    assert decoding.CHUNK_BYTES_MAX + DECOMPRESSED_BYTES_MAX < 2**31


def encode_records(some: list[Record], **options):
    return encode(
        pa.array([record.key for record in some], pa.binary()),
        pa.array([record.value for record in some], pa.binary()),
        np.array([record.timestamp for record in some], dtype=np.int64),
        pa.array([list(record.headers) for record in some], HEADERS),
        **options,
    )
