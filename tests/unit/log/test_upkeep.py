"""Snapshots are made when due, stored, enough to rebuild the state, and the journal is bounded."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from penstock.log.settings import LogSettings
from penstock.log.upkeep import SNAPSHOTS_PREFIX, Upkeep, snapshot_key, snapshot_position
from penstock.model.errors import ConflictError, StorageFullError
from penstock.model.ids import PartitionKey, partition_key
from penstock.replica.dump import canonical_dump
from penstock.replica.journal_files import JournalFiles
from penstock.replica.snapshot import verify_snapshot
from penstock.state.orders import open_local_journal, restore
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from support.log_rig import NOW, Rig, run_rig
from support.simulated.clock import ManualClock


async def stored(rig: Rig) -> list[int]:
    found = []
    async for info in rig.store.list(SNAPSHOTS_PREFIX):
        position = snapshot_position(info.key)
        assert position is not None
        found.append(position)
    return found


def journal_bounds(rig: Rig) -> tuple[int, int]:
    rig.journal.sync()
    journal = JournalFiles.open(PosixDevice(rig.path))
    return journal.floor, journal.last


async def write(rig: Rig, key: PartitionKey, count: int) -> None:
    for number in range(count):
        await rig.append(key, b"%d" % number)


@pytest.mark.options(snapshot_entries=20, snapshot_interval_ms=1000000)
async def test_a_snapshot_is_made_after_so_many_entries(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await write(rig, key, 5)
    await rig.upkeep.run_once()
    assert await stored(rig) == []
    await write(rig, key, 20)
    await rig.upkeep.run_once()
    assert await stored(rig) == [rig.journal.position]
    await write(rig, key, 5)
    await rig.upkeep.run_once()
    assert len(await stored(rig)) == 1


@pytest.mark.options(snapshot_interval_ms=60000)
async def test_a_snapshot_is_made_after_so_long_if_anything_happened(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.upkeep.run_once()
    assert await stored(rig) == []
    rig.clock.advance(61)
    await rig.upkeep.run_once()
    assert len(await stored(rig)) == 1
    rig.clock.advance(1000)
    await rig.upkeep.run_once()
    assert len(await stored(rig)) == 1, "nothing happened"
    await write(rig, key, 1)
    await rig.upkeep.run_once()
    assert len(await stored(rig)) == 2


@pytest.mark.slow
def test_a_server_that_is_restarted_often_makes_snapshots_too(tmp_path: Path) -> None:
    counts = []

    async def test(rig: Rig) -> None:
        await rig.upkeep.run_once()
        topic = rig.view.topic("t")
        key = partition_key(topic.topic_key, 0) if topic is not None else (await rig.topic("t"))[0]
        await write(rig, key, 8)
        counts.append(len(await stored(rig)))

    for _ in range(6):
        run_rig(tmp_path, test, snapshot_entries=20, snapshot_interval_ms=10**12)
    assert counts[0] == 0
    assert counts[-1] >= 1


@pytest.mark.slow
async def test_the_journal_is_trimmed_behind_the_snapshot_before_the_last(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    positions = []
    for _ in range(4):
        await write(rig, key, 10)
        positions.append((await rig.upkeep.snapshot()).position)
        assert await stored(rig) == positions[-2:]
        low, high = journal_bounds(rig)
        assert high == rig.journal.position
        assert low == (positions[-2] + 1 if len(positions) > 1 else 1)


@pytest.mark.slow
@pytest.mark.options(state_check_interval_ms=3_600_000)
async def test_the_journal_is_kept_for_the_check_that_is_to_come(rig: Rig) -> None:
    """The first check begins at nothing, and the next one where that ended."""
    (key,) = await rig.topic("t")
    for _ in range(4):
        await write(rig, key, 10)
        await rig.upkeep.snapshot()
    assert journal_bounds(rig)[0] == 1
    rig.clock.advance(3_601)
    await rig.upkeep.run_once()
    checked = rig.upkeep.checked_position
    assert checked == (await stored(rig))[-1]
    assert journal_bounds(rig)[0] == (await stored(rig))[-2] + 1
    for _ in range(3):
        await write(rig, key, 10)
        await rig.upkeep.snapshot()
    assert rig.upkeep.checked_position == checked
    assert journal_bounds(rig)[0] == checked + 1
    assert (await stored(rig))[0] == checked, "it is what the next check goes on from"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_each_kept_snapshot_and_the_journals_tail_make_the_same_state(
    tmp_path: Path, which: int
) -> None:
    """What disaster recovery has: a stored object and the entries past it."""

    async def test(rig: Rig) -> None:
        keys = await rig.topic("t", partitions=3)
        for _ in range(3):
            for key in keys:
                await write(rig, key, 4)
            await rig.drain()
            await rig.upkeep.snapshot()
        await rig.append(keys[0], b"p", producer=(77, 1, 0))
        await rig.log.delete_records([(keys[1], 5)])
        position = (await stored(rig))[which]
        key_text = snapshot_key(position)
        data = await rig.store.get_range(key_text, 0, await rig.store.size(key_text))
        snapshot = tmp_path / "snapshot.sqlite"
        snapshot.write_bytes(bytes(data))
        assert verify_snapshot(snapshot).position == position
        tail = list(rig.journal.journal_after(position))
        assert tail[-1].position == rig.journal.position
        rebuilt = tmp_path / "rebuilt" / "metadata.sqlite"
        rebuilt.parent.mkdir()
        restore(snapshot, rebuilt, tail=tail)
        dumps = []
        order = open_local_journal(
            rebuilt, clock=rig.clock, random=SystemRandom(), agent_id=rig.journal.agent_id
        )
        order.close()
        # Opening registers an epoch, as the next entry; so the original gets the same one.
        rig_again = open_local_journal(
            rig.path / "metadata.sqlite", clock=rig.clock, random=SystemRandom()
        )
        rig_again.close()
        for path in (rebuilt, rig.path / "metadata.sqlite"):
            with closing(sqlite3.connect(path)) as connection:
                dumps.append(b"".join(canonical_dump(connection)))
        assert dumps[0] == dumps[1]

    run_rig(tmp_path / "data", test)


@pytest.mark.slow
@pytest.mark.options(snapshot_entries=10)
async def test_a_snapshot_of_another_history_is_neither_counted_nor_deleted(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.store.put(snapshot_key(10**6), [b"of a journal that was restored since"])
    await rig.store.put(SNAPSHOTS_PREFIX + "note.txt", [b"not ours"])
    await write(rig, key, 20)
    await rig.upkeep.run_once()
    assert rig.journal.position in [
        position
        async for info in rig.store.list(SNAPSHOTS_PREFIX)
        if (position := snapshot_position(info.key)) is not None
    ]
    for _ in range(3):
        await write(rig, key, 1)
        await rig.upkeep.snapshot()
    keys = [info.key async for info in rig.store.list(SNAPSHOTS_PREFIX)]
    assert len(keys) == 4
    assert {snapshot_key(10**6), SNAPSHOTS_PREFIX + "note.txt"} <= set(keys)


class Full:
    """A store without space, as far as upkeep uses it."""

    def __init__(self) -> None:
        self.puts = 0

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.puts += 1
        raise StorageFullError("put", key, "no space")


@pytest.mark.slow
async def test_a_snapshot_of_another_state_is_never_written_over(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    first = snapshot_key((await rig.upkeep.snapshot()).position)
    other = bytes(await rig.store.get_range(first, 0, await rig.store.size(first)))
    await write(rig, key, 3)
    name = snapshot_key(rig.journal.position)
    await rig.store.put(name, [other])
    with pytest.raises(ConflictError, match="the store's has state"):
        await rig.upkeep.snapshot()
    assert bytes(await rig.store.get_range(name, 0, await rig.store.size(name))) == other
    await write(rig, key, 1)
    await rig.upkeep.snapshot()


@pytest.mark.options(snapshot_entries=10)
async def test_a_snapshot_that_failed_trims_nothing_and_is_tried_again_after_a_while(
    rig: Rig, tmp_path: Path
) -> None:
    (key,) = await rig.topic("t")
    await rig.upkeep.run_once()
    full = Full()
    real = rig.upkeep._store
    rig.upkeep._store = full  # type: ignore[assignment]
    await write(rig, key, 20)
    with pytest.raises(StorageFullError):
        await rig.upkeep.run_once()
    await rig.upkeep.run_once()
    assert full.puts == 1, "not at once"
    assert journal_bounds(rig) == (1, rig.journal.position)
    assert not list((tmp_path / "scratch").iterdir())
    rig.upkeep._store = real
    rig.clock.advance(61)
    await rig.upkeep.run_once()
    assert await stored(rig) == [rig.journal.position]


class Due:
    """A journal that counts."""

    position = 1
    checkpoint_due = True
    base_position = 0
    checkpoints = 0

    def checkpoint(self) -> None:
        self.checkpoints += 1
        self.checkpoint_due = False


def test_a_checkpoint_is_made_when_it_is_due(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        due = Due()
        upkeep = Upkeep(
            journal=due,  # type: ignore[arg-type]
            store=rig.store,
            scratch=tmp_path / "scratch",
            clock=ManualClock(now_ms=NOW),
            pool=rig.pool,
            limits=LogSettings(),
        )
        await upkeep.run_once()
        await upkeep.run_once()
        assert due.checkpoints == 1

    run_rig(tmp_path / "data", test)


@given(st.integers(0, 10**18), st.integers(0, 10**18))
def test_keys_sort_by_position_and_tell_it(one: int, other: int) -> None:
    assert snapshot_position(snapshot_key(one)) == one
    assert (snapshot_key(one) < snapshot_key(other)) == (one < other)


@given(st.text(max_size=30))
def test_other_keys_tell_no_position(text: str) -> None:
    assert snapshot_position(text) is None
    found = snapshot_position(SNAPSHOTS_PREFIX + text + ".sqlite")
    assert found is None or snapshot_key(found) == SNAPSHOTS_PREFIX + text + ".sqlite"


def test_the_settings_reach_it() -> None:
    from penstock.app.limits import log_limits
    from penstock.config.settings import ServerSettings

    limits = log_limits(ServerSettings(snapshot_interval_ms=123_000, snapshot_entries=45_000))
    assert (limits.snapshot_interval_ms, limits.snapshot_entries) == (123_000, 45_000)
