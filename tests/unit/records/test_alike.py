"""The walk by columns skips what the walk in Python takes, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import alike as alike_module
from penstock.records import walk as walk_module
from penstock.records.alike import skip_alike
from penstock.records.batch import BatchError
from penstock.records.walk import ALIKE_RECORDS, RecordWalk
from support.raw_batches import LIMITS, NOW, batch, field, good, raw_varint, record, varint
from support.record_rows import BROKEN, HEADER_OF_ONE, PARTS, RIGHT_PARTS

FAR = 1 << 62
HEADERS = varint(2) + (field(b"name") + field(b"v" * 70)) * 2


def outcome(whole: bytearray, limits: Any) -> Any:
    """What a walk comes to, words included."""
    try:
        walk = RecordWalk(memoryview(whole), limits, NOW)
        assert walk.advance()
    except BatchError as error:
        return error.fault, error.detail, error.record_errors
    return walk.max_timestamp, walk._seen, walk._headers_left, walk.decoded_bytes


def with_and_without(whole: bytearray, limits: Any, piece: int) -> tuple[Any, Any]:
    """What a walk comes to that skips all it can, and one that skips nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk_module, "PIECE_BYTES", piece)
        patch.setattr(alike_module, "RUN_MIN", 2)
        for name in ("_SKIPPED_MIN", "_ALONE_MIN"):
            patch.setattr(walk_module, name, 1)
        found = outcome(whole, limits)
        patch.setattr(walk_module, "_SKIPPED_MIN", FAR)
        return found, outcome(whole, limits)


@cache
def before(count: int) -> bytes:
    return good(count)


def run_of(first: int, row: dict[str, Any], times: list[int]) -> bytes:
    """Records that differ in their numbers and times alone."""
    return b"".join(
        record(first + index, **({"time_delta": varint(time)} | row))
        for index, time in enumerate(times)
    )


TIMES = st.lists(
    st.sampled_from([0, 0, 1, 1, 1, 5, -1, 63, 64, -64, -65, 8191, 8192, 10**6, 2**61, -(2**62)]),
    min_size=1,
    max_size=25,
) | st.builds(
    lambda start, step, count: [start + step * index for index in range(count)],
    st.sampled_from([0, 50, -70, 8180]),
    st.integers(0, 3),
    st.integers(1, 40),
)


@given(
    runs=st.lists(st.tuples(RIGHT_PARTS | RIGHT_PARTS | PARTS, TIMES), min_size=1, max_size=4),
    first=st.sampled_from([0, 0, 50, 8180]),
    flip=st.integers(0, 10**6),
    base=st.sampled_from([NOW, NOW, 0, -1, 2**63 - 1, -(2**63)]),
    compacts=st.booleans(),
    log_append_time=st.booleans(),
    past=st.sampled_from([2**63 - 1, 10**5]),
    headers=st.integers(9000, 9200),
    piece=st.integers(1, 3000),
)
def test_a_walk_comes_to_the_same_with_and_without(
    runs: list[tuple[dict[str, Any], list[int]]],
    first: int,
    flip: int,
    base: int,
    compacts: bool,
    log_append_time: bool,
    past: int,
    headers: int,
    piece: int,
) -> None:
    block, count = bytearray(), first
    for row, times in runs:
        row = {name: part for name, part in row.items() if name != "offset_delta" or flip % 2}
        block += run_of(count, row, times)
        count += len(times)
    if flip % 3 == 0:
        block[flip % len(block)] ^= 1 + flip % 255
    limits = replace(
        LIMITS,
        compacts=compacts and not first,
        log_append_time=log_append_time,
        timestamp_before_max_ms=past,
        records_max=headers,
    )
    whole = batch(before(first) + bytes(block), count, base_timestamp=base)
    with_it, without = with_and_without(whole, limits, piece if not first else 1 << 16)
    assert with_it == without


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_records_are_told_in_the_same_words(name: str) -> None:
    block, count, words = BROKEN[name]
    with_it, without = with_and_without(batch(block, count), LIMITS, 1 << 16)
    assert words in with_it[1]
    assert with_it == without


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 100, 8192])
@pytest.mark.parametrize("time", [3, 100, 10**6])
def test_a_byte_that_is_wrong_anywhere_in_a_run_is_seen(first: int, time: int) -> None:
    """Each byte of the first, a middle, and the last record, each bit of it; or 0 for it."""
    limits = replace(LIMITS, compacts=True)
    row = {"key": field(b"k" * 70), "value": field(b"v" * 64), "headers": HEADERS}
    rows = [record(first + n, time_delta=varint(time + n), **row) for n in range(12)]
    ahead = b"".join(record(n, key=field(b"")) for n in range(first))
    assert len(set(map(len, rows))) == 1
    for number in (0, 5, 11):
        for position in range(len(rows[0])):
            if rows[number][position] in b"kvname"[:3] and rows[number][position - 1] in b"kvname":
                continue  # inside a field
            for wrong in (*(1 << bit for bit in range(8)), rows[number][position]):
                broken = bytearray(rows[number])
                broken[position] ^= wrong
                block = b"".join([*rows[:number], broken, *rows[number + 1 :]])
                found, without = skipped(block, first=first, limits=limits)
                assert found == without, (number, position, wrong)
                if number == 0:  # in all of them
                    block = b"".join(
                        row[:position] + broken[position : position + 1] + row[position + 1 :]
                        for row in rows
                    )
                    found, without = skipped(block, first=first, limits=limits)
                    assert found == without, (position, wrong)
    whole = batch(ahead + b"".join(rows), first + 12)
    left = limits.records_max - 24
    assert outcome(whole, limits) == (NOW + time + 11, first + 12, left, len(whole) - 61)


def skipped(block: bytes, *, first: int, limits: Any) -> tuple[Any, Any]:
    """Of a walk that begins at record `first`: with and without."""

    def walked() -> Any:
        walk = RecordWalk(memoryview(batch(block, first + 12)), limits, NOW)
        walk._seen = first
        try:
            assert walk.advance()
        except BatchError as error:
            return error.fault, error.detail, error.record_errors
        return walk.max_timestamp, walk._seen, walk._headers_left

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike_module, "RUN_MIN", 2)
        patch.setattr(walk_module, "_SKIPPED_MIN", 1)
        found = walked()
        patch.setattr(walk_module, "_SKIPPED_MIN", FAR)
        return found, walked()


def skip(block: bytes, stop_at: int, **limits: Any) -> Any:
    values = {"low": -FAR, "high": FAR, "needs_keys": False, "headers_left": FAR}
    return skip_alike(block, stop_at=stop_at, **({"at": 0, "seen": 0} | values | limits))


ALL_WRONG: dict[str, dict[str, Any]] = {
    "a header without a name": {"headers": varint(1) + varint(-1) + field(b"v")},
    "a negative key's": {"key": varint(-2)},
    "a negative value's": {"value": varint(-2)},
    "bytes after the headers": {"headers": HEADER_OF_ONE + b"more"},
    "a time of ten bytes": {"time_delta": b"\xff" * 9 + b"\x02"},
}


@pytest.mark.parametrize("name", list(ALL_WRONG))
def test_records_that_are_wrong_alike_are_not_skipped(name: str) -> None:
    block = run_of(0, ALL_WRONG[name], [0] * 20)
    assert skip(block, 20)[:2] == (0, 0)
    with_it, without = with_and_without(batch(block, 20), LIMITS, 1 << 16)
    assert with_it == without
    assert with_it[0].name == "INVALID"


@given(
    st.sampled_from(
        [(-64, 63), (0, 63), (64, 400), (64, 8191), (-8192, -65), (8192, 10**6)]
    ).flatmap(lambda bounds: st.lists(st.integers(*bounds), min_size=8, max_size=40))
)
def test_the_greatest_time_is_found_wherever_it_lies(times: list[int]) -> None:
    found = skip(run_of(64, {}, times), 1000, seen=64)
    assert found[1:3] == (64 + len(times), max(times))


SHAPES: dict[str, Callable[[int], bytes]] = {
    "no key": lambda n: record(n, time_delta=varint(n // 100), value=field(b"v" * 100)),
    "a key": lambda n: record(n, time_delta=varint(n), key=field(b"%010d" % n)),
    "headers": lambda n: record(n, headers=HEADERS, value=field(b"v" * 900)),
    "tombstones": lambda n: record(n, key=field(b"%010d" % n), value=varint(-1)),
    "time that goes back": lambda n: record(n, time_delta=varint(-n * 3)),
    "time to and fro": lambda n: record(n, time_delta=varint(1000 + n % 7)),
    "nothing": lambda n: record(n, key=field(b""), value=field(b"")),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_right_records_of_one_size_are_skipped(name: str) -> None:
    """Else it would be right and of no use. A run shorter than RUN_MIN may be left."""
    rows = [SHAPES[name](n) for n in range(17_000)]
    block, at, seen = b"".join(rows), 0, 0
    alone = 0
    while seen < 16_990:
        found = skip_alike(
            block,
            at,
            seen=seen,
            stop_at=17_000,
            low=-(10**9),
            high=10**9,
            needs_keys=False,
            headers_left=40_000,
        )
        if found.seen == seen:
            alone += 1
            at, seen = at + len(rows[seen]), seen + 1
        else:
            at, seen = found.at, found.seen
    assert at == sum(map(len, rows[:seen]))
    assert alone < 40


def test_what_it_tells_is_what_was_there() -> None:
    rows = [
        record(n, key=field(b"k" * 300), time_delta=varint(-n), headers=HEADER_OF_ONE)
        for n in range(100, 150)
    ]
    assert skip(good(50), 64, headers_left=7) == (len(good(50)), 50, 0, 7)
    # Where the offset delta becomes wider, records have another size.
    assert skip(good(100) + b"\x0e", 200) == (len(good(64)), 64, 0, FAR)
    after = skip(good(100) + b"\x0e", 200, at=len(good(64)), seen=64)
    assert after == (len(good(100)), 100, 0, FAR)
    block = b"".join(rows)
    assert skip(block, 1000, seen=100, headers_left=60) == (len(block), 150, -100, 10)
    assert skip(good(100), 30)[1] == 30
    assert skip(b"", 100) == (0, 0, None, FAR)


def test_it_stops_at_the_limits() -> None:
    times = [0, 50, -50] * 8
    block = run_of(0, {"headers": HEADER_OF_ONE}, times)
    assert skip(block, 24, low=-50, high=50, headers_left=24)[1:] == (24, 50, 0)
    assert skip(block, 24, low=-49)[1] == 0
    assert skip(block, 24, high=49)[1] == 0
    assert skip(block, 24, headers_left=23)[1] == 23
    assert skip(block, 24, headers_left=7)[1] == 0
    assert skip(block, 24, needs_keys=True)[1] == 0
    late = run_of(0, {}, [5] * 20)
    assert (skip(late, 20, low=5)[1], skip(late, 20, low=6)[1]) == (20, 0)
    assert skip(late, 20, low=1 << 65)[1] == skip(late, 20, high=-(1 << 65))[1] == 0


def test_a_record_of_many_headers_is_left_to_the_walk() -> None:
    """Looking at them in vain would cost much."""
    rows = {count: varint(count) + (field(b"n") + field(b"v")) * count for count in (64, 65)}
    assert skip(run_of(0, {"headers": rows[64]}, [0] * 10), 10)[1] == 10
    assert skip(run_of(0, {"headers": rows[65]}, [0] * 10), 10)[1] == 0


def test_a_time_of_ten_bytes_is_left_to_the_walk() -> None:
    """The first may have 64 bits and another more."""
    times = [raw_varint(1 << 63)] * 10 + [b"\xff" * 9 + b"\x02"]
    block = b"".join(record(n, time_delta=time) for n, time in enumerate(times))
    assert skip(block, 11, low=-(1 << 65), high=1 << 65)[1] == 0


def test_looking_in_vain_is_done_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(data: bytes, at: int, *, seen: int, **rest: Any) -> Any:
        asked.append(seen)
        return skip_alike(data, at, seen=seen, **rest)

    monkeypatch.setattr(walk_module, "skip_alike", counted)
    rows = [record(n, value=field(bytes(n % 7))) for n in range(6000)]
    walk = RecordWalk(memoryview(batch(b"".join(rows), 6000)), LIMITS, NOW)
    assert walk.advance()
    assert asked[:5] == [0, 32, 96, 224, 480]
    asked.clear()
    rows[480:600] = [record(n, value=field(b"v" * 9)) for n in range(480, 600)]
    walk = RecordWalk(memoryview(batch(b"".join(rows), 6000)), LIMITS, NOW)
    assert walk.advance()
    assert asked[4:8] == [480, 600, 632, 696]  # often again
    assert len(asked) < 20
    asked.clear()
    walk = RecordWalk(memoryview(batch(good(6000), 6000)), LIMITS, NOW)
    assert walk.advance()
    assert asked == [0, 64]


def test_a_stretch_of_records_that_are_alike_is_bounded_too() -> None:
    walk = RecordWalk(memoryview(batch(good(6000), 6000)), LIMITS, NOW)
    assert not walk.advance(records=10)
    assert walk._seen == 64
    assert not walk.advance(records=20)
    assert walk._seen == 64 + 20 * ALIKE_RECORDS
    assert walk.advance()
    assert 600 <= walk.work < 700
