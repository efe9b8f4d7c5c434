"""No task is run by two members, or twice by one program, whatever happens to a streams group.

Clients live, lose answers, die and come back; the journal refuses; coordinators move; topics and
configs change. In the end, when all live in peace, each task has one member, each copy its program,
and the loads are even: a naive model says how many tasks there are.
"""

from __future__ import annotations

import random

import pytest

from penstock.groups.consumer import partitions
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.member_saves import ROWS_AT_ONCE
from penstock.groups.messages import Timer
from penstock.groups.streams.durable import DurableStreamsGroup
from penstock.groups.streams.messages import SaveStreams, StreamsHeartbeat, StreamsReply
from penstock.groups.streams.saving import streams_commands
from penstock.groups.streams.tasks import NONE, Tasks, each_task
from unit.groups.consumer.shell import Topics
from unit.groups.streams.shell import COUNT, Shell, joining

PROCESSES = ("p", "q", "r")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")
EVENTS = 60
SETTLING_ROUNDS = 40


class Client:
    """A thread of a program: it runs what it was last told to."""

    def __init__(self, member_id: str, process_id: str) -> None:
        self.member_id = member_id
        self.process_id = process_id
        self.epoch = 0
        self.runs = NONE
        self.is_alive = False

    def beat(self) -> StreamsHeartbeat:
        fields = joining(self.member_id) | {"process_id": self.process_id}
        if self.epoch:
            fields = {
                "active": self.runs.active,
                "standby": self.runs.standby,
                "warmup": self.runs.warmup,
            }
        return StreamsHeartbeat(member_id=self.member_id, epoch=self.epoch, **fields)  # type: ignore[arg-type]

    def hear(self, reply: StreamsReply) -> None:
        if reply.error in {GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH}:
            self.epoch, self.runs = 0, NONE
        elif reply.error is GroupError.NONE:
            self.epoch = reply.epoch
            if reply.tasks is not None:
                self.runs = reply.tasks

    def end(self) -> None:
        self.epoch, self.runs, self.is_alive = 0, NONE, False


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shell = Shell(Topics(a=4, r=4, s=4))
        self.clients = [Client(one, self.random.choice(PROCESSES)) for one in MEMBERS]

    def happen(self) -> None:
        chance = self.random
        client = chance.choice(self.clients)
        event = chance.random()
        if event < 0.6:
            self.live(client, is_lost=chance.random() < 0.2)
        elif event < 0.68 and client.is_alive:
            self.leave(client)
        elif event < 0.76 and client.is_alive:
            # It stops working before its session ends.
            client.end()
            self.fire(Timer("session", client.member_id))
        elif event < 0.82:
            timers = [one for one in self.shell.timers if one.kind == "rebalance"]
            if timers:
                late = chance.choice(timers)
                next(one for one in self.clients if one.member_id == late.member_id).runs = NONE
                self.fire(late)
        elif event < 0.88:
            self.shell.read_again()
        elif event < 0.94:
            self.shell.configs["streams.num.standby.replicas"] = str(chance.randrange(3))
        else:
            count = chance.choice((0, 4))
            if self.shell.catalog.counts.get("s", 0) != count:
                self.shell.catalog.set("s", count)
        self.check()

    def fire(self, timer: Timer) -> None:
        if timer in self.shell.timers:
            self.shell.fire(timer)

    def live(self, client: Client, *, is_lost: bool) -> None:
        client.is_alive = True
        refuses = self.random.random() < 0.1
        self.shell.holds = refuses
        request = self.shell.ask(client.beat())
        if refuses:
            self.shell.holds = False
            self.shell.journal(GroupError.COORDINATOR_NOT_AVAILABLE)
        if not is_lost:
            client.hear(self.shell.replies[request])

    def leave(self, client: Client) -> None:
        member_id = client.member_id
        client.end()
        self.shell.ask(StreamsHeartbeat(member_id=member_id, epoch=-1))

    def check(self) -> None:
        active: dict[tuple[str, int], str] = {}
        held: set[tuple[str, tuple[str, int]]] = set()
        for client in self.clients:
            for task in each_task(client.runs.active):
                assert task not in active, f"{task} is run by {active[task]} and {client.member_id}"
                active[task] = client.member_id
            for role in client.runs.roles:
                for task in each_task(role):
                    assert (client.process_id, task) not in held, f"{task} twice in a program"
                    held.add((client.process_id, task))

    def settle(self) -> None:
        """All that live do so undisturbed."""
        self.shell.catalog.set("s", 4)
        for _ in range(SETTLING_ROUNDS):
            for client in self.clients:
                if client.is_alive:
                    client.hear(self.shell.replies[self.shell.ask(client.beat())])
                    self.check()
        # Members whose clients died before anything was journaled of them have their sessions.
        for client in self.clients:
            if not client.is_alive:
                self.fire(Timer("session", client.member_id))
        for _ in range(SETTLING_ROUNDS):
            for client in self.clients:
                if client.is_alive:
                    client.hear(self.shell.replies[self.shell.ask(client.beat())])
                    self.check()


@pytest.mark.parametrize("seed", range(30))
def test_each_task_is_run_once(seed: int) -> None:
    world = World(seed)
    for _ in range(EVENTS):
        world.happen()
    world.settle()
    alive = [client for client in world.clients if client.is_alive]
    group = world.shell.group
    assert {*group.members} == {client.member_id for client in alive}
    if not alive:
        assert group.state is GroupState.EMPTY
        return
    assert group.state is GroupState.STABLE
    runs = [client.runs for client in alive]
    assert sorted(task for one in runs for task in each_task(one.active)) == [
        (name, number) for name in ("0", "1") for number in range(4)
    ]
    replicas = int(world.shell.configs.get("streams.num.standby.replicas", 0))
    processes = {client.process_id for client in alive}
    copies = sorted(task for one in runs for task in each_task(one.standby))
    wanted = min(replicas, len(processes) - 1)
    assert copies == [("1", number) for number in range(4) for _ in range(wanted)]
    counts = [partitions.count(one.active) for one in runs]
    # Without copies only members of one program, or programs of equal size, can be told apart.
    if not replicas and len(processes) == len(alive):
        assert max(counts) - min(counts) <= 1


def test_the_journal_has_all_that_a_coordinator_needs() -> None:
    shell = Shell(Topics(a=2, r=2, s=2), **{"streams.num.standby.replicas": "1"})
    shell.join("one")
    shell.join("two")
    shell.beat("one", 2, active={"0": frozenset({0}), "1": frozenset({0})}, standby={}, warmup={})
    before = shell.group
    shell.read_again()
    after = shell.group
    assert after.members == before.members
    assert (after.epoch, after.target_epoch) == (before.epoch, before.target_epoch)
    assert (after.topology, after.state) == (COUNT, before.state)
    # A heartbeat that says nothing new changes nothing at the next coordinator.
    epoch = after.epoch
    shell.beat("two", after.members["two"].epoch)
    assert shell.group.epoch == epoch


def test_a_save_that_is_journaled_in_part_makes_targets_again() -> None:
    shell = Shell(Topics(a=2, r=2, s=2))
    shell.join("one")
    save = SaveStreams(
        save=1,
        epoch=shell.group.epoch,
        state=DurableStreamsGroup(target_epoch=shell.group.target_epoch),
        is_empty=False,
        rows={str(number): b"row" for number in range(ROWS_AT_ONCE + 1)},
        removed=(),
    )
    first, last = streams_commands(save, group_id="g", shard_epoch=0)
    for command, grows in ((first, 1), (last, 0)):
        shell.stored = command
        shell.read_again()
        assert shell.group.epoch == save.epoch + grows


def test_a_member_that_gives_up_too_slowly_is_removed() -> None:
    shell = Shell(Topics(a=2, r=2, s=2))
    shell.join("one")
    shell.beat("one", 2)
    shell.join("two")
    has = shell.group.members["one"].assigned
    shell.beat("one", 2, active=has.active, standby={}, warmup={})
    assert shell.timers[Timer("rebalance", "one")] == 60_000
    shell.fire(Timer("rebalance", "one"))
    assert set(shell.group.members) == {"two"}
    assert shell.beat("one", 2).error is GroupError.UNKNOWN_MEMBER_ID
    assert shell.beat("two", shell.group.members["two"].epoch, **says(NONE)).tasks == has


def says(tasks: Tasks) -> dict[str, object]:
    return {"active": tasks.active, "standby": tasks.standby, "warmup": tasks.warmup}


def test_a_refused_save_is_answered_so_and_the_group_is_read_again() -> None:
    shell = Shell(Topics(a=2, r=2, s=2))
    shell.join("one")
    shell.holds = True
    request = shell.ask(StreamsHeartbeat(member_id="two", epoch=0, **joining("two")))  # type: ignore[arg-type]
    assert request not in shell.replies
    shell.holds = False
    shell.journal(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert shell.replies[request].error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert set(shell.group.members) == {"one"}
