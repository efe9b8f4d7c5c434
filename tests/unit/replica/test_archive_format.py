"""Names, headers and rows of the archive: what goes in comes out, and damage is told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.ports.journal import JournalRow
from penstock.replica.archive_format import (
    HEADER_BYTES,
    MARKED_HEADER_BYTES,
    ArchiveHeader,
    ArchiveKind,
    Coverage,
    SnapshotName,
    StretchName,
    decode_header,
    decode_rows,
    encode_header,
    encode_rows,
    parse_snapshot_key,
    parse_stretch_key,
)
from penstock.replica.marks import RowMark

positions = st.integers(0, 2**63 - 1)


def _header(first: int = 1, last: int = 1) -> ArchiveHeader:
    return ArchiveHeader(
        kind=ArchiveKind.STRETCH,
        cluster_id="simulated-cluster-0001",
        first=first,
        last=last,
        first_ms=-5,
        last_ms=1_800_000_000_000,
        raw_bytes=10,
        payload_bytes=20,
        payload_crc=0xDEADBEEF,
        digest=bytes(range(32)),
    )


@given(positions, positions)
def test_names_survive_and_sort_by_position(one: int, two: int) -> None:
    first, last = sorted((one, two))
    stretch = StretchName(first, last)
    assert parse_stretch_key(stretch.key) == stretch
    snapshot = SnapshotName(one, "0123456789abcdef")
    assert parse_snapshot_key(snapshot.key) == snapshot
    assert (SnapshotName(one, "f" * 16).key < SnapshotName(two, "0" * 16).key) == (one < two)


@pytest.mark.parametrize("key", ["archive/journal/1-2.entries.zst", "", "segments/ab/1-1-1.seg"])
def test_other_keys_are_no_names(key: str) -> None:
    assert parse_stretch_key(key) is None
    assert parse_snapshot_key(key) is None
    backwards = StretchName(5, 4).key
    assert parse_stretch_key(backwards) is None


def test_a_header_survives() -> None:
    data = encode_header(_header(3, 9))
    assert len(data) == HEADER_BYTES == 140
    assert decode_header(data, kind=ArchiveKind.STRETCH, subject="s") == _header(3, 9)


def test_a_snapshots_header_has_a_mark() -> None:
    mark = RowMark(9, -3, 0xFFFFFFFF)
    header = replace(_header(9, 9), kind=ArchiveKind.SNAPSHOT, mark=mark)
    data = encode_header(header)
    assert len(data) == MARKED_HEADER_BYTES == header.header_bytes == 160
    assert decode_header(data, kind=ArchiveKind.SNAPSHOT, subject="s") == header
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(CorruptDataError):
            decode_header(damaged, kind=ArchiveKind.SNAPSHOT, subject="s")
    with pytest.raises(CorruptDataError):
        decode_header(data[:-1], kind=ArchiveKind.SNAPSHOT, subject="s")


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_header_is_damage(at: int, difference: int) -> None:
    data = bytearray(encode_header(_header()))
    data[at] ^= difference
    with pytest.raises(CorruptDataError):
        decode_header(data, kind=ArchiveKind.STRETCH, subject="s")


def test_another_kind_a_cut_header_and_a_newer_version_are_refused() -> None:
    data = encode_header(_header())
    with pytest.raises(CorruptDataError, match="kind"):
        decode_header(data, kind=ArchiveKind.SNAPSHOT, subject="s")
    with pytest.raises(CorruptDataError):
        decode_header(data[:-1], kind=ArchiveKind.STRETCH, subject="s")
    from crc32c import crc32c

    newer = bytearray(data[:-4])
    newer[8] = 3
    newer += crc32c(newer).to_bytes(4, "big")
    with pytest.raises(InvalidRequestError, match="version 3"):
        decode_header(newer, kind=ArchiveKind.STRETCH, subject="s")


rows_strategy = st.lists(
    st.tuples(st.integers(-(2**62), 2**62), st.binary(max_size=30)), min_size=1, max_size=20
)


@given(st.integers(1, 1 << 40), rows_strategy)
def test_rows_survive(first: int, entries: list[tuple[int, bytes]]) -> None:
    rows = [JournalRow(first + n, stamp, body) for n, (stamp, body) in enumerate(entries)]
    header = _header(first, rows[-1].position)
    assert list(decode_rows(encode_rows(rows), header, subject="s")) == rows


@given(rows_strategy, st.data())
def test_cut_rows_and_those_of_another_range_are_damage(
    entries: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    rows = [JournalRow(5 + n, stamp, body) for n, (stamp, body) in enumerate(entries)]
    raw = encode_rows(rows)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CorruptDataError):
        list(decode_rows(raw[:cut], _header(5, rows[-1].position), subject="s"))
    with pytest.raises(CorruptDataError):
        list(decode_rows(raw, _header(6, rows[-1].position + 1), subject="s"))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8)), max_size=20),
    st.integers(1, 30),
    st.integers(1, 40),
)
def test_stretches_are_picked_that_hold_each_position(
    ranges: list[tuple[int, int]], start: int, end: int
) -> None:
    names = [StretchName(first, first + more) for first, more in ranges]
    held = {number for name in names for number in range(name.first, name.last + 1)}
    coverage = Coverage(names)
    position = start
    while position <= end:
        if position not in held:
            with pytest.raises(CorruptDataError, match=str(position)):
                coverage.holding(position)
            return
        name = coverage.holding(position)
        assert name.first <= position <= name.last
        position = name.last + 1


def test_when_one_is_damaged_another_that_holds_the_rows_is_given() -> None:
    coverage = Coverage([StretchName(1, 10), StretchName(1, 6), StretchName(5, 10)])
    assert coverage.holding(1) == StretchName(1, 10)
    assert coverage.holding(1) == StretchName(1, 6)
    assert coverage.holding(7) == StretchName(5, 10)
    with pytest.raises(CorruptDataError):
        coverage.holding(7)
