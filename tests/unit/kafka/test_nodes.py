"""Whom an agent sends clients to when it is cut off from the journal, or another one is silent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from penstock.kafka.nodes import ClusterNodes
from penstock.metadata.rows import Agent, AgentStatus


def agent(agent_id: int) -> Agent:
    return Agent(
        agent_id=agent_id,
        epoch=1,
        status=AgentStatus.LIVE,
        labels={"zone": "a"},
        software="",
        endpoint=f"host{agent_id}:9092",
        peer="",
        level_max=2,
    )


def nodes_of(
    count: int, cut_off: list[bool], quiet: Callable[[], frozenset[int]] = frozenset
) -> ClusterNodes:
    agents = [agent(number + 1) for number in range(count)]
    view: Any = SimpleNamespace(agents=lambda: agents, agents_generation=1)
    coordinators: Any = SimpleNamespace(coordinator=lambda group_id: 1)
    return ClusterNodes(
        me=1, view=view, coordinators=coordinators, is_cut_off=lambda: cut_off[0], quiet=quiet
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
