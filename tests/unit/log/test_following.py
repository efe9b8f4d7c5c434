"""Readers and caches follow what was applied."""

from penstock.log.fetch.waiters import Waiter
from penstock.model.ids import PartitionKey
from penstock.state.commands import DeleteTopic
from support.cluster_rig import Cluster, ClusterAgent, passing


def waiting_for(agent: ClusterAgent, key: PartitionKey) -> list[PartitionKey]:
    """Have a fetch wait; the list gets the key at each wake."""
    woken: list[PartitionKey] = []
    agent.log.waiters.add(Waiter([key], lambda: woken.append(key)))
    return woken


async def test_a_fetch_that_waits_is_woken_when_its_topic_is_deleted(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    (other,) = await agent.topic("other")
    woken, others = waiting_for(agent, key), waiting_for(agent, other)
    topic_id = agent.log.topic_id_of(key)
    assert topic_id is not None
    await agent.log.commit([DeleteTopic(topic_id=topic_id)])
    await passing(0.01)
    assert (woken, others) == ([key], [])


async def test_after_missed_entries_memory_is_forgotten_and_all_who_wait_look(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a")
    woken = waiting_for(agent, key)
    assert list(agent.log.tail.partitions()) == [key]
    agent.log.begin_again()
    assert not list(agent.log.tail.partitions())
    assert woken == [key]
    assert await agent.read_all(key) == [(0, b"a")]
