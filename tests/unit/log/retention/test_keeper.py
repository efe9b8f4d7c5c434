"""The keeper's steps bear a crash between any two, and delete nothing that is named."""

from pathlib import Path

import pytest

from penstock.segment import object_key
from penstock.state import leftovers
from penstock.state.commands import DeleteTopic
from support.log_rig import Rig, run_rig


async def stored(rig: Rig) -> list[str]:
    return sorted([info.key async for info in rig.store.list("segments/")])


def test_each_step_of_a_deletion_may_be_the_last_before_a_crash(tmp_path: Path) -> None:
    keys: list[str] = []

    async def condemned(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        await rig.append(key, b"a")
        await rig.drain()
        keys.extend(await stored(rig))
        await rig.log.delete_records([(key, -1)])
        assert await rig.log.keeper.condemn_unreferenced() == 1
        assert await rig.log.keeper.delete_condemned() == 0, "the grace has not passed"

    async def deleted(rig: Rig) -> None:
        assert await stored(rig) == keys
        rig.clock.advance(61)
        # As a crash between the store's answer and the entry that forgets the key.
        await rig.store.delete(keys)
        assert rig.queries().object_known(keys[0])

    async def forgotten(rig: Rig) -> None:
        rig.clock.advance(61)
        assert await rig.log.keeper.delete_condemned() == 1
        assert not rig.queries().object_known(keys[0])

    for step in (condemned, deleted, forgotten):
        run_rig(tmp_path, step)


async def test_orphans_are_deleted_and_what_may_still_be_named_is_not(rig: Rig) -> None:
    agent, epoch = rig.journal.agent_id, rig.journal.epoch
    old = object_key(agent=agent, epoch=epoch - 1, n=1)
    in_flight = object_key(agent=agent, epoch=epoch, n=1)
    for key in (old, in_flight):
        await rig.store.put(key, [b"x"])
    rig.clock.advance((1 << 40) / 1000)  # the files are of the system's clock
    assert await rig.log.keeper.condemn_orphans() == 1
    rig.clock.advance(61)
    assert await rig.log.keeper.delete_condemned() == 1
    assert await stored(rig) == [in_flight]


def test_retention_by_size_waits_until_what_was_trimmed_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "ROWS_PER_COMMAND", 2)

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t", retention_bytes="400")
        for number in range(9):
            await rig.append(key, b"%d" % number)
        await rig.log.delete_records([(key, 5)])
        keeper = rig.log.keeper
        assert rig.queries().trims_left() == {key}
        # Nine runs count, four are left: by the bytes of nine retention would take them, too.
        assert await keeper.trim_expired() == 0
        assert await keeper.clear_leftovers() == 3
        kept = await rig.read_all(key)
        assert [value for _, value in kept] == [b"5", b"6", b"7", b"8"]
        assert await keeper.trim_expired() == 0

    run_rig(tmp_path, test)


def test_a_large_topic_leaves_in_several_entries_and_its_objects_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "ROWS_PER_COMMAND", 2)

    async def test(rig: Rig) -> None:
        keys = await rig.topic("t", partitions=9)
        for key in keys:
            await rig.append(key, b"a")
        await rig.drain()
        topic = rig.view.topic("t")
        assert topic is not None
        await rig.log.commit([DeleteTopic(topic_id=topic.topic_id)])
        assert rig.view.topic("t") is None
        assert await rig.log.keeper.condemn_unreferenced() == 0
        before = rig.journal.position
        assert await rig.log.keeper.clear_leftovers() == 7
        assert rig.journal.position - before == 4
        assert await rig.log.keeper.condemn_unreferenced() == len(await stored(rig))

    run_rig(tmp_path, test)


async def test_nothing_is_deleted_while_a_backup_holds(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"a")
    await rig.drain()
    await rig.log.delete_records([(key, -1)])
    await rig.log.keeper.condemn_unreferenced()
    rig.clock.advance(61)
    with rig.log.keeper.held():
        assert await rig.log.keeper.delete_condemned() == 0
    assert await rig.log.keeper.delete_condemned() == 1


@pytest.mark.options(producer_id_expiration_ms=60000)
async def test_silent_producers_are_forgotten_and_those_that_write_are_kept(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    for producer in (1, 2):
        await rig.append(key, b"a", producer=(producer, 0, 0))
    rig.clock.advance(40)
    await rig.append(key, b"b", producer=(2, 0, 1))
    rig.clock.advance(40)
    assert await rig.log.keeper.expire_producers() == 1
    assert [row[1] for row in rig.queries().producers_page((-1, -1), limit=9)] == [2]
