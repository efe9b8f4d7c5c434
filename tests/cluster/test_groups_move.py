"""Groups of real client libraries while their coordinator is drained, killed and stopped: no
committed offset is lost, and by all that coordinators tell members no group is ever in two
generations at once (taps between clients and agents write that down)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peers.line_clients import franz_go, kafka_java, line_programs
from penstock.groups.shard_plan import proposed_owner
from penstock.state.cluster_tables import group_shard
from support.agents import PATIENCE, Agent, Agents, run_cli
from support.committer import Committer, committed
from support.group_history import Kind, contradictions
from support.group_members import Member, Writer, committed_in, wait_progress
from support.group_tap import GroupTap, GroupTaps
from support.line_client import LineProgram
from support.waiting import eventually

TOPIC = "flights"
LIBRARIES = ("confluent", "aiokafka", "python")
PARTITIONS = 3
SHARED = 2
"""So many members have the groups of these libraries, and one more from some time on."""
NAMES = [f"g{number}" for number in range(300)]
"""Some in each of the shards, of which each agent has many, whatever the agents' ids are."""


class Cluster:
    """Agents that clients reach through taps."""

    def __init__(self, agents: Agents, taps: GroupTaps) -> None:
        self.agents = agents
        self.history = taps.history
        self._taps: list[GroupTap] = []
        for _ in range(3):
            tap = taps.open()
            agent = agents.prepare(ADVERTISED=tap.address)
            tap.agent_port = agent.server.kafka_port
            agent.server.start()
            self._taps.append(tap)

    @property
    def bootstrap(self) -> str:
        return ",".join(tap.address for tap in self._taps)

    def tapped(self, agent: Agent) -> str:
        """Where clients reach an agent."""
        return self._taps[self.agents.agents.index(agent)].address

    def agent_at(self, port: int) -> Agent:
        """The agent that advertises a port."""
        (index,) = [number for number, tap in enumerate(self._taps) if tap.port == port]
        return self.agents.agents[index]


def coordinators(cluster: Cluster, group_ids: list[str]) -> dict[str, Agent]:
    """Each group's, as any running agent says."""
    from penstock.config.addresses import parse_address
    from penstock.kafka.wire.schema import build
    from support.connection import Connection

    def place(connection: Connection, group_id: str) -> Any:
        return connection.request(
            "find_coordinator",
            lambda types: build(types.FindCoordinatorRequest, key=group_id, key_type=0),
        )

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for agent in cluster.agents.agents:
            if agent.paused or not agent.server.running():
                continue
            address = parse_address(agent.address, setting="agent")
            with contextlib.closing(Connection(address, timeout_s=20)) as connection:
                places = {group_id: place(connection, group_id) for group_id in group_ids}
            if not any(found.error_code.value for found in places.values()):
                return {
                    group_id: cluster.agent_at(found.port) for group_id, found in places.items()
                }
        time.sleep(0.1)
    raise AssertionError(f"nobody coordinates all of {group_ids}")


def coordinator(cluster: Cluster, group_id: str) -> Agent:
    """Of one group."""
    return coordinators(cluster, [group_id])[group_id]


def commit_anew(cluster: Cluster, group_id: str, offset: int) -> str:
    """What a group's coordinator answers to a commit without a member."""
    committer = Committer(coordinator(cluster, group_id).address, group_id, TOPIC)
    with contextlib.closing(committer):
        return committer.commit(offset)


def wait_coordinator(
    cluster: Cluster, groups: list[str], is_right: Callable[[Agent], bool]
) -> None:
    """Until the groups have moved to, or from, an agent."""
    deadline = time.monotonic() + 120
    while not all(is_right(agent) for agent in coordinators(cluster, groups).values()):
        assert time.monotonic() < deadline, "groups have not moved"
        time.sleep(0.1)


def settled_groups(cluster: Cluster) -> dict[str, list[str]]:
    """Names of groups by their coordinator's address, once each shard is where it stays."""
    agents = {agent.agent_id: agent.address for agent in cluster.agents.agents}
    ids = tuple(sorted(agents))
    wanted = {name: agents[proposed_owner(group_shard(name), ids) or 0] for name in NAMES}
    eventually(
        lambda: {name: agent.address for name, agent in coordinators(cluster, NAMES).items()},
        lambda found: found == wanted,
        timeout_seconds=120,
    )
    by_agent: dict[str, list[str]] = {}
    for name, address in wanted.items():
        by_agent.setdefault(address, []).append(name)
    return by_agent


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str, journal_name: str) -> Iterator[Cluster]:
    with (
        GroupTaps() as taps,
        Agents(
            tmp_path,
            journal=postgres_url,
            objects=f"file://{tmp_path}/bucket",
            settings={"CLUSTER_NAME": journal_name, **PATIENCE},
        ) as agents,
    ):
        made = Cluster(agents, taps)
        agents.wait_live()
        yield made


@pytest.mark.parametrize("program", [franz_go, kafka_java])
def test_a_further_client_library_takes_part(program: Callable[[], LineProgram | str]) -> None:
    """Below are fewer libraries without it, which is no failure but is to be said."""
    found = program()
    if isinstance(found, str):
        pytest.skip(f"groups were moved without one of the client libraries: {found}")


def test_groups_of_real_clients_go_on_wherever_they_are_coordinated(cluster: Cluster) -> None:
    agents = cluster.agents
    victim = agents.agents[0]
    made = run_cli(
        *("topic", "create", TOPIC, "--partitions", str(PARTITIONS), "--server", victim.address)
    )
    assert made.returncode == 0, made.stderr
    # One agent coordinates all of them, so that each disturbance is everybody's.
    by_agent = settled_groups(cluster)
    programs, _ = line_programs(java=True)
    libraries = (*LIBRARIES, *(program.library for program in programs))
    groups = dict(zip(libraries, by_agent[victim.address], strict=False))
    shared = [groups[library] for library in LIBRARIES]
    unread = by_agent[victim.address][len(libraries) :][:2]
    assert unread, by_agent
    writer = Writer(cluster.bootstrap, TOPIC, PARTITIONS)
    members: list[Member] = []

    def join(library: str, bootstrap: str) -> None:
        members.append(Member(library, groups[library], bootstrap, TOPIC))

    def everybody_shares(count: int) -> bool:
        found = [cluster.history.newest(group_id).members for group_id in shared]
        return all(len(shares) == count and all(shares.values()) for shares in found)

    took: dict[str, float] = {}
    refused: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            for library in (*libraries, *LIBRARIES):
                join(library, cluster.bootstrap)
            eventually(lambda: everybody_shares(SHARED), timeout_seconds=180)
            took["begin"] = wait_progress(writer, members)

            def disturbed(what: str) -> None:
                wait_coordinator(cluster, list(groups.values()), lambda agent: agent is not victim)
                time.sleep(0.5)
                took[what] = wait_progress(writer, members)

            http = ("--http", victim.http)
            node = str(victim.agent_id)
            drained = run_cli("agent", "drain", node, *http)
            assert drained.returncode == 0, drained.stderr
            assert (
                f"agent {node} is draining, and holds 0 group shards and 0 WAL runs"
                in drained.stdout
            )
            disturbed("drained")
            back = run_cli("agent", "drain", "--undo", node, *http)
            assert back.returncode == 0, back.stderr
            wait_coordinator(cluster, list(groups.values()), lambda agent: agent is victim)

            victim.server.kill()
            disturbed("killed")
            victim.server.start()
            # Shards come back a few at a time, those of the unread groups perhaps last.
            back_again = [*groups.values(), *unread]
            wait_coordinator(cluster, back_again, lambda agent: agent is victim)
            wait_progress(writer, members)

            # Both kinds of commits find it when it wakes, and it takes itself for the coordinator:
            # without a member, and of members in the generation that it knows.
            late = [
                stack.enter_context(contextlib.closing(Committer(victim.address, group_id, TOPIC)))
                for group_id in unread
            ]
            for one in late:
                # Refused while the head that it knows is two seconds old.
                eventually(lambda one=one: one.commit(5), lambda error: error == "NONE")
            known = {group_id: cluster.history.newest(group_id) for group_id in shared}
            outdated = [
                stack.enter_context(
                    contextlib.closing(
                        Committer(
                            cluster.tapped(victim),
                            group_id,
                            TOPIC,
                            member_id=member_id,
                            generation=generation.number,
                        )
                    )
                )
                for group_id, generation in known.items()
                for member_id in generation.members
            ]
            victim.pause()
            disturbed("stopped")
            for library in LIBRARIES:
                # Not by the one that is stopped, whom a client may wait for until it gives up.
                join(library, ",".join(cluster.tapped(agent) for agent in agents.agents[1:]))
            eventually(lambda: everybody_shares(SHARED + 1), timeout_seconds=180)
            assert all(
                cluster.history.newest(group_id).number > generation.number
                for group_id, generation in known.items()
            )
            for one in (*late, *outdated):
                one.begin(1)
            wait_coordinator(cluster, unread, lambda agent: agent is not victim)
            for group_id in unread:
                # Another agent may tell of a claim before it is applied where it was made.
                eventually(
                    lambda group_id=group_id: commit_anew(cluster, group_id, 9),
                    lambda error: error == "NONE",
                )
            victim.resume()
            refused = [one.end() for one in (*late, *outdated)]
            took["woken"] = wait_progress(writer, members)
        finally:
            writer.end()
            statuses = [member.end() for member in members]
    print(took, refused)
    assert "NONE" not in refused
    witness = agents.agents[1].address
    for group_id in unread:
        assert committed(witness, group_id, TOPIC, 1)[0] == 9
    assert statuses == [0] * len(members)
    for group_id, positions in committed_in(members).items():
        stored = committed(witness, group_id, TOPIC, PARTITIONS)
        assert all(stored[p] >= position for p, position in positions.items())
    assert not contradictions(cluster.history)
    for group_id in groups.values():
        # The victim's answers were held against another's.
        assert len({told.agent for told in cluster.history.of(group_id, Kind.COMMIT)}) > 1
