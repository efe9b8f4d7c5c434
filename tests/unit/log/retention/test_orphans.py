"""Orphans: an ended epoch is swept by its prefixes, everything else in bounded steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.retention import orphans
from penstock.model.errors import ConflictError
from penstock.ports.objects import ObjectInfo
from penstock.segment import epoch_prefixes, job_object_key, object_key, parse_object_key
from penstock.state.answers import Done
from penstock.state.commands import Fence, RemoveAgent
from support.cluster_rig import Cluster, ClusterAgent, passing, run_cluster

GRACE_S = 60


class Counted:
    """Counts what the keeper's listings read of the store."""

    def __init__(self, agent: ClusterAgent) -> None:
        self.objects = 0
        self.listings = 0
        found = agent.log.keeper._orphans
        listed = found._list

        async def counted(prefix: str, after: str) -> list[ObjectInfo]:
            page = await listed(prefix, after)
            self.listings += 1
            self.objects += len(page)
            return page

        found._list = counted  # type: ignore[method-assign]


async def fence(by: ClusterAgent, victim: ClusterAgent) -> None:
    victim.pause_heartbeats()
    await passing(0.1)
    await by.catch_up()
    (answer,) = await by.log.commit(
        [Fence(agent=victim.agent_id, epoch=victim.order.epoch, seen_position=by.order.position)]
    )
    assert isinstance(answer, Done), answer


def test_every_key_of_an_epoch_begins_with_one_of_its_prefixes() -> None:
    prefixes = epoch_prefixes(agent=7, epoch=12)
    assert len(set(prefixes)) == 256
    for n in range(1, 600):
        assert object_key(agent=7, epoch=12, n=n).startswith(tuple(prefixes))
        assert not object_key(agent=7, epoch=1, n=n).startswith(tuple(prefixes))
        assert not object_key(agent=7, epoch=123, n=n).startswith(tuple(prefixes))


@pytest.mark.slow
def test_a_pass_lists_a_bounded_number_of_objects_and_the_walk_comes_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "STEP_OBJECTS", 20)
    monkeypatch.setattr(orphans, "_PAGE", 10)

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        # An agent that is unknown here: it was removed long ago.
        lost = [object_key(agent=9, epoch=1, n=n) for n in range(1, 96)]
        job = [job_object_key(job=5, name=f"{n:032x}") for n in range(5)]
        for key in lost + job:
            await cluster.store.put(key, [b"x"])
        await passing(GRACE_S + 1)
        counted = Counted(agent)
        condemned = 0
        for _ in range(6):
            before = counted.objects
            condemned += await agent.log.keeper.condemn_orphans()
            assert counted.objects - before <= 20
        assert condemned == 100
        # From the beginning again: what came later is found by the next round.
        late = object_key(agent=9, epoch=1, n=1000)
        await cluster.store.put(late, [b"x"])
        await passing(GRACE_S + 1)
        for _ in range(7):
            condemned += await agent.log.keeper.condemn_orphans()
        assert condemned == 101

    run_cluster(tmp_path, test)


def test_what_another_put_under_a_number_of_this_epoch_is_no_orphan(tmp_path: Path) -> None:
    """A bucket that two clusters share, by a mistake: the object may be the other's record."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        numbers = agent.log.numbers
        mine, foreign = numbers.begin(), numbers.begin()
        for number in (mine, foreign):
            await cluster.store.put(numbers.key(number), [b"x"])
        numbers.end(mine, named=True)
        numbers.skip(foreign, ConflictError("put", numbers.key(foreign), "it exists"))
        await passing(GRACE_S + 1)
        assert await agent.log.keeper.condemn_orphans() == 1
        condemned = {
            row.key for row in agent.queries.objects("", 9) if row.condemned_ms is not None
        }
        assert condemned == {numbers.key(mine)}

    run_cluster(tmp_path, test)


@pytest.mark.slow
def test_an_ended_epoch_is_swept_once_and_reads_no_other_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The walk is held where it is: what is found, the sweep has found.
    monkeypatch.setattr(orphans, "STEP_OBJECTS", 0)

    async def test(cluster: Cluster) -> None:
        one, two = await cluster.agent(1), await cluster.agent(2)
        await two.catch_up()
        assert await two.log.keeper.condemn_orphans() == 0
        left = [object_key(agent=1, epoch=one.order.epoch, n=n) for n in range(50, 60)]
        others = [object_key(agent=2, epoch=two.order.epoch, n=n) for n in range(50, 250)]
        for key in left + others:
            await cluster.store.put(key, [b"x"])
        await fence(two, one)
        counted = Counted(two)
        assert await two.log.keeper.condemn_orphans() == 0, "the grace has just begun"
        await passing(GRACE_S + 1)
        assert await two.log.keeper.condemn_orphans() == len(left)
        assert counted.objects == len(left)
        swept = counted.listings
        assert swept <= 256 + len(left)
        await passing(GRACE_S + 1)
        assert await two.log.keeper.condemn_orphans() == 0
        assert counted.listings == swept, "once"
        await two.log.keeper.delete_condemned()
        kept = {parse_object_key(key).agent for key in cluster.store.objects}  # type: ignore[union-attr]
        assert kept == {2}

    run_cluster(tmp_path, test)


async def test_a_sweep_that_was_due_by_a_clock_ahead_is_due_by_the_right_one(
    cluster: Cluster,
) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    await fence(one, two)
    found = one.log.keeper._orphans
    now_ms = cluster.clock.now_ms()
    await found.condemn(now_ms + 10 * 365 * 86_400_000)
    await found.condemn(now_ms)
    assert not found._swept
    await found.condemn(now_ms + GRACE_S * 1000 + 1)
    assert found._swept == {(2, two.order.epoch)}


async def test_an_epoch_that_began_unseen_is_known_before_anything_of_it_is_condemned(
    cluster: Cluster,
) -> None:
    """The keeper's view may lack an agent whose objects are listed: a head is confirmed first."""
    one = await cluster.agent(1)
    one.journal.cut = True
    await passing(1)
    two = await cluster.agent(2)
    name = object_key(agent=2, epoch=two.order.epoch, n=50)
    cluster.store.objects[name] = (b"x", cluster.clock.now_ms() - 2 * GRACE_S * 1000)
    assert one.log._view.agent(two.agent_id) is None
    one.journal.cut = False
    assert await one.log.keeper._orphans.condemn(cluster.clock.now_ms()) == 0
    assert one.log._view.agent(two.agent_id) is not None


@pytest.mark.slow
async def test_of_epochs_that_were_swept_those_of_fenced_agents_are_remembered(
    cluster: Cluster,
) -> None:
    """An agent that is removed, or begins another epoch, takes up no memory for ever."""
    one, two = await cluster.agent(1), await cluster.agent(2)
    found = one.log.keeper._orphans
    epoch = two.order.epoch
    await fence(one, two)
    for _ in range(3):
        await passing(2 * GRACE_S)
        await found.condemn(one.ages.now_ms() or 0)
    assert found._swept == {(2, epoch)}
    (answer,) = await one.log.commit([RemoveAgent(agent=2)])
    assert isinstance(answer, Done), answer
    await one.catch_up()
    await found.condemn(one.ages.now_ms() or 0)
    assert found._swept == set()
