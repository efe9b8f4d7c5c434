"""A log that was restored gives out nothing that its parent, or another restore, gives out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.model.epochs import epoch_floor
from penstock.model.ids import PartitionKey, topic_key_of
from penstock.recovery.point_in_time import Moment
from penstock.state.answers import BatchStatus, JobOpened
from penstock.state.commands import ClaimWal, NoteLostHistory
from penstock.state.meta import COUNTERS
from penstock.state.pipeline_commands import OpenJob
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import LostReason
from support.archives import archiver_of
from support.backups import copy_to, memory_store, restore_to
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.log_rig import NOW, Rig, run_rig
from support.restored_clusters import another_cluster, kill, restored
from support.simulated.clock import ManualClock


@dataclass
class GivenOut:
    """What one log gave out, by what it is. Sets of two logs must not meet."""

    by_kind: dict[str, set[int]] = field(default_factory=dict)

    def add(self, kind: str, *values: int) -> None:
        self.by_kind.setdefault(kind, set()).update(values)

    def counters(self, queries: Queries) -> None:
        """Where each counter of `meta` stands: every generator that there is, also a new one."""
        for name, counter in COUNTERS.items():
            self.add(name, queries._meta(name, counter.first))


async def note(
    into: GivenOut,
    log: Any,
    view: StateView,
    queries: Callable[[], Queries],
    topic: Callable[[str], Any],
    name: str,
) -> None:
    """Let a log give out one of everything."""
    producer_id, _ = await log.allocate_producer_id()
    into.add("producer id", producer_id)
    (key,) = await topic(name)
    into.add("topic key", topic_key_of(key))
    opened = OpenJob(kind="k", name="n", lease_ms=3_600_000, age_max_ms=86_400_000)
    (answer,) = await log.commit([opened])
    assert isinstance(answer, JobOpened), answer
    into.add("job", answer.job)
    into.add("leader epoch", view.leader_epoch)
    into.counters(queries())


def none_is_shared(*logs: GivenOut) -> None:
    kinds = {kind for log in logs for kind in log.by_kind}
    assert kinds >= set(COUNTERS)
    for kind in kinds:
        found = [log.by_kind[kind] for log in logs]
        assert sum(map(len, found)) == len(set().union(*found)), (kind, found)


@pytest.mark.slow
def test_of_a_backup(tmp_path: Path) -> None:
    """Backed up, restored twice, one of them restored again; and the source goes on."""
    source, to = tmp_path / "source", memory_store(tmp_path / "a")
    logs = {name: GivenOut() for name in ("source", "one", "two", "one again")}

    async def fill(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        await rig.append(key, b"x")

    def life(name: str) -> Callable[[Rig], Any]:
        async def test(rig: Rig) -> None:
            await note(logs[name], rig.log, rig.view, rig.queries, rig.topic, "new-" + name[-3:])
            logs[name].add("epoch", rig.journal.epoch)
            (key, *_) = (PartitionKey(key) for key, _, _ in rig.queries().heads())
            before = rig.wal.active_generation
            await rig.append(key, b"y")
            logs[name].add("generation", before, rig.wal.active_generation)

        return test

    run_rig(source, fill)
    copy_to(source, to)
    run_rig(source, life("source"), clock=ManualClock(now_ms=NOW + 10_000))
    for name, now_ms in (("one", NOW + 20_000), ("two", NOW + 30_000)):
        restore_to(tmp_path / name, to, now_ms=now_ms)
        run_rig(tmp_path / name, life(name), clock=ManualClock(now_ms=now_ms))
    again = memory_store(tmp_path / "b")
    copy_to(tmp_path / "one", again)
    restore_to(tmp_path / "one again", again, now_ms=NOW + 40_000)
    run_rig(tmp_path / "one again", life("one again"), clock=ManualClock(now_ms=NOW + 40_000))
    none_is_shared(*logs.values())


@pytest.mark.slow
async def test_of_a_moment_of_a_cluster(cluster: Cluster) -> None:
    async def live(agent: ClusterAgent, into: GivenOut) -> None:
        await note(into, agent.log, agent.log._view, lambda: agent.queries, agent.topic, "after")
        into.add("epoch", agent.order.epoch)
        (answer,) = await agent.log.commit([ClaimWal(wal_id=agent.cluster.random.token_bytes(16))])
        into.add("WAL key", answer.wal_key)

    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"x")
    archiver = archiver_of(agent)
    await archiver.snapshot()
    moment = Moment(position=agent.order.position)
    logs = [GivenOut()]
    await live(agent, logs[0])
    await agent.append(key, b"y")
    await archiver.run_once()
    await kill(cluster)
    for number in range(2):
        now_ms = cluster.clock.now_ms() + 1_000 * number
        state = await restored(cluster, moment, name=f"r{number}", now_ms=now_ms)
        other = await another_cluster(cluster, state, f"new{number}")
        # No two clusters have the same random numbers, save where a test says so.
        other.random = type(cluster.random)(100 + number)
        again = await other.agent(1)
        logs.append(GivenOut())
        await live(again, logs[-1])
    none_is_shared(*logs)


@pytest.mark.slow
async def test_a_new_producer_of_a_restored_log_is_not_taken_for_one_that_goes_on(
    cluster: Cluster,
) -> None:
    """The one that goes on got its id of the parent after the moment: the log doesn't know it."""
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"x")
    await archiver_of(agent).snapshot()
    moment = Moment(position=agent.order.position)
    old_id, _ = await agent.log.allocate_producer_id()
    await agent.append(key, b"A0", producer=(old_id, 0, 0))
    await kill(cluster)
    other = await another_cluster(cluster, await restored(cluster, moment), "new")
    again = await other.agent(1)
    for sequence in range(3):
        await again.append(key, b"A%d" % sequence, producer=(old_id, 0, sequence))
    new_id, _ = await again.log.allocate_producer_id()
    answer = await again.append(key, b"B0", producer=(new_id, 0, 0))
    assert answer == (BatchStatus.STORED, 4)


async def test_an_epoch_of_a_lost_history_is_not_opened_again(cluster: Cluster) -> None:
    """The database failed over to a standby without the last rows. What the agent put in the epoch
    that they opened lies in the bucket, and its replica and archive may hold it."""
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.close()
    position = cluster.journal.head
    await passing(5)
    lost = await cluster.agent(1)
    await lost.append(key, b"acknowledged and lost")
    kept = dict(cluster.store.objects)
    assert kept
    await lost.close(0)
    cluster.journal.come_back_older(position)
    await passing(5)
    cluster.agents.clear()
    again = await cluster.agent(1, fresh=True)
    assert again.order.epoch > lost.order.epoch
    await again.append(key, b"after it")
    assert {name: cluster.store.objects[name] for name in kept} == kept
    assert len(cluster.store.objects) == 2 * len(kept)


def test_an_embedded_servers_epoch_is_its_clocks(tmp_path: Path) -> None:
    epochs = []

    async def test(rig: Rig) -> None:
        epochs.append(rig.journal.epoch)

    # The last one's clock was never set.
    for now_ms in (NOW, NOW + 500, NOW + 90_000, 0):
        run_rig(tmp_path, test, clock=ManualClock(now_ms=now_ms))
    first = epoch_floor(NOW)
    assert epochs == [first, first + 1, first + 90, first + 91]


async def test_a_block_of_producer_ids_is_dropped_when_rows_were_lost(cluster: Cluster) -> None:
    """An agent that had applied none of the lost rows goes on: it was given the same block."""
    agent = await cluster.agent(1)
    lost_id, _ = await agent.log.allocate_producer_id()
    noted = NoteLostHistory(start=1, end=9, stamp_ms=1, crc=1, reason=LostReason.REPLICA)
    await agent.log.commit([noted])
    new_id, _ = await agent.log.allocate_producer_id()
    assert new_id >= lost_id + (1 << 32)
