"""A run's description is what its batches' headers say, and damage is seen."""

from __future__ import annotations

import pytest

from penstock.model.errors import CorruptDataError
from penstock.records.batch import crc_is_right, stored_header
from penstock.segment import RunDescriber, build_segment, parse_footer, parse_index
from support.batches import make_batch

TOPIC = bytes(range(16))


def batch(base_offset: int, count: int, *, size: int = 10, time: int = 1000) -> bytes:
    values = [b"v" * size] * count
    return bytes(make_batch(*values, keys=[b"k"] * count, offset=base_offset, time=time, step=1))


def describer(base_offset: int) -> RunDescriber:
    return RunDescriber(base_offset=base_offset, operation="compact", subject="partition 3")


def test_final_batches_are_described() -> None:
    body = batch(5, 3) + batch(8, 2, time=5000) + batch(20, 1)
    run = describer(5)
    run.add(memoryview(body), checks_crc=True)
    described = run.describe(TOPIC, 3)
    assert (described.base_offset, described.end_offset) == (5, 21)
    assert (described.batch_count, described.record_count) == (3, 6)
    assert described.max_timestamp == 5001
    assert b"".join(described.parts) == body


def test_raw_batches_get_final_offsets_and_keep_their_crc() -> None:
    body = bytearray(batch(0, 3) + batch(0, 2))
    view = memoryview(body)
    run = describer(100)
    run.add(view, checks_crc=True, raw_offset=100)
    first = stored_header(view, 0)
    second = stored_header(view, first.length)
    assert (first.base_offset, second.base_offset) == (100, 103)
    assert run.end_offset == 105
    assert crc_is_right(view[: first.length])


def test_marks_lead_to_each_stretch_of_64_kib() -> None:
    bodies = [batch(n * 10, 10, size=2000, time=n) for n in range(40)]
    run = describer(0)
    for body in bodies:
        run.add(memoryview(body))
    segment = build_segment([run.describe(TOPIC, 0)])
    data = b"".join(segment.parts)
    footer = parse_footer(data, size_bytes=len(data), subject="it")
    (indexed,) = parse_index(
        data[footer.index_position : footer.index_position + footer.index_length],
        footer,
        subject="it",
    )
    for offset in range(0, 400, 7):
        start, end = indexed.stretch_of_offset(offset)
        assert stored_header(data, start).base_offset <= offset
        assert end - start < (64 << 10) + 2 * len(bodies[0])


@pytest.mark.parametrize("position", [8, 16, 17, 21, 30, 61, 70])
def test_damage_is_refused(position: int) -> None:
    body = bytearray(batch(5, 3))
    body[position] ^= 0x41
    with pytest.raises(CorruptDataError, match="partition 3"):
        describer(5).add(memoryview(body), checks_crc=True)


def test_batches_that_go_back_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="where 8 is due"):
        describer(5).add(memoryview(batch(5, 3) + batch(7, 1)))
    run = describer(5)
    run.add(memoryview(batch(5, 3)))
    with pytest.raises(CorruptDataError, match="where 8 is due"):
        run.add(memoryview(bytearray(batch(0, 1))), raw_offset=7)


def test_half_a_header_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="hold no batch"):
        describer(5).add(memoryview(batch(5, 3) + b"abc"))
