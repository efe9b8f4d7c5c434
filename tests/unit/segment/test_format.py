"""What is built is read back; what is damaged is named; seeks read one stretch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    IndexedRun,
    Mark,
    SegmentRun,
    build_segment,
    check_header,
    parse_footer,
    parse_index,
)


@st.composite
def _runs(draw: st.DrawFn) -> list[SegmentRun]:
    places = draw(
        st.sets(
            st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**20)),
            min_size=1,
            max_size=6,
        )
    )
    return [_run(topic, partition, draw) for topic, partition in sorted(places)]


def _run(topic_id: bytes, partition: int, draw: st.DrawFn) -> SegmentRun:
    base = offset = draw(st.integers(0, 2**60))
    batches = draw(
        st.lists(
            st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 50), st.integers(0, 99)),
            min_size=1,
            max_size=8,
        )
    )
    every = draw(st.integers(1, 3))
    marks, position, newest, records = [], 0, -1, 0
    for number, (data, count, timestamp) in enumerate(batches):
        if number % every == 0:
            marks.append(Mark(offset, position, newest))
        offset += count
        records += count
        position += len(data)
        newest = max(newest, timestamp)
    return SegmentRun(
        topic_id=topic_id,
        partition=partition,
        base_offset=base,
        end_offset=offset,
        record_count=records,
        batch_count=len(batches),
        max_timestamp=newest,
        parts=[data for data, _, _ in batches],
        length=position,
        marks=marks,
    )


def _parse(data: bytes) -> tuple[IndexedRun, ...]:
    check_header(data[:HEADER_BYTES], subject="the-key")
    footer = parse_footer(data[-FOOTER_BYTES:], size_bytes=len(data), subject="the-key")
    start, end = footer.index_position, footer.index_position + footer.index_length
    return parse_index(data[start:end], footer, subject="the-key")


def _example(count: int = 2) -> tuple[bytes, list[SegmentRun]]:
    runs = [
        SegmentRun(
            topic_id=bytes([7] * 16),
            partition=number,
            base_offset=100,
            end_offset=130,
            record_count=30,
            batch_count=3,
            max_timestamp=60,
            parts=[b"a" * 10, b"b" * 10, b"c" * 10],
            length=30,
            marks=[Mark(100, 0, -1), Mark(110, 10, 50), Mark(120, 20, 60)],
        )
        for number in range(count)
    ]
    return b"".join(build_segment(runs).parts), runs


@given(_runs())
def test_a_built_segment_is_read_back(runs: list[SegmentRun]) -> None:
    built = build_segment(runs)
    data = b"".join(built.parts)
    assert len(data) == built.size_bytes
    indexed = _parse(data)
    assert [run.position for run in indexed] == built.positions
    for run, row in zip(runs, indexed, strict=True):
        assert data[row.position : row.position + row.length] == b"".join(run.parts)
        for field in [
            "topic_id",
            "partition",
            "base_offset",
            "end_offset",
            "length",
            "batch_count",
            "record_count",
            "max_timestamp",
        ]:
            assert getattr(row, field) == getattr(run, field)
        assert row.marks == tuple(run.marks)


def test_the_data_is_not_copied() -> None:
    part = bytearray(b"x" * 30)
    _, (run, _) = _example()
    built = build_segment(
        [
            SegmentRun(
                topic_id=run.topic_id,
                partition=0,
                base_offset=0,
                end_offset=1,
                record_count=1,
                batch_count=1,
                max_timestamp=0,
                parts=[part],
                length=30,
                marks=[],
            )
        ]
    )
    assert any(one is part for one in built.parts)


def test_unsorted_runs_are_a_bug() -> None:
    _, runs = _example()
    with pytest.raises(AssertionError, match="not sorted"):
        build_segment(runs[::-1])
    with pytest.raises(AssertionError, match="not sorted"):
        build_segment([runs[0], runs[0]])


def test_every_flipped_bit_outside_the_data_is_named() -> None:
    data, _ = _example()
    footer = parse_footer(data, size_bytes=len(data), subject="the-key")
    places = [*range(HEADER_BYTES), *range(footer.index_position, len(data))]
    for place in places:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptDataError, match="the-key at byte"):
                _parse(bytes(damaged))


def test_every_truncation_is_named() -> None:
    data, _ = _example()
    for length in range(len(data)):
        with pytest.raises(CorruptDataError, match="the-key"):
            parse_footer(data[:length][-FOOTER_BYTES:], size_bytes=length, subject="the-key")


@given(st.binary(max_size=200), st.integers(0, 300))
def test_arbitrary_bytes_give_only_our_error(data: bytes, size_bytes: int) -> None:
    with pytest.raises(CorruptDataError):
        parse_footer(data, size_bytes=size_bytes, subject="k")
    with pytest.raises(CorruptDataError):
        check_header(data, subject="k")


@given(st.data())
def test_an_index_that_lies_under_a_right_crc_gives_only_our_error(data: st.DataObject) -> None:
    """A writer's bug is found by the reader too: rows that contradict one another."""
    from crc32c import crc32c

    from penstock.segment import Footer

    whole, _ = _example()
    footer = parse_footer(whole, size_bytes=len(whole), subject="k")
    block = bytearray(whole[footer.index_position : -FOOTER_BYTES])
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    lying = Footer(
        index_position=footer.index_position,
        index_length=len(block),
        index_crc=crc32c(bytes(block)),
        flags=1,
    )
    try:
        runs = parse_index(bytes(block), lying, subject="k")
    except CorruptDataError:
        return
    assert sum(run.length for run in runs) == footer.index_position - HEADER_BYTES


def test_a_seek_by_offset_reads_the_stretch_with_its_batch() -> None:
    data, _ = _example()
    run = _parse(data)[1]
    for offset, part in [(100, b"a"), (109, b"a"), (110, b"b"), (120, b"c"), (129, b"c")]:
        start, end = run.stretch_of_offset(offset)
        assert data[start:end] == part * 10
