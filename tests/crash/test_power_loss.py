"""Power cuts and crashes at any moment leave a log that keeps every promise.

    SEED=12345            runs that one seed
    PENSTOCK_POWER_SEEDS  how many new seeds a run takes, 60 unless told

A seed decides load, moment of the cut and what the cut leaves. Two of three seeds run on one
thread and repeat exactly; the others run on the server's threads, whose order is their own.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.ids import partition_key
from penstock.order.local_journal import Prepared
from penstock.replica.snapshot import JournalEntry
from penstock.state.commands import TrimLog
from penstock.state.order_types import AppliedEntry
from penstock.wal import WalPlace
from support.power import World
from support.power_promises import Knowledge, PromiseBrokenError
from support.simulated_log import SimulatedLog

SEED_COUNT = int(os.environ.get("PENSTOCK_POWER_SEEDS", "60"))
ONLY_SEED = os.environ.get("SEED", "")
FIXED_SEEDS = (1, 2, 3, 4, 5, 6)
BUDGET_S = 60.0
SEEDS_MAX = SEED_COUNT + 200


def live(seed: int, folder: Path) -> Knowledge:
    """Run one seed; a failure says how to repeat it."""
    try:
        return World(seed, folder / str(seed)).run()
    except BaseException:
        print(
            f"repeat with SEED={seed} pytest tests/crash/test_power_loss.py -k new_seeds",
            file=sys.stderr,
        )
        raise


@pytest.mark.parametrize("seed", FIXED_SEEDS)
def test_fixed_seeds_keep_every_promise(tmp_path: Path, seed: int) -> None:
    live(seed, tmp_path)


def test_new_seeds_keep_every_promise(tmp_path: Path) -> None:
    """As many seeds as fit into the budget, up to the number asked for; and more until everything
    that a cut may hit has happened."""
    seeds = [int(ONLY_SEED)] if ONLY_SEED else [secrets.randbits(32) for _ in range(SEEDS_MAX)]
    totals: Counter[str] = Counter()
    cuts: Counter[str] = Counter()
    started_s = time.monotonic()
    for number, seed in enumerate(seeds):
        known = live(seed, tmp_path)
        totals["seeds"] += 1
        totals["segments"] += known.segment_count
        totals["trims"] += known.trim_count
        totals["objects deleted"] += known.deleted_object_count
        totals["records read"] += known.read_count
        totals["batches"] += sum(batch.base_offset is not None for batch in known.batches)
        cuts.update(text.partition(" ")[0] for text in known.cuts)
        is_slow = time.monotonic() - started_s > BUDGET_S
        if (number + 1 >= SEED_COUNT or is_slow) and has_happened(totals, cuts):
            break
    print(f"{dict(totals)} in {time.monotonic() - started_s:.1f} s; cuts before {dict(cuts)}")
    assert ONLY_SEED or has_happened(totals, cuts)


def has_happened(totals: Counter[str], cuts: Counter[str]) -> bool:
    """Whether the seeds did something, and cuts came before all kinds of durable steps."""
    done = all(totals[name] for name in ("segments", "trims", "objects deleted", "batches"))
    return done and {"write", "sync", "commit", "acknowledge"} <= cuts.keys()


# -- the harness can fail --------------------------------------------------------------------------


def acknowledge_before_sync(life: SimulatedLog) -> None:
    """A frame is synced by the one after it."""
    write = life.wal.write

    def late(*arguments: Any, **options: Any) -> WalPlace:
        if life.wal._file is not None:
            life.wal._file.sync()
        life.wal._fsync = False
        try:
            return write(*arguments, **options)
        finally:
            life.wal._fsync = True

    life.wal.write = late  # type: ignore[method-assign]


def database_before_frame(life: SimulatedLog) -> None:
    """The database is committed, and synced, with entries whose frames are not written yet."""
    journal = life.journal
    append_written = journal.append_written

    def early(entry: Prepared, write: Callable[[int, int], None]) -> AppliedEntry:
        def late(position: int, time_ms: int) -> None:
            replica = journal.inner._replica
            replica._transaction.commit()
            journal.states.synced()
            write(position, time_ms)

        return append_written(entry, late)

    journal.append_written = early  # type: ignore[method-assign]


def recycle_before_checkpoint(life: SimulatedLog) -> None:
    """WAL files are used again while a power cut may still bring back a state that needs them."""

    class NeverSynced:
        def commit(self) -> int:
            return life.journal.commit()

        def sync(self) -> int:
            return life.journal.commit()

    life.log.uploader._database = NeverSynced()


def skip_an_entry(tail: Iterator[JournalEntry]) -> Iterator[JournalEntry]:
    """The third entry that should be applied again is not, and those behind it move up."""
    for number, entry in enumerate(tail):
        if number < 2:
            yield entry
        elif number > 2:
            yield JournalEntry(entry.position - 1, entry.time_ms, entry.body)


def apply_none_again(tail: Iterator[JournalEntry]) -> Iterator[JournalEntry]:
    """The database is taken for all there is."""
    return iter(())


def objects_not_synced(life: SimulatedLog) -> None:
    """A put returns before the object's name is durable; the WAL is freed for it."""
    life.objects.sync_directory = lambda _: None  # type: ignore[method-assign]


def release_what_is_named(life: SimulatedLog) -> None:
    """WAL files are freed as soon as they are full."""
    uploader = life.log.uploader

    def release() -> None:
        for generation in sorted(uploader._generations):
            if generation < life.wal.active_generation:
                life.wal.release(generation)

    uploader._release_files = release  # type: ignore[method-assign]


def delete_without_condemning(life: SimulatedLog) -> None:
    """Whatever no run names is deleted at once, also what an upload is about to name."""
    keeper = life.log.keeper

    async def delete(keys: list[str]) -> int:
        await life.store.delete(keys)
        return 0

    keeper._condemn = delete  # type: ignore[method-assign]
    keeper._orphans._condemn = delete
    keeper._numbers.in_flight_from = lambda: 1 << 60  # type: ignore[method-assign]


def trim_too_much(life: SimulatedLog) -> None:
    """Retention takes what no policy asks it to take."""
    keeper = life.log.keeper

    async def trim() -> int:
        items = []
        for topic in life.view.topics():
            items += [partition_key(topic.topic_key, 0), -1]
        await life.log.commit([TrimLog(items=items)])
        return 0

    keeper.trim_expired = trim  # type: ignore[method-assign]


PLANTS: dict[str, dict[str, Any]] = {
    "acknowledged before it is synced": {"plant": acknowledge_before_sync},
    "in the database before it is in the WAL": {"plant": database_before_frame},
    "recycled before the database is synced": {"plant": recycle_before_checkpoint},
    "an entry is not applied again": {"plant_tail": skip_an_entry},
    "no entry is applied again": {"plant_tail": apply_none_again},
    "objects not synced": {"plant": objects_not_synced},
    "release of what is named": {"plant": release_what_is_named},
    "deletion without condemnation": {"plant": delete_without_condemning},
    "trim of what nobody asked for": {"plant": trim_too_much},
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(tmp_path: Path, plant: str) -> None:
    # One that a sixth of the seeds show is missed by 40 of them in seven of ten thousand trees.
    seeds = range(1000, 1200)
    for seed in seeds:
        try:
            World(seed, tmp_path / str(seed), **PLANTS[plant], crashes_too=False).run()
        except PromiseBrokenError as error:
            print(f"seed {seed}: {str(error)[:300]}")
            return
    pytest.fail(f"{len(seeds)} seeds did not find it")


def test_a_wal_without_syncs_is_found(tmp_path: Path) -> None:
    with pytest.raises(PromiseBrokenError):
        for seed in range(1000, 1020):
            World(seed, tmp_path / str(seed), fsync=False, crashes_too=False).run()


def test_a_crash_of_the_process_alone_needs_no_syncs(tmp_path: Path) -> None:
    """Without fsync a power cut may take what was acknowledged, but a crash takes nothing."""
    for seed in range(8):
        World(seed, tmp_path / str(seed), fsync=False, only_crashes=True).run()


def test_a_seed_repeats_itself(tmp_path: Path) -> None:
    """A stepped world makes the same calls again, so that a failure can be looked into."""
    seed = next(seed for seed in range(100) if World(seed, tmp_path).stepped)
    first, second = (World(seed, tmp_path / name) for name in ("first", "second"))
    first.run()
    second.run()
    assert first.known == second.known
