"""Damage of a WAL is put right only where it still is, and another cluster's object is whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.log.checking import Rules, check_batches
from penstock.records.decode import decode_batch
from penstock.segment import (
    FOOTER_BYTES,
    build_segment,
    parse_footer,
    parse_index,
)
from penstock.segment.format import Mark, SegmentRun
from sim import rot
from sim.foreign import foreign
from sim.rot import Rot, WalDamage
from support.batches import make_batch
from support.simulated.device import SimulatedDevice

AT = 5000


@pytest.mark.parametrize("is_written_again", [True, False])
def test_a_block_that_was_written_again_is_left_as_it_is(
    is_written_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rot, "generation_of", lambda _: 2)
    device = SimulatedDevice()
    file = device.open("00000001.wal", create=True)
    file.write_at(0, [b"r" * 8192])
    device.flip_bit("00000001.wal", AT, 3)
    damage = WalDamage(device, "00000001.wal", AT, 3, 2, ord("r") ^ 8)
    loop = SimpleNamespace(time=lambda: 10.0)
    damages = Rot(cast(Any, SimpleNamespace(loop=loop)))
    damages._wals.append(damage)
    if is_written_again:
        file.write_at(4096, [b"r" * 4096])
    damages.mend_wal(damage)
    assert bytes(file.read_at(0, 8192)) == b"r" * 8192
    # Who has read the damage says so a moment later.
    assert damages.is_in(device)
    assert not damages.is_in(SimulatedDevice())
    loop.time = lambda: 10.1 + rot.MOMENT_S
    assert not damages.is_in(device)


def test_another_clusters_object_is_whole_and_of_the_same_layout() -> None:
    topics, values = [bytes([number] * 16) for number in (3, 7)], [b"p1/0/xx", b"k2/17/b/-"]
    batches = [bytes(make_batch(value)) for value in values]
    built = build_segment(
        [
            SegmentRun(
                topic_id=topic,
                partition=0,
                base_offset=0,
                end_offset=1,
                record_count=1,
                batch_count=1,
                max_timestamp=5,
                parts=[batch],
                length=len(batch),
                marks=[Mark(base_offset=0, position=0, max_timestamp=-1)],
            )
            for topic, batch in zip(topics, batches, strict=True)
        ]
    )
    right = b"".join(bytes(part) for part in built.parts)
    data = foreign(right)
    footer = parse_footer(data[-FOOTER_BYTES:], size_bytes=len(right), subject="o")
    end = footer.index_position + footer.index_length
    rows = parse_index(data[footer.index_position : end], footer, subject="o")
    assert not {row.topic_id for row in rows} & set(topics)
    assert [row.position for row in rows] == list(built.positions)
    found = [
        record.value
        for row in rows
        for record in decode_batch(memoryview(data)[row.position : row.position + row.length])
    ]
    assert found == [b"q1/0/xx", b"j2/17/b/-"]
    for row in rows:
        checked = check_batches(
            memoryview(data)[row.position : row.position + row.length], Rules(1), 0
        )
        assert (checked.fault, checked.batch_count) == (None, 1)
