"""Steps of members of streams groups that no dialogue with Kafka has."""

from __future__ import annotations

from penstock.groups.consumer.member import MemberState
from penstock.groups.errors import GroupError
from penstock.groups.messages import Timer
from penstock.groups.streams.member import StreamsMember
from penstock.groups.streams.reconcile import Free, next_step
from penstock.groups.streams.tasks import NONE, Tasks
from unit.groups.consumer.shell import Topics
from unit.groups.streams.shell import Shell


def tasks(*numbers: int) -> Tasks:
    return Tasks(active={"0": frozenset(numbers)} if numbers else {})


def test_a_member_that_must_give_up_more_goes_to_the_next_epoch() -> None:
    member = StreamsMember(
        "m", epoch=3, state=MemberState.UNREVOKED, assigned=tasks(0, 1), revoking=tasks(2)
    )
    free = Free(active=lambda *_: True, other=lambda *_: True)
    step = next_step(member, tasks(0), 7, tasks(0, 1), free)
    assert (step.epoch, step.previous_epoch, step.state) == (4, 3, MemberState.UNREVOKED)
    assert (step.assigned, step.revoking) == (tasks(0), tasks(1))
    last = next_step(step, tasks(0), 7, tasks(0), free)
    assert (last.epoch, last.state, last.revoking) == (7, MemberState.STABLE, NONE)


def in_hand_over() -> Shell:
    """Member one has to give tasks up to member two."""
    shell = Shell(Topics(a=2, r=2, s=2))
    shell.join("one")
    # The topics of the catalog are there already, so that the first target has all tasks.
    shell.join("two")
    has = shell.group.members["one"].assigned
    shell.beat("one", 2, active=has.active, standby={}, warmup={})
    assert shell.group.members["one"].state is MemberState.UNREVOKED
    return shell


def test_the_next_coordinator_times_what_a_member_has_to_give_up() -> None:
    shell = in_hand_over()
    shell.read_again()
    assert shell.timers[Timer("rebalance", "one")] == 60_000


def test_a_lost_answer_is_made_up_for_only_where_the_tasks_are_the_members_own() -> None:
    shell = in_hand_over()
    kept = shell.group.members["one"].assigned
    shell.beat("one", 2, active=kept.active, standby={}, warmup={})
    member = shell.group.members["one"]
    assert (member.epoch, member.previous_epoch) == (3, 2)
    given = shell.group.members["two"].target
    foreign = shell.beat("one", 2, active=given.active, standby={}, warmup={})
    assert foreign.error is GroupError.FENCED_MEMBER_EPOCH
    own = shell.beat("one", 2, active=kept.active, standby={}, warmup={})
    assert (own.error, own.epoch) == (GroupError.NONE, 3)
