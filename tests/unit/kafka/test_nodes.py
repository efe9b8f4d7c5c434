"""Whom an agent sends clients to when it is cut off from the journal, or another one is silent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from penstock.kafka.nodes import ClusterNodes
from penstock.state.rows import Agent, AgentStatus


def agent(agent_id: int, status: AgentStatus = AgentStatus.LIVE) -> Agent:
    return Agent(
        agent_id=agent_id,
        epoch=1,
        status=status,
        labels={"zone": "a"},
        software="",
        endpoint=f"host{agent_id}:9092",
        peer="",
        level_max=2,
    )


def nodes_of(
    count: int,
    cut_off: list[bool],
    quiet: Callable[[], frozenset[int]] = frozenset,
    *,
    draining: frozenset[int] = frozenset(),
) -> ClusterNodes:
    agents = [
        agent(number, AgentStatus.DRAINING if number in draining else AgentStatus.LIVE)
        for number in range(1, count + 1)
    ]
    view: Any = SimpleNamespace(agents=lambda: agents, agents_generation=1)
    return ClusterNodes(
        me=1, view=view, coordinator_of=lambda _: 1, is_cut_off=lambda: cut_off[0], quiet=quiet
    )


def leaders(nodes: ClusterNodes, zone: str = "a") -> set[int]:
    table = nodes.leaders(zone)
    return {table.leader(b"t" * 16, partition) for partition in range(200)}


def test_an_agent_that_is_cut_off_sends_clients_to_others_until_it_is_back() -> None:
    cut_off = [False]
    nodes = nodes_of(3, cut_off)
    assert leaders(nodes) == leaders(nodes, "") == {1, 2, 3}
    cut_off[0] = True
    assert leaders(nodes) == leaders(nodes, "") == {2, 3}
    assert nodes.controller("a") != 1
    assert {node.node_id for node in nodes.all()} == {1, 2, 3}
    cut_off[0] = False
    assert leaders(nodes) == {1, 2, 3}


def test_an_agent_that_is_cut_off_and_knows_of_no_other_goes_on_alone() -> None:
    assert leaders(nodes_of(1, [True])) == {1}


def test_clients_are_sent_past_an_agent_that_has_missed_a_beat_until_it_is_heard_again() -> None:
    quiet = [frozenset({2})]
    nodes = nodes_of(3, [False], lambda: quiet[0])
    assert leaders(nodes) == leaders(nodes, "") == {1, 3}
    assert nodes.controller("a") != 2
    assert {node.node_id for node in nodes.all()} == {1, 2, 3}, "it may well be there"
    quiet[0] = frozenset({2, 3})
    assert leaders(nodes) == {1}
    quiet[0] = frozenset()
    assert leaders(nodes) == {1, 2, 3}


def test_a_drained_agent_is_leaving_only_while_others_lead_its_partitions() -> None:
    drained = frozenset({1})
    quiet = [frozenset[int]()]
    nodes = nodes_of(3, [False], lambda: quiet[0], draining=drained)
    assert nodes.is_leaving()
    assert leaders(nodes) == {2, 3}
    quiet[0] = frozenset({2, 3})
    assert not nodes.is_leaving(), "its clients would be sent round in circles"
    assert 1 in leaders(nodes)
    assert not nodes_of(1, [False], draining=drained).is_leaving()
    assert not nodes_of(3, [False], draining=frozenset({1, 2, 3})).is_leaving()
    assert not nodes_of(3, [False], draining=frozenset({2})).is_leaving()


def test_an_agent_that_is_cut_off_is_not_leaving_since_what_waits_may_be_stored() -> None:
    assert not nodes_of(3, [True]).is_leaving()
    assert not nodes_of(3, [False], lambda: frozenset({1})).is_leaving()


def test_a_transactional_id_stays_with_one_agent_of_the_zone_while_it_is_there() -> None:
    cut_off = [False]
    nodes = nodes_of(3, cut_off)

    def coordinators() -> dict[str, int]:
        found = {}
        for number in range(50):
            node = nodes.transaction_coordinator(f"x{number}", "a")
            assert node is not None
            found[f"x{number}"] = node.node_id
        return found

    before = coordinators()
    assert set(before.values()) == {1, 2, 3}
    cut_off[0] = True
    after = coordinators()
    assert {name for name in before if after[name] != before[name]} == {
        name for name, node in before.items() if node == 1
    }
    assert set(after.values()) == {2, 3}
