"""A lost history's acknowledged records are appended again, or given up; then it is closed."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.log.history.repair import HistoryRepair
from penstock.model.errors import ConflictError, NotFoundError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.replica.archive_format import LOST_PREFIX
from penstock.replica.aside import set_aside
from penstock.state.answers import BatchStatus
from penstock.state.commands import AlterTopicConfigs
from penstock.state.rows import HistoryOutcome
from support.archives import archive_of, archiver_of, write
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.simulated.inline_executor import InlineExecutor
from support.transactional_producer import TransactionalProducer
from unit.log.lost_journals import lost_of

STORED = BatchStatus.STORED


def repair_of(agent: ClusterAgent, folder: Path | None = None) -> HistoryRepair:
    cluster = agent.cluster
    return HistoryRepair(
        journal=agent.journal,
        archive=archive_of(cluster, f"repair{agent.agent_id}"),
        order=agent.order,
        log=agent.log,
        view=agent.log._view,
        queries=lambda: agent.queries,
        store=cluster.store,
        folder=folder or cluster.folder / f"agent{agent.agent_id}",
        scratch=cluster.folder / f"repairscratch{agent.agent_id}",
        executor=InlineExecutor(cluster.random),
    )


async def lost_life(
    cluster: Cluster,
    before: Callable[[ClusterAgent], Coroutine[Any, Any, Any]],
    after: Callable[[ClusterAgent], Coroutine[Any, Any, Any]],
    *,
    archives: bool = False,
    **options: Any,
) -> ClusterAgent:
    """Agent 1 does `before`, which stays, and `after`, which the journal loses. Another agent goes
    on, to which the loss is known by agent 1's replica or, with `archives`, by the archive."""
    agent = await cluster.agent(1, **options)
    await before(agent)
    if archives:
        await archiver_of(agent).snapshot()
    agent.pause_heartbeats()
    await agent.catch_up()
    position = agent.order.position
    await after(agent)
    if archives:
        archiver = archiver_of(agent)
        await passing(1)
        await archiver.run_once()
        assert archiver.archived_position >= agent.order.position
    await agent.close(0)
    cluster.agents.clear()
    folder = cluster.folder / "agent1"
    if not archives:
        assert set_aside(folder / "replica.sqlite") is not None
    cluster.journal.come_back_older(position)
    survivor = await cluster.agent(2, wal=options.get("wal", False))
    if archives:
        # Only what agent 1 had appended itself is beyond; the survivor has grown past it.
        await write(survivor, 6, topic="other")
        await archiver_of(survivor, note_lost=lost_of(survivor).note).run_once()
    else:
        await lost_of(survivor, folder).prepare()
    return survivor


@pytest.mark.slow
@pytest.mark.parametrize("archives", [False, True])
async def test_acknowledged_records_are_appended_again_and_the_history_is_closed(
    cluster: Cluster, archives: bool
) -> None:
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t", 2))
        for number in range(3):
            assert await agent.append(keys[0], b"common %d" % number) == (STORED, number)

    async def after(agent: ClusterAgent) -> None:
        for number in range(5):
            assert await agent.append(keys[0], b"lost %d" % number) == (STORED, 3 + number)
        assert await agent.append(keys[1], b"lost there") == (STORED, 0)

    survivor = await lost_life(cluster, before, after, archives=archives)
    assert await survivor.append(keys[0], b"since") == (STORED, 3)
    repair = repair_of(survivor)
    (report,) = await repair.look()
    assert [
        (found.topic, found.partition, found.records, found.first_offset, found.end_offset)
        for found in report.partitions
    ] == [("t", 0, 5, 3, 8), ("t", 1, 1, 0, 1)]
    assert not report.closed
    assert not report.unread
    assert list(survivor.log._view.open_histories) == [1]
    assert [value for _, value in await survivor.read_all(keys[0])][-1] == b"since"
    (report,) = await repair.append()
    assert report.closed
    assert [found.appended for found in report.partitions] == [5, 1]
    assert [value for _, value in await survivor.read_all(keys[0])] == [
        *(b"common %d" % number for number in range(3)),
        b"since",
        *(b"lost %d" % number for number in range(5)),
    ]
    assert [value for _, value in await survivor.read_all(keys[1])] == [b"lost there"]
    (row,) = survivor.queries.lost_histories()
    assert (row.outcome, row.records) == (HistoryOutcome.APPENDED, 6)
    assert await repair.append() == []
    with pytest.raises(NotFoundError, match="no such open history"):
        await repair.append(1)


@pytest.mark.slow
async def test_of_lost_transactions_what_was_committed_is_appended_again(
    cluster: Cluster,
) -> None:
    """No reader was ever promised the rest, and no marker is a record."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        await agent.append(keys[0], b"common")

    async def after(agent: ClusterAgent) -> None:
        names = ("committed", "aborted", "open")
        committed, aborted, open_ = (TransactionalProducer(agent, name) for name in names)
        for producer in (committed, aborted, open_):
            await producer.begin()
            await producer.write(keys[0], producer.name.encode())
        await committed.end(commits=True)
        await aborted.end(commits=False)
        assert await agent.log.waiting_markers.run_once() == 2
        await committed.write(keys[0], b"again")
        await committed.end(commits=True)

    survivor = await lost_life(cluster, before, after)
    (report,) = await repair_of(survivor).append()
    (found,) = report.partitions
    assert (found.records, found.appended, found.unread, report.closed) == (2, 2, 0, True)
    assert [value for _, value in await survivor.read_all(keys[0])] == [
        b"common",
        b"committed",
        b"again",
    ]
    assert survivor.log.last_stable_offset(keys[0]) == 3


@pytest.mark.slow
async def test_what_an_idempotent_producer_sent_again_is_not_appended_twice(
    cluster: Cluster,
) -> None:
    keys: list[PartitionKey] = []

    async def send(agent: ClusterAgent, producer: int, sequence: int, epoch: int = 0) -> Any:
        value = b"%d of %d" % (sequence, producer)
        return await agent.append(keys[0], value, producer=(producer, epoch, sequence))

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        for producer in (1, 2):
            await send(agent, producer, 0)
        await archiver_of(agent).snapshot()

    async def after(agent: ClusterAgent) -> None:
        for producer in (1, 2, 3):
            for sequence in (1, 2):
                await send(agent, producer, sequence)

    survivor = await lost_life(cluster, before, after)
    # 1 has sent the lost ones again, 2 has begun another epoch, 3 went on where it was.
    await survivor.append(keys[0], b"so that offsets differ")
    for sequence in (1, 2, 3, 4, 5, 6, 7, 8):
        assert (await send(survivor, 1, sequence))[0] is STORED
    for sequence in (0, 1):
        # The same sequences, of another epoch: other records.
        assert (await send(survivor, 2, sequence, epoch=1))[0] is STORED
    assert (await send(survivor, 3, 3))[0] is STORED
    (report,) = await repair_of(survivor).append()
    (found,) = report.partitions
    assert (found.records, found.duplicates, found.appended) == (6, 2, 4)
    values = [value for _, value in await survivor.read_all(keys[0])]
    assert values[-4:] == [b"1 of 2", b"2 of 2", b"1 of 3", b"2 of 3"]
    assert len(values) == len(set(values)) + 2  # 0 and 1 of 2, in both epochs
    # The last five ranges are known. What lies before them was sent again as well, since the
    # producer was known before the histories parted.
    assert values.count(b"1 of 1") == 1


async def test_a_topic_that_only_the_lost_history_has_is_made_again(cluster: Cluster) -> None:
    async def before(agent: ClusterAgent) -> None:
        await agent.topic("kept")

    async def after(agent: ClusterAgent) -> None:
        (key,) = await agent.topic("gone")
        await agent.append(key, b"lost")

    survivor = await lost_life(cluster, before, after)
    (report,) = await repair_of(survivor).look()
    assert report.topics == ["gone"]
    assert survivor.log._view.topic("gone") is None
    (report,) = await repair_of(survivor).append()
    assert (report.topics, report.closed) == (["gone"], True)
    topic = survivor.log._view.topic("gone")
    assert topic is not None
    assert await survivor.read_all(PartitionKey(topic.topic_key << 20)) == [(0, b"lost")]


@pytest.mark.slow
async def test_bytes_in_a_wal_are_read_where_a_copy_is_and_counted_elsewhere(
    cluster: Cluster,
) -> None:
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        await agent.append(keys[0], b"common")

    async def after(agent: ClusterAgent) -> None:
        await agent.append(keys[0], b"lost")

    survivor = await lost_life(cluster, before, after, wal=True, durability="wal")
    (report,) = await repair_of(survivor).append()
    (found,) = report.partitions
    assert (found.records, found.unread, report.closed) == (0, 1, False)
    assert "of another agent" in found.notes[0]
    assert list(survivor.log._view.open_histories) == [1]
    (report,) = await repair_of(survivor, cluster.folder / "agent1").append()
    (found,) = report.partitions
    assert (found.records, found.unread, found.appended) == (1, 0, 1)
    assert report.closed


@pytest.mark.slow
async def test_what_another_agent_has_appended_leaves_no_gap(cluster: Cluster) -> None:
    """One agent reads the objects, another the WAL; neither takes the other's for done."""
    keys: list[PartitionKey] = []

    async def keep_in(agent: ClusterAgent, durability: str) -> None:
        topic = agent.log._view.topic("t")
        assert topic is not None
        command = AlterTopicConfigs(
            topic_id=topic.topic_id, set={"penstock.durability": durability}
        )
        await agent.log.commit([command])

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        await agent.append(keys[0], b"common")
        await keep_in(agent, "wal")

    async def after(agent: ClusterAgent) -> None:
        await agent.append(keys[0], b"in the WAL")
        await keep_in(agent, "object")
        await passing(1)
        await agent.append(keys[0], b"in an object")

    survivor = await lost_life(cluster, before, after, wal=True)
    for _ in range(2):  # so that offsets differ
        await survivor.append(keys[0], b"since")
    (report,) = await repair_of(survivor).append()
    (found,) = report.partitions
    assert (found.unread, found.appended, report.closed) == (1, 1, False)
    (report,) = await repair_of(survivor, cluster.folder / "agent1").append()
    (found,) = report.partitions
    assert (found.records, found.unread, found.appended) == (2, 0, 2)
    assert report.closed
    assert [value for _, value in await survivor.read_all(keys[0])][-3:] == [
        b"since",
        b"in an object",
        b"in the WAL",
    ]


@pytest.mark.slow
async def test_what_lost_rows_moved_out_of_a_wal_is_named_in_its_segment_again(
    cluster: Cluster,
) -> None:
    """The present log names bytes in a WAL whose files are used again by now."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t", 2))
        for number in range(4):
            assert await agent.append(keys[0], b"common %d" % number) == (STORED, number)
        await agent.append(keys[1], b"common there")

    async def after(agent: ClusterAgent) -> None:
        assert agent.log.uploader is not None
        assert await agent.log.uploader.drain(30)
        assert agent.queries.first_wal_run(keys[0]) is None
        await agent.append(keys[0], b"lost")

    survivor = await lost_life(cluster, before, after, wal=True, durability="wal")
    assert survivor.queries.first_wal_run(keys[0]) == 0
    shutil.rmtree(cluster.folder / "agent1" / "wal")
    (report,) = await repair_of(survivor, cluster.folder / "agent1").look()
    assert report.moves == 5
    (report,) = await repair_of(survivor, cluster.folder / "agent1").append()
    assert (report.moves, report.closed) == (5, True)
    assert survivor.queries.first_wal_run(keys[0]) is None
    assert survivor.queries.first_wal_run(keys[1]) is None
    with contextlib.suppress(RetryableError):
        await survivor.read_all(keys[0])  # tells what befell the repair's look
    assert [value for _, value in await survivor.read_all(keys[0])] == [
        *(b"common %d" % number for number in range(4)),
        b"lost",
    ]
    assert [value for _, value in await survivor.read_all(keys[1])] == [b"common there"]


@pytest.mark.parametrize("damage", ["a bit", "its end"])
async def test_a_damaged_segment_of_lost_rows_is_not_named_again(
    cluster: Cluster, damage: str
) -> None:
    """The WAL may hold these records whole, and no other copy is left once they are moved."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        await agent.append(keys[0], b"common")

    async def after(agent: ClusterAgent) -> None:
        assert agent.log.uploader is not None
        assert await agent.log.uploader.drain(30)

    survivor = await lost_life(cluster, before, after, wal=True, durability="wal")
    (name,) = (key for key in cluster.store.objects if key.startswith("segments/"))
    data, modified_ms = cluster.store.objects[name]
    at = data.index(b"common")
    damaged = data[:at] + b"C" + data[at + 1 :] if damage == "a bit" else data[:-1]
    cluster.store.objects[name] = damaged, modified_ms
    repair = repair_of(survivor, cluster.folder / "agent1")
    assert [report.moves for report in await repair.look()] == [0]
    (report,) = await repair.append()
    assert (report.moves, report.damaged, report.closed) == (0, [name], False)
    assert survivor.queries.first_wal_run(keys[0]) == 0
    assert list(survivor.log._view.open_histories) == [1]


@pytest.mark.slow
async def test_a_damaged_snapshot_of_a_lost_history_is_passed_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows after the last whole snapshot say what the damaged one held."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        assert await agent.append(keys[0], b"common") == (STORED, 0)

    async def after(agent: ClusterAgent) -> None:
        # A database that comes back older has the rows that were trimmed since.
        monkeypatch.setattr(cluster.journal, "trim", lambda _up_to: 0)
        for number in range(3):
            assert await agent.append(keys[0], b"lost %d" % number) == (STORED, 1 + number)
            await agent.catch_up()
            if number < 2:
                await archiver_of(agent).snapshot()

    survivor = await lost_life(cluster, before, after, archives=True)
    snapshots = sorted(
        key for key in cluster.store.objects if key.startswith(LOST_PREFIX) and ".sqlite" in key
    )
    assert len(snapshots) == 2
    data, modified_ms = cluster.store.objects[snapshots[-1]]
    cluster.store.objects[snapshots[-1]] = data[:-1] + bytes([data[-1] ^ 1]), modified_ms
    (report,) = await repair_of(survivor).append()
    assert report.closed
    assert [found.appended for found in report.partitions] == [3]


async def test_a_history_of_which_nothing_is_held_stays_open(cluster: Cluster) -> None:
    """What it named is not known: only giving it up closes it."""

    async def before(agent: ClusterAgent) -> None:
        await agent.topic("t")

    async def after(agent: ClusterAgent) -> None:
        await agent.topic("gone")

    survivor = await lost_life(cluster, before, after)
    for name in [key for key in cluster.store.objects if key.startswith("archive/lost/")]:
        del cluster.store.objects[name]
    (report,) = await repair_of(survivor).append()
    assert not report.closed
    assert list(survivor.log._view.open_histories) == [1]
    (report,) = await repair_of(survivor).give_up()
    assert report.closed


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True])
async def test_lost_records_are_appended_also_where_their_offsets_were_trimmed_since(
    cluster: Cluster, joined: bool
) -> None:
    """The trimmed ones were others, which the present log had given these offsets. Those that
    both histories had were trimmed on purpose, also where one run of the lost holds both."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        await agent.append(keys[0], b"common")
        await archiver_of(agent).snapshot()

    async def after(agent: ClusterAgent) -> None:
        assert await agent.append(keys[0], b"lost") == (STORED, 1)
        if joined:
            assert agent.log.uploader is not None
            assert await agent.log.uploader.drain(30)

    options = {"wal": True, "durability": "wal"} if joined else {}
    survivor = await lost_life(cluster, before, after, **options)
    assert await survivor.append(keys[0], b"since") == (STORED, 1)
    await survivor.log.delete_records([(keys[0], -1)])
    (report,) = await repair_of(survivor).append()
    assert [found.appended for found in report.partitions] == [1]
    assert await survivor.read_all(keys[0]) == [(2, b"lost")]


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", [False, True])
async def test_common_records_that_were_trimmed_since_are_not_appended_again(
    cluster: Cluster, snapshot: bool
) -> None:
    """Rows after the last common snapshot, or all there are, say where the histories parted."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        if snapshot:
            await archiver_of(agent).snapshot()
        await agent.append(keys[0], b"common")
        archiver = archiver_of(agent)
        await archiver._archive_rows(await archiver._current(), until=agent.order.position)

    async def after(agent: ClusterAgent) -> None:
        assert await agent.append(keys[0], b"lost") == (STORED, 1)

    survivor = await lost_life(cluster, before, after)
    assert await survivor.append(keys[0], b"since") == (STORED, 1)
    await survivor.log.delete_records([(keys[0], -1)])
    (report,) = await repair_of(survivor).append()
    assert [found.appended for found in report.partitions] == [1]
    assert await survivor.read_all(keys[0]) == [(2, b"lost")]


@pytest.mark.slow
async def test_a_repair_that_was_cut_goes_on_after_what_it_noted(cluster: Cluster) -> None:
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t", 2))

    async def after(agent: ClusterAgent) -> None:
        for key in keys:
            await agent.append(key, b"lost in %d" % key)

    survivor = await lost_life(cluster, before, after)
    for key in keys:
        await survivor.append(key, b"since")

    async def cut(key: str) -> None:
        if "/appended/t-1-" in key:
            raise ConflictError("put", key, "cut here")

    cluster.store.before_put = cut
    commit, survivor.order.commit = survivor.order.commit, _fails  # type: ignore[method-assign]
    with pytest.raises(NotFoundError):
        await repair_of(survivor).append()
    cluster.store.before_put, survivor.order.commit = None, commit  # type: ignore[method-assign]
    assert len(await survivor.read_all(keys[0])) == 2
    (report,) = await repair_of(survivor).append()
    assert report.closed
    # Of the partition whose end was noted nothing is appended twice.
    assert len(await survivor.read_all(keys[0])) == 2
    assert len(await survivor.read_all(keys[1])) == 3


async def _fails(_commands: object) -> Any:
    await asyncio.sleep(0)
    raise NotFoundError("commit", "history", "cut before it is closed")


async def test_a_history_is_given_up(cluster: Cluster) -> None:
    async def before(agent: ClusterAgent) -> None:
        await agent.topic("t")

    async def after(agent: ClusterAgent) -> None:
        await write(agent, 2)

    survivor = await lost_life(cluster, before, after)
    (report,) = await repair_of(survivor).give_up(1)
    assert report.closed
    (row,) = survivor.queries.lost_histories()
    assert (row.outcome, row.records) == (HistoryOutcome.GIVEN_UP, 0)
    assert not survivor.log._view.open_histories
