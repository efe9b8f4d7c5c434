"""The machine under any sequence of events: what holds whatever the members do."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.groups.durable import decode_state
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import (
    JOIN_TIMER,
    CancelTimer,
    Effect,
    JoinReply,
    Leaver,
    Protocol,
    Reply,
    Save,
    SetTimer,
    SyncRequest,
)
from penstock.groups.settings import GroupSettings
from penstock.groups.state import ClassicGroup
from support.examples import examples
from unit.groups.fakes import QUICK, VirtualTimers, join_request, make_group, subscription

INSTANCES = [None, None, "one", "two"]
PROTOCOLS = [
    (Protocol("range", b"r"), Protocol("sticky", b"s")),
    (Protocol("range", b"r"),),
    (Protocol("sticky", b"s2"), Protocol("range", b"r")),
]


class GroupUnderAnyEvents(RuleBasedStateMachine):
    """Clients that do anything, right or wrong, to one group; time passes, the journal fails."""

    @initialize(delay_ms=st.sampled_from([0, 3000]), size_max=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, size_max: int) -> None:
        self.settings = GroupSettings(initial_rebalance_delay_ms=delay_ms, size_max=size_max)
        self.group = ClassicGroup("g", self.settings)
        self.timers = VirtualTimers()
        self.requests = 0
        self.open: dict[int, str] = {}
        self.saves: list[Save] = []
        self.journaled: Save | None = None
        # Every id that was ever given out, with the instance that it was given to.
        self.ids: list[tuple[str, str | None]] = [("nobody", None)]
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.highest_generation = 0

    # -- what clients do -----------------------------------------------------------------------

    @rule(
        who=st.integers(0, 50),
        new=st.booleans(),
        instance=st.sampled_from(INSTANCES),
        protocols=st.sampled_from(PROTOCOLS),
        session_timeout_ms=st.sampled_from([6000, 20000]),
        id_required=st.booleans(),
        skips=st.booleans(),
    )
    def join(
        self,
        who: int,
        new: bool,
        instance: str | None,
        protocols: Any,
        session_timeout_ms: int,
        id_required: bool,
        skips: bool,
    ) -> None:
        member_id, known_instance = ("", instance) if new else self.pick(who)
        request = self.request("join")
        join = join_request(
            member_id=member_id,
            new_member_id=f"m{request}",
            instance_id=known_instance,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=15_000,
            protocols=protocols,
            id_required=id_required,
            may_skip_assignment=skips,
        )
        if new:
            self.ids.append((f"m{request}", instance))
        self.do(self.group.join(request, join))

    @rule(who=st.integers(0, 50), behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, who: int, behind: int) -> None:
        member_id, instance = self.pick(who)
        self.do_sync(member_id, instance, self.group.generation - behind)

    @precondition(lambda self: self.group.state is GroupState.COMPLETING)
    @rule()
    def leader_syncs(self) -> None:
        leader = self.group.roster.get(self.group.roster.leader)
        assert leader is not None
        self.do_sync(leader.member_id, leader.instance_id, self.group.generation)

    @precondition(lambda self: self.group.state is GroupState.PREPARING)
    @rule()
    def all_join(self) -> None:
        """Members do as they are told, so that deeper states are reached."""
        for member in list(self.group.roster):
            if member.join_request is None and member.member_id in self.group.roster:
                request = self.request("join")
                join = join_request(
                    member.member_id,
                    instance_id=member.instance_id,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=15_000,
                    protocols=member.protocols,
                )
                self.do(self.group.join(request, join))

    @precondition(lambda self: self.group.state is GroupState.COMPLETING)
    @rule()
    def followers_sync(self) -> None:
        for member in list(self.group.roster):
            if member.member_id != self.group.roster.leader:
                self.do_sync(member.member_id, member.instance_id, self.group.generation)

    @precondition(lambda self: self.group.roster.member_of_instance("one") is not None)
    @rule(skips=st.booleans())
    def static_member_comes_back(self, skips: bool) -> None:
        request = self.request("join")
        self.ids.append((f"m{request}", "one"))
        join = join_request(
            new_member_id=f"m{request}",
            instance_id="one",
            rebalance_timeout_ms=15_000,
            protocols=PROTOCOLS[0],
            may_skip_assignment=skips,
        )
        self.do(self.group.join(request, join))

    @rule(who=st.integers(0, 50))
    def heartbeat(self, who: int) -> None:
        member_id, instance = self.pick(who)
        _, effects = self.group.heartbeat(member_id, instance, self.group.generation)
        self.do(effects)

    @rule(who=st.integers(0, 50), by_instance=st.booleans())
    def leave(self, who: int, by_instance: bool) -> None:
        member_id, instance = self.pick(who)
        leaver = Leaver("" if by_instance else member_id, instance)
        results, effects = self.group.leave([leaver])
        assert len(results) == 1
        self.do(effects)

    @rule(who=st.integers(0, 50))
    def commit(self, who: int) -> None:
        member_id, instance = self.pick(who)
        error = self.group.commit(member_id, instance, self.group.generation)
        if error is GroupError.NONE:
            assert member_id in self.group.roster
            assert self.group.state in {GroupState.STABLE, GroupState.PREPARING}

    # -- what the world does -------------------------------------------------------------------

    @precondition(lambda self: self.saves)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def journal_answers(self, fails: bool) -> None:
        save = self.saves.pop(0)
        if not fails:
            self.journaled = save
        error = GroupError.COORDINATOR_NOT_AVAILABLE if fails else GroupError.NONE
        self.do(self.group.saved(save.save, error))

    @rule(who=st.integers(0, 50))
    def a_session_passes_unheard(self, who: int) -> None:
        self.group.session_passed_unheard(self.pick(who)[0])

    @rule(milliseconds=st.sampled_from([0, 500, 4000, 9000]))
    def time_passes(self, milliseconds: int) -> None:
        until_ms = self.timers.now_ms + milliseconds
        for _ in range(1000):
            timer = self.timers.next(until_ms)
            if timer is None:
                return
            self.do(self.group.timer_fired(timer))
        raise AssertionError("timers set themselves for ever")

    @precondition(lambda self: self.journaled is not None)
    @rule()
    def restart(self) -> None:
        assert self.journaled is not None
        save = self.journaled
        self.open.clear()
        self.saves.clear()
        now_ms, self.timers = self.timers.now_ms, VirtualTimers()
        self.timers.now_ms = now_ms
        self.group = ClassicGroup("g", self.settings)
        durable = decode_state(save.state, group_id="g")
        self.do(self.group.restore(save.generation, save.protocol_type, durable))
        self.highest_generation = save.generation
        # What was not journaled is no promise any more.
        self.assigned = {
            key: share for key, share in self.assigned.items() if key[0] <= save.generation
        }
        for member in durable.members:
            assert (
                self.group.commit(member.member_id, member.instance_id, save.generation)
                is GroupError.NONE
            )

    # -- what holds ----------------------------------------------------------------------------

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.group.generation >= self.highest_generation
        self.highest_generation = self.group.generation

    @invariant()
    def empty_means_no_members(self) -> None:
        if self.group.state is GroupState.EMPTY:
            assert not self.group.roster
            assert not self.group.roster.leader
        if self.group.state in {GroupState.STABLE, GroupState.COMPLETING}:
            assert self.group.roster.leader in self.group.roster

    @invariant()
    def what_waits_here_is_what_is_unanswered(self) -> None:
        waiting: list[int] = []
        for member in self.group.roster:
            waiting += [r for r in (member.join_request, member.sync_request) if r is not None]
        assert sorted(waiting) == sorted(self.open)

    @invariant()
    def nobody_waits_without_a_timer(self) -> None:
        state = self.group.state
        if state is GroupState.PREPARING:
            assert ("join", "") in self.timers._set
        for member in self.group.roster:
            if not member.waits:
                assert ("session", member.member_id) in self.timers._set

    def teardown(self) -> None:
        """Left alone, the group answers every request and ends empty; nothing stays set."""
        if not hasattr(self, "group"):
            return
        for _ in range(2000):
            if self.saves:
                self.journal_answers(fails=False)
                continue
            timer = self.timers.next()
            if timer is None:
                break
            self.do(self.group.timer_fired(timer))
        assert not self.open
        assert not self.group.roster
        assert self.group.state is GroupState.EMPTY
        assert self.group.is_idle

    # -- inside --------------------------------------------------------------------------------

    def pick(self, who: int) -> tuple[str, str | None]:
        """Someone of the group most of the time, and anybody who ever was there otherwise."""
        members = [(member.member_id, member.instance_id) for member in self.group.roster]
        those = self.ids if who % 4 == 0 or not members else members
        return those[who // 4 % len(those)]

    def request(self, kind: str) -> int:
        self.requests += 1
        self.open[self.requests] = kind
        return self.requests

    def do_sync(self, member_id: str, instance: str | None, generation: int) -> None:
        request = self.request("sync")
        sync = SyncRequest(
            member_id=member_id,
            instance_id=instance,
            generation=generation,
            protocol_type=None,
            protocol_name=None,
            assignments={
                member.member_id: f"{generation}/{request}/{member.member_id}".encode()
                for member in self.group.roster
            },
        )
        self.do(self.group.sync(request, sync))

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers.set(effect.timer, effect.delay_ms)
            elif isinstance(effect, CancelTimer):
                self.timers.cancel(effect.timer)
            elif isinstance(effect, Save):
                self.saves.append(effect)
            else:
                self.answered(effect)

    def answered(self, effect: Reply) -> None:
        kind = self.open.pop(effect.request)  # KeyError: a request was answered twice
        reply = effect.reply
        assert (kind == "join") == isinstance(reply, JoinReply)
        if reply.error is not GroupError.NONE:
            return
        group = self.group
        if isinstance(reply, JoinReply):
            assert reply.generation == group.generation
            assert reply.member_id in group.roster
            if reply.skip_assignment or (reply.leader not in group.roster):
                # A static member that took its place back: what it was promised is journaled.
                assert self.journaled is not None
                saved = decode_state(self.journaled.state, group_id="g")
                assert reply.member_id in [member.member_id for member in saved.members]
            return
        # A share is handed out when it is journaled, whole, and never another of one generation.
        assert group.state is GroupState.STABLE
        assert self.journaled is not None
        assert self.journaled.generation == group.generation
        shares = decode_state(self.journaled.state, group_id="g").members
        assert reply.assignment in [member.assignment for member in shares]
        for member in shares:
            assert member.assignment
            key = (group.generation, (member.instance_id or member.member_id))
            assert self.assigned.setdefault(key, member.assignment) == member.assignment


GroupUnderAnyEvents.TestCase.settings = settings(max_examples=examples(2), stateful_step_count=50)
TestGroupUnderAnyEvents = GroupUnderAnyEvents.TestCase


def test_an_offset_of_a_subscribed_topic_is_known_as_read() -> None:
    group = make_group()
    assert not group.is_subscribed("flights")
    for number, topic in enumerate(["flights", "planes"]):
        protocols = (Protocol("range", subscription(topic)),)
        group.join(number, join_request(new_member_id=f"m{number}", protocols=protocols))
    # Once for the first member's delay, once for the second's.
    group.timer_fired(JOIN_TIMER)
    group.timer_fired(JOIN_TIMER)
    assert group.topics() == {"flights", "planes"}
    assert group.is_subscribed("planes")
    assert not group.is_subscribed("airports")


def test_a_subscription_that_cannot_be_read_may_be_any() -> None:
    group = make_group()
    group.join(1, join_request(new_member_id="m"))
    group.timer_fired(JOIN_TIMER)
    assert group.topics() is None
    assert group.is_subscribed("anything")


def test_an_ended_group_answers_all_and_then_everything_alike() -> None:
    group = make_group(QUICK)
    group.join(1, join_request(new_member_id="m"))
    effects = group.end(GroupError.NOT_COORDINATOR)
    replies = [effect for effect in effects if isinstance(effect, Reply)]
    assert [(one.request, one.reply.error) for one in replies] == [(1, GroupError.NOT_COORDINATOR)]
    assert group.heartbeat("m", None, 0)[0] is GroupError.COORDINATOR_NOT_AVAILABLE
    assert group.commit("", None, -1) is GroupError.COORDINATOR_NOT_AVAILABLE
    (effect,) = group.join(2, join_request(new_member_id="n"))
    assert isinstance(effect, Reply)
    assert effect.reply.error is GroupError.COORDINATOR_NOT_AVAILABLE
