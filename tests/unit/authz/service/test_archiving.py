"""Sets of snapshots: a new instance begins with one, the journal is trimmed behind them."""

import asyncio
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.authz.service.archiving import SetArchive
from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.objects import LocalStore
from penstock.replica.snapshot_turns import SnapshotSettings
from support.authz_world import (
    contents,
    opened_authz,
    path_of,
    roles_of,
    set_roles_policy,
    written_for_sure,
)
from support.examples import examples
from support.simulated.device import SimulatedDevice
from support.simulated.faulty import Faulty
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import run

BY_HAND = SnapshotSettings(entries=1, interval_s=1e9, look_s=1e9)
"""Due after each entry, and looked at where the test says so."""


@pytest.fixture
async def world(virtual_loop, tmp_path):
    async with opened_authz(virtual_loop, tmp_path) as made:
        yield made
    assert not virtual_loop.faults, virtual_loop.faults


@pytest.fixture
def store():
    return LocalStore(SimulatedDevice())


async def two_sets(world, store):
    """A service that has taken two sets, with entries before, between and after them."""
    service = await world.started("one", snapshots=store, snapshot_settings=BY_HAND)
    environment = service.environment("default")
    await set_roles_policy(environment)
    await service.directory.create_environment("quiet")
    for turn in range(2):
        await written_for_sure(environment, f"before-{turn}")
        assert await service.archivist.run_once()
    await written_for_sure(environment, "after")
    return service


async def check_equal(world, *services):
    """All have the same databases in the end."""
    token = await written_for_sure(services[0].environment("default"), "last")
    for service in services:
        await service.environment("default").reach(token)
        assert not service.failed.done()
    paths = [path_of(service) for service in services]
    for service in services:
        await world.close(service)
    found = [contents(path) for path in paths]
    for digest, entries in found:
        assert digest == found[0][0]
        # A database that was made of a snapshot has the entries since.
        assert entries == found[0][1][-len(entries) :]
    return roles_of(paths[0])


async def test_a_new_instance_begins_with_the_newest_set(world, store):
    one = await two_sets(world, store)
    assert world.journal.first > 1
    two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    assert two.directory.environments == ["default", "quiet"]
    assert two.environment("quiet").position == 1
    assert contents(path_of(two))[1] != contents(path_of(one))[1]
    assert await check_equal(world, one, two) == {"before-0", "before-1", "after", "last"}


async def test_without_snapshots_a_trimmed_journal_is_of_no_use(world, store):
    await two_sets(world, store)
    with pytest.raises(NotFoundError, match="trimmed"):
        await world.started("two")


async def test_what_is_before_the_last_two_sets_is_deleted(world, store):
    one = await two_sets(world, store)
    for turn in range(3):
        await written_for_sure(one.environment("default"), f"more-{turn}")
        assert await one.archivist.run_once()
    keys = [info.key async for info in store.list("")]
    kinds = [key.partition("/")[0] + key.rpartition(".")[2] for key in keys]
    assert [sum(key.startswith(prefix) for key in keys) for prefix in ("sets/", "shard/")] == [2, 2]
    assert sum(key.startswith("environments/default/") for key in keys) == 2, kinds
    # It hasn't changed: one serves both sets.
    assert sum(key.startswith("environments/quiet/") for key in keys) == 1
    assert world.journal.first == int(next(key for key in keys if "sets/" in key)[5:25]) + 1


async def test_nothing_is_taken_where_nothing_was_written(world, store):
    one = await two_sets(world, store)
    assert await one.archivist.run_once()
    assert not await one.archivist.run_once()
    assert one.archivist.taken_count == 3


async def test_one_instance_at_a_time_takes_snapshots(world, store):
    services = [
        await world.started(name, snapshots=store, snapshot_settings=BY_HAND)
        for name in ("one", "two", "three")
    ]
    await set_roles_policy(services[0].environment("default"))
    taken = await asyncio.gather(*(each.archivist.run_once() for each in services))
    assert sorted(taken) == [False, False, True]
    assert sum([1 async for _ in store.list("sets/")]) == 1


async def test_snapshots_are_taken_by_time(world, store):
    often = SnapshotSettings(entries=1_000_000, interval_s=60, look_s=5)
    one = await world.started("one", snapshots=store, snapshot_settings=often)
    environment = one.environment("default")
    await set_roles_policy(environment)
    await asyncio.sleep(50)
    assert one.archivist.taken_count == 0
    await asyncio.sleep(20)
    assert one.archivist.taken_count == 1
    await asyncio.sleep(300)
    assert one.archivist.taken_count == 1
    await written_for_sure(environment, "alice")
    await asyncio.sleep(70)
    assert one.archivist.taken_count == 2


async def flip(store, key):
    """Damage the last byte of an object."""
    size = await store.size(key)
    body = bytearray(await store.get_range(key, 0, size))
    body[-1] ^= 1
    await store.put(key, [bytes(body)])


@pytest.mark.parametrize("prefix", ["sets/", "shard/", "environments/default/"])
async def test_a_damaged_set_is_passed_over_for_the_one_before(world, store, prefix, caplog):
    one = await two_sets(world, store)
    keys = [info.key async for info in store.list(prefix)]
    assert len(keys) == 2
    await flip(store, keys[-1])
    two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    assert "passing over a set of snapshots" in caplog.text
    assert await check_equal(world, one, two) == {"before-0", "before-1", "after", "last"}


async def test_where_no_set_is_whole_nothing_is_made(world, store):
    await two_sets(world, store)
    for key in [info.key async for info in store.list("shard/")]:
        await flip(store, key)
    with pytest.raises(CorruptDataError, match="CRC-32C"):
        await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    assert not (world.folder / "two" / "shard.sqlite").exists()


async def test_a_damaged_snapshot_that_would_serve_again_is_taken_again(world, store):
    one = await two_sets(world, store)
    (key,) = [info.key async for info in store.list("environments/quiet/")]
    await flip(store, key)
    assert await one.archivist.run_once()
    two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    assert two.environment("quiet").position == 1


async def test_nothing_is_trimmed_behind_a_damaged_set(world, store):
    one = await two_sets(world, store)
    first = world.journal.first
    keys = [info.key async for info in store.list("shard/")]
    await flip(store, keys[-1])
    assert await one.archivist.run_once()
    assert world.journal.first == first
    two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    assert await check_equal(world, one, two) == {"before-0", "before-1", "after", "last"}


async def test_an_instance_that_is_behind_begins_again(world, store):
    two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    await world.close(two)
    one = await two_sets(world, store)
    again = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    assert (again.data / "lost-1" / "shard.sqlite").exists()
    assert await check_equal(world, one, again) == {"before-0", "before-1", "after", "last"}


async def test_a_set_of_a_lost_history_is_passed_over(world, store):
    one = await two_sets(world, store)
    before = world.journal.head
    await written_for_sure(one.environment("default"), "lost")
    assert await one.archivist.run_once()
    world.journal.come_back_older(before)
    await asyncio.sleep(10)
    assert one.failed.exception() is not None
    await world.close(one)
    # The journal's positions are given again, to others.
    again = await world.started("one", snapshots=store, snapshot_settings=BY_HAND)
    for turn in range(10):
        await written_for_sure(again.environment("default"), f"again-{turn}")
    two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
    found = await check_equal(world, again, two)
    assert "lost" not in found
    assert {"before-0", "before-1", "after", "again-9"} <= found


@settings(max_examples=examples(0.2))
@given(seed=st.integers(0, 1 << 32))
def test_wherever_taking_a_set_ends_a_new_instance_has_all(seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")

    async def main(loop):
        store = LocalStore(SimulatedDevice())
        async with opened_authz(loop, folder, seed=seed) as world:
            failing = Faulty(store, random=SeededRandom(seed), fail_percent=3, lost_percent=3)
            one = await world.started("one", snapshots=failing, snapshot_settings=BY_HAND)
            environment = one.environment("default")
            await set_roles_policy(environment)
            written = set()
            for turn in range(6):
                written.add(f"{turn}")
                writing = asyncio.ensure_future(written_for_sure(environment, f"{turn}"))
                try:
                    await one.archivist.run_once()
                except RetryableError:
                    pass
                await writing
            two = await world.started("two", snapshots=store, snapshot_settings=BY_HAND)
            assert await check_equal(world, one, two) == written | {"last"}
        assert not loop.faults, loop.faults

    run(main, SeededRandom(seed))
    shutil.rmtree(folder)


async def test_a_set_of_another_journal_is_refused(world, store):
    one = await two_sets(world, store)
    other = SetArchive(store, cluster_id="other", folder=world.folder, executor=one._writing)
    (name, *_) = await other.names()
    with pytest.raises(Exception, match="prefix of its own"):
        await other.read(name)
