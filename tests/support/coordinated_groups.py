"""Groups of real client libraries that one agent coordinates, and how soon they go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from chaos.world import World
from penstock.config.addresses import parse_address
from penstock.kafka.wire.schema import build
from support.agents import Agent
from support.committer import committed
from support.connection import Connection
from support.group_members import Member, Writer, committed_in, wait_progress
from support.probe import create_topic
from support.waiting import eventually

LIBRARIES = ("confluent", "aiokafka", "python")
PARTITIONS = 3
WRITER = "writer"


class Took(NamedTuple):
    """Seconds by library, and `WRITER` for the producer: until something that was written after a
    moment was committed, and until that was so in each partition."""

    first_s: dict[str, float]
    all_s: dict[str, float]

    def __str__(self) -> str:
        return str({name: round(seconds, 2) for name, seconds in self.all_s.items()})


class Groups:
    """A group of each library with one member, all coordinated by one agent."""

    def __init__(self, world: World, topic: str, stack: ExitStack) -> None:
        self.world = world
        self.topic = topic
        self.coordinator = world.agents.agents[1]
        names = (f"{topic}-{number}" for number in range(1000))
        self.unused = (
            name for name in names if self._coordinator_of(name) == self.coordinator.agent_id
        )
        """Ids of groups that the coordinator has and that have no members."""
        self.writer = Writer(world.agents.bootstrap, topic, PARTITIONS)
        stack.callback(self.writer.end)
        self.members = []
        for library in LIBRARIES:
            member = Member(library, next(self.unused), world.agents.bootstrap, topic)
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

    def wait_further(self, since_s: float) -> Took:
        """Until each has committed, in each partition, what was written after the call; how long
        that was after a moment."""
        marks = dict(self.writer.ends)
        took = Took({}, {})

        def further(positions: dict[int, int]) -> list[bool]:
            return [positions.get(number, 0) > end for number, end in marks.items()]

        def note(found: dict[str, float], name: str, *, is_there: bool) -> None:
            if is_there and name not in found:
                found[name] = time.monotonic() - since_s

        def all_went_on() -> bool:
            found = committed_in(self.members)
            assert self.writer.is_alive, "the writer ended"
            note(took.all_s, WRITER, is_there=all(further(self.writer.ends)))
            for member in self.members:
                is_further = further(found[member.group_id])
                note(took.first_s, member.library, is_there=any(is_further))
                note(took.all_s, member.library, is_there=all(is_further))
                assert not member.failed, f"the member of {member.library} ended"
            return len(took.all_s) == 1 + len(self.members)

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
