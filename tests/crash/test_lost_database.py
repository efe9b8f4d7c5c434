"""The database is lost, cut or overwritten at any moment, and nothing acknowledged is lost.

So it is where the newer of two snapshots is lost with it.

SEED=12345            runs that one seed
PENSTOCK_POWER_SEEDS  how many new seeds a run takes, 40 unless told
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from penstock.recovery.verify import verify
from penstock.state.commands import Noop
from support.power import NOW, World
from support.power_promises import PromiseBrokenError
from support.simulated.clock import ManualClock
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom
from support.simulated_log import DATABASE, SimulatedLog, keep_database

SEED_COUNT = int(os.environ.get("PENSTOCK_POWER_SEEDS", "40"))
ONLY_SEED = os.environ.get("SEED", "")


def seeds() -> list[int]:
    if ONLY_SEED:
        return [int(ONLY_SEED)]
    return [*range(1, 7), *(secrets.randbits(32) for _ in range(SEED_COUNT))]


def test_what_was_acknowledged_outlives_the_database(tmp_path: Path) -> None:
    """Each life ends with a power cut or a crash, and what it leaves of the database is damaged."""
    read = snapshots = 0
    for seed in seeds():
        try:
            known = World(
                seed,
                tmp_path / str(seed),
                loses_database=True,
                loses_snapshot=seed % 2 == 0,
            ).run()
        except BaseException as error:
            error.add_note(f"repeat with SEED={seed} pytest tests/crash/test_lost_database.py")
            raise
        read += known.read_count
        snapshots += known.snapshot_count
    print(f"{read} records read, {snapshots} snapshots")
    assert ONLY_SEED or (read > 1000 and snapshots > 10)


def test_a_journal_file_that_comes_back_leaves_no_hole_before_those_after_it(
    tmp_path: Path,
) -> None:
    """Two trims delete a journal file each, and nothing else syncs their folder in between: the
    file that follows both is durable before the first trim."""
    device, clock = SimulatedDevice(), ManualClock(now_ms=NOW)

    async def open_life(number: int, device: SimulatedDevice) -> SimulatedLog:
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        life = SimulatedLog(
            folder=folder,
            device=device,
            clock=clock,
            random=SeededRandom(number),
            stepped=True,
            on_cut=lambda _: None,
        )
        await life.start()
        return life

    async def write() -> int:
        life = await open_life(0, device)
        put = life.upkeep._put
        snapshots = 0

        async def put_and_go_on(*arguments: Any) -> None:
            """Another entry gets durable between the second snapshot and the trim behind it."""
            nonlocal snapshots
            await put(*arguments)
            snapshots += 1
            if snapshots == 2:
                await life.log.commit([Noop()])
                life.journal.sync()

        life.upkeep._put = put_and_go_on  # type: ignore[method-assign]
        for _ in range(3):
            await life.log.commit([Noop()])
            life.journal.sync()
            await life.upkeep.snapshot()
        assert len(device.list("journal")) == 1, "both of the others are deleted"
        position = life.journal.position
        life.switch.cut()
        keep_database(life.folder, tmp_path / "kept")
        await life.end()
        return position

    async def look(number: int, position: int) -> None:
        found = device.power_loss(SeededRandom(number))
        keep_database(tmp_path / "kept", tmp_path / str(number))
        if number % 2:
            (tmp_path / str(number) / DATABASE).unlink()
        life = await open_life(number, found)
        try:
            assert life.journal.position == position + 1, "its registration is the last"
            report = await verify(
                queries=life.queries(), store=life.store, wal=life.wal_reader, device=life.device
            )
            assert not [finding for finding in report.findings if finding.is_damage], number
        finally:
            await life.end()

    position = asyncio.run(write())
    for number in range(1, 25):
        asyncio.run(look(number, position))


def journal_not_synced(life: SimulatedLog) -> None:
    """WAL files are used again while a power cut may still take the journal files' end."""
    journal = life.journal.inner._replica._journal
    assert journal is not None
    journal._fsync = False


def journal_trimmed_too_far(life: SimulatedLog) -> None:
    """Entries go that the snapshot before the last does not cover."""
    journal = life.journal.inner._replica._journal
    assert journal is not None
    trim = journal.trim
    journal.trim = lambda position: trim(position + 1000)  # type: ignore[method-assign]


def unframed_entries_in_the_database_alone(life: SimulatedLog) -> None:
    """No entry is written to journal files: one without a WAL frame is in the database alone."""
    life.journal.inner._replica._transaction._journal = None


PLANTS: dict[str, Any] = {
    "journal not synced": journal_not_synced,
    "journal trimmed too far": journal_trimmed_too_far,
    "entries in the database alone": unframed_entries_in_the_database_alone,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(tmp_path: Path, plant: str) -> None:
    for seed in range(2000, 2200):
        world = World(
            seed,
            tmp_path / str(seed),
            plant=PLANTS[plant],
            loses_database=True,
            # Else the newest snapshot makes up for entries that only the one before it needs.
            loses_snapshot=True,
            crashes_too=False,
        )
        try:
            world.run()
        except PromiseBrokenError as error:
            print(f"seed {seed}: {str(error)[:300]}")
            return
    pytest.fail("200 seeds did not find it")
