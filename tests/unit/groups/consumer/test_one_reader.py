"""No partition has two readers, and each has one in the end, whatever happens on the way."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.groups.consumer import partitions
from penstock.groups.consumer.member import LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from penstock.groups.consumer.messages import Heartbeat, HeartbeatReply
from penstock.groups.consumer.partitions import NONE, Partitions
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import Timer
from unit.groups.consumer.shell import Shell, Topics, topic_id

LOST = {
    GroupError.FENCED_MEMBER_EPOCH,
    GroupError.UNKNOWN_MEMBER_ID,
    GroupError.FENCED_INSTANCE_ID,
}
"""A client that gets one of these gives all up and joins again."""


class Client:
    """A member as a client library has it: gives up what it is told to in its own time."""

    def __init__(self, member_id: str, topics: tuple[str, ...], instance: str | None) -> None:
        self.member_id = member_id
        self.topics = topics
        self.instance = instance
        self.epoch = 0
        self.has: Partitions = NONE
        """What it reads."""
        self.wants: Partitions = NONE
        """What the coordinator gave it last."""
        self.says_all = True

    def next_beat(self, *, reports: bool = True) -> Heartbeat:
        joins = self.epoch == 0
        says = joins or self.says_all
        return Heartbeat(
            member_id=self.member_id,
            epoch=self.epoch,
            instance_id=self.instance if joins else None,
            rebalance_timeout_ms=60_000 if says else -1,
            topics=self.topics if says else None,
            owned=self.has if says or reports else None,
        )

    def take(self, reply: HeartbeatReply) -> None:
        if reply.error in LOST:
            self.lose()
        elif reply.error is not GroupError.NONE:
            self.says_all = True
        else:
            self.epoch, self.says_all = reply.epoch, False
            if reply.assigned is not None:
                self.wants = reply.assigned

    def lose(self) -> None:
        self.epoch, self.has, self.wants, self.says_all = 0, NONE, NONE, True

    def give_up(self) -> None:
        self.has = partitions.common(self.has, self.wants)

    def take_up(self) -> None:
        # As Kafka's client: what it must give up goes first.
        if not partitions.minus(self.has, self.wants):
            self.has = self.wants


class Groups(RuleBasedStateMachine):
    """Clients, lost answers, dead clients, a journal that refuses, topics that change."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell(Topics(a=3, b=2))
        self.clients: list[Client] = []
        self.made = 0

    @precondition(lambda self: len(self.clients) < 5)
    @rule(
        topics=st.sampled_from([("a",), ("b",), ("a", "b"), ("a", "b", "c")]),
        is_static=st.booleans(),
    )
    def comes(self, topics: tuple[str, ...], is_static: bool) -> None:
        self.made += 1
        instance = f"i{self.made}" if is_static else None
        self.clients.append(Client(f"m{self.made}", topics, instance))

    def _client(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_lost=st.integers(0, 4), reports=st.booleans())
    def beats(self, data: st.DataObject, is_lost: int, reports: bool) -> None:
        client = self._client(data)
        request = self.shell.ask(client.next_beat(reports=reports))
        self._answer(client, request, is_lost=is_lost == 0)

    @precondition(lambda self: self.clients)
    @rule(reports=st.booleans(), take_up=st.booleans())
    def all_beat(self, reports: bool, take_up: bool) -> None:
        for client in self.clients:
            request = self.shell.ask(client.next_beat(reports=reports))
            self._answer(client, request, is_lost=False)
            if take_up:
                client.take_up()

    def _answer(self, client: Client, request: int, *, is_lost: bool) -> None:
        if is_lost or request not in self.shell.replies:
            client.says_all = True
        else:
            client.take(self.shell.replies[request])

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        self._client(data).give_up()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def takes_up(self, data: st.DataObject) -> None:
        self._client(data).take_up()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        client = self._client(data)
        self.clients.remove(client)
        if client.epoch > 0:
            self.shell.ask(Heartbeat(member_id=client.member_id, epoch=LEAVING_EPOCH))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def is_silent_for_a_session(self, data: st.DataObject) -> None:
        client = self._client(data)
        timer = Timer("session", client.member_id)
        if timer not in self.shell.timers:
            return
        # By then the client itself knows that it is out.
        client.lose()
        del self.shell.timers[timer]
        self.shell.do(self.shell.group.timer_fired(timer))

    @precondition(lambda self: any(client.instance for client in self.clients))
    @rule(data=st.data(), is_told=st.booleans())
    def a_static_one_restarts(self, data: st.DataObject, is_told: bool) -> None:
        client = data.draw(st.sampled_from([one for one in self.clients if one.instance]))
        if client.epoch > 0 and is_told:
            self.shell.ask(
                Heartbeat(
                    member_id=client.member_id,
                    epoch=STATIC_LEAVING_EPOCH,
                    instance_id=client.instance,
                )
            )
        self.made += 1
        self.clients.remove(client)
        self.clients.append(Client(f"m{self.made}", client.topics, client.instance))

    @rule(name=st.sampled_from("abc"), count=st.integers(0, 5))
    def topic_changes(self, name: str, count: int) -> None:
        now = self.shell.catalog.counts.get(name, 0)
        if not (now if count == 0 else count > now):
            return
        if not count:
            # Of a deleted topic nothing is left to read.
            for client in self.clients:
                client.has = partitions.minus(client.has, {topic_id(name): frozenset(range(9))})
                client.wants = partitions.minus(client.wants, {topic_id(name): frozenset(range(9))})
        self.shell.catalog.set(name, count)

    @rule()
    def journal_stalls(self) -> None:
        self.shell.holds = True

    @rule(is_well=st.booleans())
    def journal_answers(self, is_well: bool) -> None:
        self.shell.holds = False
        self.shell.journal(GroupError.NONE if is_well else GroupError.COORDINATOR_NOT_AVAILABLE)

    @precondition(lambda self: not self.shell.saves)
    @rule(is_partial=st.booleans())
    def coordinator_moves(self, is_partial: bool) -> None:
        self.shell.read_again(is_partial=is_partial)

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        seen: set[tuple[bytes, int]] = set()
        for client in self.clients:
            for topic, some in client.has.items():
                for number in some:
                    assert (topic, number) not in seen, (topic, number)
                    seen.add((topic, number))

    def teardown(self) -> None:
        """Check that each member comes to its target when left alone, and each partition to a
        reader."""
        self.shell.holds = False
        self.shell.journal()
        self._all_work()
        known = {client.member_id for client in self.clients}
        for member_id in set(self.shell.group.members) - known:
            # What a lost client left behind ends with its session.
            self.shell.do(self.shell.group.timer_fired(Timer("session", member_id)))
        self._all_work()
        wanted = {
            (topic_id(name), number)
            for name, count in self.shell.catalog.counts.items()
            for number in range(count)
            if any(name in client.topics for client in self.clients)
        }
        read = {
            (topic, number)
            for client in self.clients
            for topic, some in client.has.items()
            for number in some
        }
        assert read == wanted
        assert self.shell.group.state is (GroupState.STABLE if self.clients else GroupState.EMPTY)

    def _all_work(self) -> None:
        for _ in range(12):
            for client in self.clients:
                self._answer(client, self.shell.ask(client.next_beat()), is_lost=False)
                client.give_up()
                client.take_up()
            self.no_partition_has_two_readers()


Groups.TestCase.settings = settings(stateful_step_count=40)
TestGroups = Groups.TestCase
