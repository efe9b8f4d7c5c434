"""A simulated stream loses nothing in the middle."""

from __future__ import annotations

import asyncio

import pytest

from sim.chance import Chance
from sim.streams import Way
from support.simulated.virtual_loop import VirtualLoop, run

SENT = bytes(range(256))


def _carried(seed: int, *, is_cut: bool) -> tuple[bytes, int, int]:
    """What arrives of SENT, in how many pieces, and how often the end is told."""
    pieces: list[bytes] = []
    ends: list[int] = []

    async def main(loop: VirtualLoop) -> None:
        chance = Chance(seed)
        way = Way(
            loop,
            chance,
            delay=lambda: chance.uniform(0.001, 0.1),
            arrived=pieces.append,
            ended=lambda: ends.append(len(pieces)),
            capacity_bytes=100,
        )
        left = SENT
        while left:
            taken = min(len(left), way.room_bytes)
            way.send(left[:taken])
            left = left[taken:]
            await asyncio.sleep(0.01)
        if is_cut:
            way.cut()
        way.end()
        way.send(b"too late")
        await asyncio.sleep(60)
        assert ends == [len(pieces)]

    run(main, Chance(seed))
    return b"".join(pieces), len(pieces), len(ends)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_their_order_whatever_the_pieces(seed: int) -> None:
    carried, pieces, _ = _carried(seed, is_cut=False)
    assert carried == SENT
    assert pieces > 1


def test_a_cut_loses_a_last_part() -> None:
    carried = [_carried(seed, is_cut=True)[0] for seed in range(20)]
    assert all(SENT.startswith(found) for found in carried)
    assert len({len(found) for found in carried}) > 5
