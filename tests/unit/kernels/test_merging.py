"""What the kernel merges equals what the plain twin merges, and holds the same records."""

import itertools
import os

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import merge
from penstock.kernels.crc import crc_of
from penstock.kernels.lz4 import NOT_PLAIN, unpack_frame
from penstock.kernels.merging import Merger
from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchError,
    stored_header,
)
from penstock.records.decode import CODECS, Record, decode_batch
from penstock.records.encode import encode_batch
from penstock.records.lz4 import compress_lz4
from penstock.records.merging import MERGED_BYTES_MAX, Merging, finish_batch
from support.examples import examples
from support.twins.merging import merge_batches

FAR = (1 << 63) - 1
times = st.one_of(
    st.integers(1_000_000, 1_000_100), st.integers(-1, 1 << 48), st.sampled_from((-FAR, FAR, 0))
)
records = st.builds(
    Record,
    offset_delta=st.just(0),
    timestamp=times,
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2
    ).map(tuple),
)
mergings = st.builds(
    Merging,
    codec=st.integers(-1, 4),
    gzip_level=st.sampled_from((-1, 1)),
    lz4_level=st.sampled_from((9, 3)),
    zstd_level=st.sampled_from((1, 3, -5)),
    bytes_max=st.sampled_from((MERGED_BYTES_MAX, 900, 200)),
)


def moved(record: Record, delta: int) -> Record:
    return Record(
        offset_delta=delta,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def sealed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
    return bytes(batch)


@st.composite
def batches(draw: st.DrawFn, base: int) -> bytes:
    some = draw(st.lists(records, min_size=1, max_size=5))
    widest = draw(st.sampled_from((len(some), 40)))
    deltas = sorted(
        draw(st.sets(st.integers(0, widest - 1), min_size=len(some), max_size=len(some)))
    )
    attributes = draw(st.sampled_from((0, 0, 0, 0, LOG_APPEND_TIME, DELETE_HORIZON, CONTROL)))
    try:
        batch = encode_batch(
            [moved(record, delta) for record, delta in zip(some, deltas, strict=True)],
            codec=draw(st.sampled_from(CODECS)),
            base_offset=base,
            producer_id=draw(st.integers(-1, 9)),
            producer_epoch=3,
            base_sequence=7,
            attributes=attributes,
        )
    except OverflowError:
        batch = encode_batch([moved(some[0], 0)], base_offset=base)
    batch[12:16] = draw(st.sampled_from((0, 0, 0, 1))).to_bytes(4, "big")
    kind = draw(st.sampled_from(("right",) * 8 + ("empty", "hostile", "far")))
    if kind == "empty":
        del batch[HEADER_BYTES:]
        batch[8:12] = (HEADER_BYTES - 12).to_bytes(4, "big")
        batch[22] &= ~CODEC_MASK
        batch[57:61] = bytes(4)
    elif kind == "hostile" and len(batch) > HEADER_BYTES:
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(HEADER_BYTES, len(batch) - 1))
            batch[at] = draw(st.integers(0, 255))
    elif kind == "far":
        batch[23:27] = ((1 << 31) - 1 - draw(st.integers(0, 9))).to_bytes(4, "big")
    return sealed(batch)


@st.composite
def regions(draw: st.DrawFn) -> list[bytes]:
    found: list[bytes] = []
    offset = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 8))):
        found.append(draw(batches(offset)))
        offset = stored_header(found[-1], 0).end_offset + draw(st.sampled_from((0, 0, 0, 9)))
    return found


def views(found: list[bytes]) -> list[memoryview]:
    return [memoryview(batch) for batch in found]


def read(found: list[bytes] | list[memoryview]) -> list[tuple[int, int, Record]]:
    """(offset, timestamp type, record) of the batches whose records can be read."""
    out = []
    for batch in views(found):  # type: ignore[arg-type]
        header = stored_header(batch, 0)
        if header.attributes & CONTROL:
            continue
        try:
            some = list(decode_batch(batch)) if header.record_count else []
        except BatchError:  # hostile bytes, which stay
            continue
        out += [
            (
                header.base_offset + one.offset_delta,
                header.attributes & LOG_APPEND_TIME,
                moved(one, 0),
            )
            for one in some
        ]
    return out


def split(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length = stored_header(data, at).length
        found.append(data[at : at + length])
        at += length
    return found


@settings(max_examples=examples(3), deadline=None)
@given(regions(), mergings, st.sampled_from((1 << 24, 700)))
def test_the_kernel_merges_as_the_twin_does(
    region: list[bytes], merging: Merging, chunk_bytes: int
) -> None:
    before = b"".join(region)
    found = b"".join(Merger(chunk_bytes=chunk_bytes).merge(memoryview(before), merging))
    expected = b"".join(merge_batches(views(region), merging))
    if chunk_bytes > len(before):
        assert found == expected
    merged = split(found)
    assert read(merged) == read(region)
    assert len(merged) <= len(region)
    spans = [(one.base_offset, one.end_offset) for one in (stored_header(m, 0) for m in merged)]
    assert spans[-1][1] == stored_header(region[-1], 0).end_offset
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    for batch in set(merged) - set(region):
        header = stored_header(batch, 0)
        assert header.producer_id == -1
        assert header.record_count
        assert len(batch) <= merging.bytes_max
        assert header.end_offset - header.base_offset <= 1 << 31


def one_record(offset: int, codec: str = "none", **fields: int) -> bytes:
    value = b"%06d" % offset + b"abcdefgh" * 8
    record = Record(offset_delta=0, timestamp=1000 + offset, key=None, value=value, headers=())
    return bytes(encode_batch([record], codec=codec, base_offset=offset, **fields))


def test_the_time_of_an_append_may_be_before_any_clock() -> None:
    record = Record(offset_delta=0, timestamp=-5000, key=None, value=b"v", headers=())
    region = [
        bytes(encode_batch([record], base_offset=n, attributes=LOG_APPEND_TIME)) for n in range(3)
    ]
    (batch,) = Merger().merge(memoryview(b"".join(region)), Merging())
    assert stored_header(batch, 0).max_timestamp == -5000
    assert read([batch]) == read(region)


@pytest.mark.parametrize("codec", CODECS)
def test_one_record_batches_of_any_codec_become_one(codec: str) -> None:
    region = [one_record(n, codec, producer_id=5, base_sequence=n) for n in range(500)]
    merger = Merger()
    (batch,) = merger.merge(memoryview(b"".join(region)), Merging(codec=CODECS.index("zstd")))
    assert merger.merged_batches == 500
    assert len(batch) < 5_000
    header = stored_header(batch, 0)
    assert (header.base_offset, header.end_offset, header.record_count) == (0, 500, 500)
    assert (header.attributes, header.max_timestamp) == (CODECS.index("zstd"), 1499)
    assert read([batch]) == read(region)


def test_the_commonest_codec_is_taken_where_none_is_said() -> None:
    region = [one_record(n, "zstd" if n % 3 else "lz4") for n in range(100)]
    (batch,) = Merger().merge(memoryview(b"".join(region)), Merging())
    assert stored_header(batch, 0).attributes == CODECS.index("zstd")


def test_a_wrong_crc_is_found_before_anything_is_merged() -> None:
    region = bytearray(b"".join(one_record(n) for n in range(10)))
    region[800] ^= 1
    with pytest.raises(CorruptDataError, match="CRC-32C differs"):
        list(Merger().merge(memoryview(region), Merging()))
    with pytest.raises(CorruptDataError, match="CRC-32C differs"):
        merge_batches(views(split(bytes(region))), Merging())


def test_a_merged_batch_that_lost_a_record_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong between the records and the bytes that are stored."""

    def broken(merging: Merging, codec: int, header: object, body: memoryview) -> bytearray:
        changed = bytearray(body)
        changed[-3] ^= 1
        return finish_batch(merging, codec, header, changed)  # type: ignore[arg-type]

    monkeypatch.setattr("penstock.kernels.merging.finish_batch", broken)
    region = b"".join(one_record(n) for n in range(10))
    with pytest.raises(CorruptDataError, match="doesn't hold the 10 records of its 10 inputs"):
        list(Merger().merge(memoryview(region), Merging()))


def test_batches_of_log_append_time_keep_their_stamps() -> None:
    stamped = []
    for n in range(6):
        batch = bytearray(one_record(n, attributes=LOG_APPEND_TIME))
        batch[35:43] = (5000 + n // 3).to_bytes(8, "big")
        stamped.append(sealed(batch))
    merged = split(b"".join(Merger().merge(memoryview(b"".join(stamped)), Merging())))
    assert [stored_header(batch, 0).record_count for batch in merged] == [3, 3]
    assert read(merged) == read(stamped)


@given(st.binary(max_size=300), st.integers(0, 7))
def test_the_crc_is_the_librarys(data: bytes, start: int) -> None:
    array = np.frombuffer(bytes(start) + data, dtype=np.uint8)
    assert crc_of(array.ctypes.data, start, len(array)) == crc32c(data)


def unpack(frame: bytes, room: int) -> bytes | None:
    source, out = np.frombuffer(frame, dtype=np.uint8), np.full(room + 8, 0xEE, dtype=np.uint8)
    end = unpack_frame(source.ctypes.data, 0, len(frame), out.ctypes.data, 0, room)
    assert (out[room:] == 0xEE).all()
    return None if end == NOT_PLAIN else out[:end].tobytes()


@settings(max_examples=examples(1), deadline=None)
@given(st.binary(max_size=60), st.integers(1, 3000), st.data())
def test_lz4_frames_are_unpacked_as_the_library_does(
    seed: bytes, times: int, data: st.DataObject
) -> None:
    body = (seed + os.urandom(3)) * times
    frame = bytearray(compress_lz4(body))
    assert unpack(bytes(frame), len(body)) == body
    assert unpack(bytes(frame), len(body) - 1) is None
    for _ in range(20):
        broken = bytearray(frame)
        at = data.draw(st.integers(0, len(frame) - 1))
        broken[at] = data.draw(st.integers(0, 255))
        unpack(bytes(broken), len(body))  # within its room, whatever it finds
    assert unpack(bytes(frame[:-1]), len(body)) is None


def test_what_stays_is_given_on_as_it_lies() -> None:
    """Large batches are neither copied nor looked into."""
    value = os.urandom(70_000)
    large = bytes(
        encode_batch([Record(offset_delta=0, timestamp=1, key=None, value=value, headers=())])
    )
    region = memoryview(large)
    (found,) = Merger().merge(region, Merging())
    assert found.obj is region.obj
    assert merge.STAYS == -1
