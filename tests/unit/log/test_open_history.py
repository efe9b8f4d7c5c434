"""While a lost history is open, its objects, WALs and archived rows are kept."""

import pytest

from penstock.log.archive import ArchiveSettings
from penstock.log.history.lost_histories import ASIDE_WAL
from penstock.model.errors import RetryableError
from penstock.replica.aside import set_aside
from penstock.state.answers import BatchStatus, Condemned, Done
from penstock.state.commands import CondemnObjects, Fence
from support.archives import archive_of, archiver_of, keys, write
from support.cluster_rig import Cluster, passing
from unit.log.lost_journals import close_history, lose, lost_of


@pytest.mark.slow
async def test_objects_of_the_lost_history_are_kept_until_it_is_closed(cluster: Cluster) -> None:
    """To the state that is left they are orphans of an epoch that is over."""
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"common")
    position = agent.order.position
    known = {one for one in cluster.store.objects if one.startswith("segments/")}
    assert await agent.append(key, b"lost") == (BatchStatus.STORED, 1)
    lost_objects = {one for one in cluster.store.objects if one.startswith("segments/")} - known
    assert lost_objects
    path = cluster.folder / "agent1" / "replica.sqlite"
    await agent.close(0)
    cluster.agents.clear()
    set_aside(path)
    cluster.journal.come_back_older(position)
    survivor = await cluster.agent(2)
    # An orphan that was condemned before the loss was noted is not deleted either.
    (early,) = await survivor.log.commit([CondemnObjects(keys=sorted(lost_objects))])
    assert early == Condemned(sorted(lost_objects))
    lost = lost_of(survivor, path.parent)
    await lost.run_once()
    # An agent that never comes back: fenced, so that its epochs are over.
    await survivor.log.commit(
        [Fence(agent=1, epoch=agent.order.epoch, seen_position=survivor.order.position)]
    )
    for _ in range(4):
        await passing(100)
        await survivor.log.keeper.run_once()
    assert lost_objects <= cluster.store.objects.keys()
    await close_history(survivor, 1)
    for _ in range(4):
        await passing(100)
        await survivor.log.keeper.run_once()
    assert not lost_objects & cluster.store.objects.keys()


@pytest.mark.slow
async def test_what_an_open_history_holds_back_is_condemned_once_it_is_closed(
    cluster: Cluster,
) -> None:
    """Apply leaves such keys out: an agent that gave them up, or counted their epoch as swept,
    would leave their objects to whoever walks the whole store."""
    agent = await cluster.agent(1)
    await write(agent, 3)
    await archiver_of(agent).snapshot()
    await lose(cluster, agent.order.position)
    survivor = cluster.agents[0]
    gone = await cluster.agent(3)
    gone.pause_heartbeats()
    await survivor.catch_up()
    seen = survivor.order.position
    fence = Fence(agent=3, epoch=gone.order.epoch, seen_position=seen)
    assert await survivor.log.commit([fence]) == [Done()]
    await archiver_of(survivor, note_lost=lost_of(survivor).note).snapshot()
    assert survivor.log._view.open_histories
    keeper = survivor.log.keeper
    numbers = keeper._numbers
    number = numbers.begin()
    numbers.end(number, named=False)
    assert await keeper.condemn_failed() == 0
    for _ in range(3):
        await passing(100)
        assert await keeper.condemn_orphans() == 0
    assert not keeper._orphans._swept
    await close_history(survivor, 1)
    assert await keeper.condemn_failed() == 1
    for _ in range(3):
        await passing(100)
        await keeper.condemn_orphans()
    assert (3, gone.order.epoch) in keeper._orphans._swept


@pytest.mark.slow
async def test_no_orphan_is_condemned_before_the_archive_was_compared(cluster: Cluster) -> None:
    """A keeper that has just started knows nothing of a loss that only the archive shows."""
    agent = await cluster.agent(1)
    await write(agent, 3)
    position = agent.order.position
    known = {one for one in cluster.store.objects if one.startswith("segments/")}
    await write(agent, 3)
    lost_objects = {one for one in cluster.store.objects if one.startswith("segments/")} - known
    assert lost_objects
    await archiver_of(agent).snapshot()
    epoch = agent.order.epoch
    await agent.close(0)
    cluster.agents.clear()
    cluster.journal.come_back_older(position)
    survivor = await cluster.agent(2)
    (answer,) = await survivor.log.commit(
        [Fence(agent=1, epoch=epoch, seen_position=survivor.order.position)]
    )
    assert answer == Done()
    archiver = archiver_of(survivor, is_chosen=lambda: False, note_lost=lost_of(survivor).note)
    keeper = survivor.log.keeper
    keeper._orphans._compare_history = archiver.compare
    await passing(100)
    assert not survivor.log._view.open_histories
    with pytest.raises(RetryableError, match="came back older"):
        await keeper.condemn_orphans()
    assert survivor.log._view.open_histories
    await keeper.run_once()
    assert lost_objects <= set(cluster.store.objects)
    assert not survivor.queries.known_objects(sorted(lost_objects))
    # What no history holds back is found again, and condemned, once that is closed.
    await close_history(survivor, 1)
    await passing(100)
    condemned = 0
    for _ in range(3):
        condemned += await keeper.condemn_orphans()
    assert condemned == len(lost_objects)


async def test_a_wal_is_copied_before_it_is_opened_while_a_lost_history_is_open(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1, wal=True, durability="wal")
    (key,) = await agent.topic("t")
    await agent.append(key, b"common")
    position = agent.order.position
    assert await agent.append(key, b"of the lost history") == (BatchStatus.STORED, 1)
    folder = cluster.folder / "agent1"
    files = {path.name: path.read_bytes() for path in (folder / "wal").iterdir() if path.is_file()}
    await agent.close(0)
    cluster.agents.clear()
    set_aside(folder / "replica.sqlite")
    cluster.journal.come_back_older(position)
    survivor = await cluster.agent(2)
    lost = lost_of(survivor, folder)
    await lost.prepare()
    (copied,) = folder.glob(f"{ASIDE_WAL}1-*/wal")
    found = {path.name: path.read_bytes() for path in copied.iterdir()}
    assert b"of the lost history" in b"".join(found.values())
    assert found.keys() == files.keys()
    await lost.run_once()
    assert copied.exists(), "while the history is open"
    await close_history(survivor, 1)
    await lost.run_once()
    assert not copied.exists()
    assert (folder / "wal").exists()


@pytest.mark.slow
async def test_what_is_archived_of_a_closed_history_goes_with_the_restore_window(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    await write(agent, 3)
    await archiver_of(agent).snapshot()
    await lose(cluster, agent.order.position)
    survivor = cluster.agents[0]
    lost = lost_of(survivor)
    archiver = archiver_of(
        survivor,
        settings=ArchiveSettings(keep_ms=60_000),
        note_lost=lost.note,
        drop_lost=lost.drop_archived,
    )
    await archiver.snapshot()
    await cluster.store.put("archive/lost/00000001/appended/t-0-1-0", [b"[]"])
    for _ in range(2):
        await passing(100)
        await archiver.snapshot()
    assert len(keys(cluster, "archive/lost/")) >= 3, "open, however old"
    await close_history(survivor, 1)
    await passing(30)
    await archiver.snapshot()
    assert len(keys(cluster, "archive/lost/")) >= 3
    await passing(100)
    await archiver.snapshot()
    assert not keys(cluster, "archive/lost/")


@pytest.mark.slow
async def test_what_is_archived_of_a_history_that_is_not_known_here_yet_stays(
    cluster: Cluster,
) -> None:
    """Another agent has noted it, and this one's state is behind."""
    agent = await cluster.agent(1)
    await write(agent, 3)
    await archiver_of(agent).snapshot()
    await lose(cluster, agent.order.position)
    survivor = cluster.agents[0]
    await archiver_of(survivor, note_lost=lost_of(survivor).note).snapshot()
    await close_history(survivor, 1)
    for history in (1, 2):
        await cluster.store.put(f"archive/lost/{history:08}/rows/of-{history}", [b"x"])
        await cluster.store.put(f"archive/lost/{history:08}/snapshots/x", [b"x"])
    archive = archive_of(cluster)
    histories = archive.lost_histories

    async def both() -> list[int]:
        return sorted({*await histories(), 2})

    lost = lost_of(survivor)
    lost._archive.lost_histories = both  # type: ignore[method-assign]
    await lost.drop_archived(1 << 60)
    assert not keys(cluster, "archive/lost/00000001/")
    assert keys(cluster, "archive/lost/00000002/")
