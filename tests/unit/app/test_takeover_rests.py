"""A takeover that damage stops is not tried again and again: every attempt is a claim."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.app.wal_volumes import WalVolumes
from penstock.model.errors import CorruptDataError
from support.simulated.clock import ManualClock


class View:
    """Of a cluster without another agent."""

    def agents(self) -> list[Any]:
        return []


async def test_a_takeover_that_damage_stops_rests_for_twice_as_long_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    tries: list[float] = []
    found = {b"w": tmp_path}

    async def take_over(_: str) -> int:
        tries.append(clock.monotonic_s() - began_s)
        raise CorruptDataError("take over WAL", "w", "7 bytes are left")

    monkeypatch.setattr(WalVolumes, "_find", lambda _, __: dict(found))
    began_s = clock.monotonic_s()
    with ThreadPoolExecutor(1) as pool:
        volumes = WalVolumes(
            pattern="",
            own=tmp_path,
            me=1,
            view=View(),  # type: ignore[arg-type]
            queries=lambda: None,  # type: ignore[arg-type, return-value]
            clock=clock,
            pool=pool,
            take_over=take_over,
        )

        async def seconds(count: int) -> None:
            for _ in range(count // 5):
                await volumes.run_once()
                clock.advance(5)

        with caplog.at_level(logging.ERROR):
            await seconds(4000)
        assert tries == [0, 60, 180, 420, 900, 1800, 2700, 3600]
        assert caplog.text.count("was stopped by damage") == len(tries)
        assert "8 times in a row, and is tried again in 900 s" in caplog.text
        # Once it is gone (taken over by another, or settled) the next one begins at the first.
        found.clear()
        await seconds(10)
        found[b"w"] = tmp_path
        tries.clear()
        await seconds(70)
        assert len(tries) == 2
