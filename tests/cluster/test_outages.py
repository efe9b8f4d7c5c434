"""Groups of real client libraries when PostgreSQL is away: from all agents for longer than a
session, or from their coordinator alone. No committed offset is lost, and the groups go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from chaos.world import World
from penstock.cli.client.connection import Connection
from penstock.config.addresses import parse_address
from penstock.kafka.schema import build
from support.agents import Agent
from support.committer import committed
from support.committing_member import SESSION_MS
from support.group_members import Member, Writer, committed_in, wait_progress
from support.probe import create_topic
from support.waiting import eventually

LIBRARIES = ("confluent", "aiokafka", "python")
PARTITIONS = 3
AWAY_S = SESSION_MS / 1000 + 4


class Groups:
    """A group of each library with one member, all coordinated by one agent."""

    def __init__(self, world: World, topic: str, stack: ExitStack) -> None:
        self.world = world
        self.topic = topic
        self.coordinator = world.agents.agents[1]
        names = (f"{topic}-{number}" for number in range(1000))
        mine = (name for name in names if self._coordinator_of(name) == self.coordinator.agent_id)
        self.writer = Writer(world.agents.bootstrap, topic, PARTITIONS)
        stack.callback(self.writer.end)
        self.members = []
        for library in LIBRARIES:
            member = Member(library, next(mine), world.agents.bootstrap, topic)
            stack.callback(member.end)
            self.members.append(member)

    def _coordinator_of(self, group_id: str) -> int:
        address = parse_address(self.world.agents.agents[0].address, setting="agent")
        connection = Connection(address, timeout_s=20)
        try:
            found = connection.request(
                "find_coordinator",
                lambda types: build(types.FindCoordinatorRequest, key=group_id, key_type=0),
            )
        finally:
            connection.close()
        return int(found.node_id)

    def wait_further(self, since_s: float) -> dict[str, float]:
        """Until each has committed, in each partition, what was written after the call; by
        library, how long that was after a moment."""
        marks = dict(self.writer.ends)
        took: dict[str, float] = {}

        def all_went_on() -> bool:
            found = committed_in(self.members)
            assert self.writer.is_alive, "the writer ended"
            for member in self.members:
                positions = found[member.group_id]
                went_on = all(positions.get(number, 0) > end for number, end in marks.items())
                if went_on and member.library not in took:
                    took[member.library] = time.monotonic() - since_s
                assert not member.failed, f"the member of {member.library} ended"
            return len(took) == len(self.members)

        eventually(all_went_on, timeout_seconds=180)
        return took

    def check(self, witness: Agent) -> None:
        """All members leave well, and nothing that one was told is committed is lost."""
        self.writer.end()
        assert [member.end() for member in self.members] == [0] * len(self.members)
        for group_id, positions in committed_in(self.members).items():
            stored = committed(witness.address, group_id, self.topic, PARTITIONS)
            assert all(stored[number] >= end for number, end in positions.items()), group_id


@contextmanager
def groups_of(world: World) -> Iterator[Groups]:
    """Groups that have begun, in a cluster in which no shard moves any more."""
    topic = f"outage-{time.monotonic_ns()}"
    agents = world.agents
    # In objects: what lies in the WAL of an agent that was fenced can't be read for a while.
    create_topic(agents.agents[0].address, topic, PARTITIONS, penstock_durability="object")
    # Shards stay where they are once all agents have their shares.
    eventually(
        lambda: [agent.status()["group_shards"] for agent in agents.agents],
        lambda shards: sum(shards) == 64 and min(shards) > 8,
        timeout_seconds=60,
    )
    with ExitStack() as stack:
        found = Groups(world, topic, stack)
        eventually(lambda: len(found.writer.ends) == PARTITIONS, timeout_seconds=60)
        wait_progress(found.writer, found.members)
        yield found


def test_groups_go_on_after_postgres_was_away_for_longer_than_a_session(world: World) -> None:
    with groups_of(world) as groups:
        world.postgres.stop()
        try:
            time.sleep(AWAY_S)
        finally:
            world.start_postgres()
        took = groups.wait_further(time.monotonic())
        print({library: round(seconds, 2) for library, seconds in took.items()})
        groups.check(world.agents.agents[0])


@pytest.fixture
def quick_world(tmp_path: Path) -> Iterator[World]:
    """One whose agents give others up as soon as by default."""
    with World(tmp_path) as world:
        yield world


def test_groups_go_on_elsewhere_while_their_coordinator_alone_is_cut_off(
    quick_world: World,
) -> None:
    with groups_of(quick_world) as groups:
        link = quick_world.links[quick_world.agents.agents.index(groups.coordinator)]
        link.freeze()
        took = groups.wait_further(time.monotonic())
        print({library: round(seconds, 2) for library, seconds in took.items()})
        # It still is: the groups went on at another agent, which it can't know.
        link.heal()
        quick_world.heal()
        groups.check(quick_world.agents.agents[0])
