"""What a consumer group answers: joins, epochs, static members, refusals, the journal."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.groups.consumer.member import STATIC_LEAVING_EPOCH
from penstock.groups.consumer.messages import Heartbeat
from penstock.groups.consumer.partitions import NONE
from penstock.groups.consumer.roster import REST_MS, REST_TIMER, RESTS_FROM
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import Timer
from penstock.groups.settings import GroupSettings
from unit.groups.consumer.shell import A, Shell, Topics, numbers, topic_id


def test_one_member_gets_all_and_a_second_one_waits_until_half_is_given_up() -> None:
    shell = Shell(Topics(a=4))
    first = shell.join("one", "a")
    assert (first.epoch, numbers(first.assigned)) == (1, [0, 1, 2, 3])
    second = shell.join("two", "a")
    assert (second.epoch, numbers(second.assigned)) == (2, [])
    assert shell.group.state is GroupState.RECONCILING
    answer = shell.beat("one", 1)
    assert (answer.epoch, numbers(answer.assigned)) == (1, [0, 1])
    assert Timer("rebalance", "one") in shell.timers
    # The first says nothing of what it has, or that it has all: it may still read all.
    assert shell.beat("one", 1).epoch == 1
    assert shell.beat("one", 1, owned={A: frozenset(range(4))}).epoch == 1
    assert shell.beat("two", 2).assigned is None
    done = shell.beat("one", 1, owned={A: frozenset([0, 1])})
    assert (done.epoch, done.assigned) == (2, None)
    assert Timer("rebalance", "one") not in shell.timers
    assert numbers(shell.beat("two", 2).assigned) == [2, 3]
    assert shell.group.state is GroupState.STABLE


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    shell = Shell(Topics(a=2))
    shell.join("one", "a", rebalance_timeout_ms=1234)
    shell.join("two", "a")
    shell.beat("one", 1)
    assert shell.timers[Timer("rebalance", "one")] == 1234
    shell.do(shell.group.timer_fired(Timer("rebalance", "one")))
    assert shell.group.state is GroupState.ASSIGNING
    assert numbers(shell.beat("two", 2).assigned) == [0, 1]
    assert shell.beat("one", 1).error is GroupError.UNKNOWN_MEMBER_ID


def test_an_answer_that_was_lost_is_given_again() -> None:
    shell = Shell(Topics(a=2))
    shell.join("one", "a")
    shell.catalog.set("a", 4)
    assert shell.beat("one", 1).epoch == 2
    mine = {A: frozenset([0, 1])}
    again = shell.beat("one", 1, owned=mine, rebalance_timeout_ms=1, topics=("a",))
    assert (again.error, again.epoch, numbers(again.assigned)) == (GroupError.NONE, 2, [0, 1, 2, 3])
    assert shell.beat("one", 1).error is GroupError.FENCED_MEMBER_EPOCH
    assert shell.beat("one", 9).error is GroupError.FENCED_MEMBER_EPOCH
    assert shell.beat("one", 1, owned={A: frozenset([7])}).error is GroupError.FENCED_MEMBER_EPOCH


def test_a_static_member_comes_back_to_its_partitions_under_another_id() -> None:
    shell = Shell(Topics(a=4))
    shell.join("one", "a", instance_id="i")
    shell.join("two", "a")
    shell.beat("one", 1)
    shell.beat("one", 1, owned={A: frozenset([0, 1])})
    shell.beat("two", 2)
    epoch = shell.group.epoch
    taken = shell.join("three", "a", instance_id="i")
    assert taken.error is GroupError.UNRELEASED_INSTANCE_ID
    left = shell.beat("one", STATIC_LEAVING_EPOCH, instance_id="i")
    assert (left.error, left.epoch) == (GroupError.NONE, STATIC_LEAVING_EPOCH)
    assert shell.beat("two", 2).assigned is None, "its partitions stay its own"
    back = shell.join("three", "a", instance_id="i")
    assert numbers(back.assigned) == [0, 1]
    assert shell.group.epoch == epoch
    assert shell.beat("one", 2, instance_id="i").error is GroupError.FENCED_INSTANCE_ID
    assert shell.beat("one", 2).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_static_member_that_leaves_for_a_while_has_given_up_what_it_was_asked_for() -> None:
    shell = Shell(Topics(a=4))
    shell.join("one", "a", instance_id="i")
    shell.join("two", "a")
    assert numbers(shell.beat("one", 1).assigned) == [0, 1]
    shell.beat("one", STATIC_LEAVING_EPOCH, instance_id="i")
    assert numbers(shell.beat("two", 2).assigned) == [2, 3]


GOOD = Heartbeat(member_id="one", epoch=0, rebalance_timeout_ms=1000, topics=("a",), owned=NONE)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, GroupError.INVALID_REQUEST),
        ({"epoch": -3}, GroupError.INVALID_REQUEST),
        ({"epoch": -2}, GroupError.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, GroupError.INVALID_REQUEST),
        ({"owned": None}, GroupError.INVALID_REQUEST),
        ({"owned": {A: frozenset([1])}}, GroupError.INVALID_REQUEST),
        ({"topics": None}, GroupError.INVALID_REQUEST),
        ({"instance_id": ""}, GroupError.INVALID_REQUEST),
        ({"rack": ""}, GroupError.INVALID_REQUEST),
        ({"topics": ("a",) * 10_001}, GroupError.INVALID_REQUEST),
        ({"topics": ("a" * 249,) * 2_200}, GroupError.INVALID_REQUEST),
        ({"assignor": "sticky"}, GroupError.UNSUPPORTED_ASSIGNOR),
        ({"regex": "(a"}, GroupError.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_heartbeat_that_no_group_takes_is_refused_and_changes_nothing(
    fields: dict[str, object], error: GroupError
) -> None:
    shell = Shell(Topics(a=1))
    reply = shell.replies[shell.ask(dataclasses.replace(GOOD, **fields))]  # type: ignore[arg-type]
    assert reply.error is error
    assert reply.message
    assert not shell.rows
    assert not shell.timers


def test_a_group_has_no_more_members_than_it_may() -> None:
    shell = Shell(Topics(a=1), GroupSettings(consumer_size_max=1))
    assert shell.join("one", "a").error is GroupError.NONE
    assert shell.join("two", "a").error is GroupError.GROUP_MAX_SIZE_REACHED
    assert shell.join("one", "a").error is GroupError.NONE, "it is a member"


def test_a_regular_expression_takes_in_topics_that_come_later() -> None:
    shell = Shell(Topics(a=1, aa=1))
    first = shell.join("one", topics=None, regex="a.*")
    assert set(first.assigned or {}) == {A, topic_id("aa")}
    shell.catalog.set("ac", 2)
    assert set(shell.beat("one", 1).assigned or {}) == {A, topic_id("aa"), topic_id("ac")}


def test_commits_name_the_epoch_of_their_member() -> None:
    shell = Shell(Topics(a=1))
    assert shell.group.commit("", None, -1) is GroupError.NONE
    shell.join("one", "a")
    assert shell.group.commit("", None, -1) is GroupError.UNKNOWN_MEMBER_ID
    assert shell.group.commit("one", None, 1) is GroupError.NONE
    assert shell.group.commit("one", None, 0) is GroupError.STALE_MEMBER_EPOCH
    assert shell.group.commit("two", None, 1) is GroupError.UNKNOWN_MEMBER_ID


def test_no_answer_is_given_before_the_journal_has_what_it_is_made_of() -> None:
    shell = Shell(Topics(a=2))
    shell.holds = True
    joins = [shell.ask(dataclasses.replace(GOOD, member_id=name)) for name in ("one", "two")]
    again = shell.ask(GOOD)
    assert not shell.replies
    assert set(shell.saves[0].rows) == {"one"}
    shell.journal()
    assert set(shell.replies) == {*joins, again}
    assert set(shell.rows) == {"one", "two"}


def test_an_answer_waits_for_the_save_that_it_is_made_of() -> None:
    shell = Shell(Topics(a=2))
    shell.holds = True
    join = shell.ask(GOOD)
    again = shell.ask(Heartbeat(member_id="one", epoch=1))
    assert not shell.replies
    shell.journal(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert {shell.replies[one].error for one in (join, again)} == {
        GroupError.COORDINATOR_NOT_AVAILABLE
    }


def test_a_refused_save_fails_all_that_waited_and_the_group_is_read_again() -> None:
    shell = Shell(Topics(a=2))
    shell.join("one", "a")
    shell.holds = True
    before = dict(shell.rows)
    asked = [shell.ask(dataclasses.replace(GOOD, member_id=name)) for name in ("two", "three")]
    shell.journal(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert {shell.replies[one].error for one in asked} == {GroupError.COORDINATOR_NOT_AVAILABLE}
    assert set(shell.group.members) == {"one"}
    assert shell.rows == before
    assert Timer("session", "one") in shell.timers
    shell.holds = False
    assert shell.beat("one", 1).error is GroupError.NONE


@pytest.mark.slow
def test_a_large_group_makes_one_target_a_second() -> None:
    """Each join of a fleet's start would make one otherwise, in time in proportion to the fleet."""
    shell = Shell(Topics(a=400))
    for number in range(RESTS_FROM):
        shell.join(f"m{number}", "a")
    epoch = shell.group.target_epoch
    for number in range(50):
        assert numbers(shell.join(f"late{number}", "a").assigned) == []
    assert shell.group.target_epoch == epoch
    assert shell.group.state is GroupState.ASSIGNING
    assert shell.timers.pop(REST_TIMER) == REST_MS
    shell.do(shell.group.timer_fired(REST_TIMER))
    # The first that is heard makes the target for all of them.
    shell.beat("m0", shell.group.members["m0"].epoch)
    assert shell.group.target_epoch == shell.group.epoch
    assert {len(member.target[A]) for member in shell.group.members.values()} == {2, 3}


def test_targets_that_were_journaled_in_part_are_made_again() -> None:
    shell = Shell(Topics(a=4))
    shell.join("one", "a")
    shell.join("two", "a")
    shell.read_again(is_partial=True)
    assert shell.group.state is GroupState.ASSIGNING
    assert shell.beat("one", 1).epoch == 1
    assert shell.group.target_epoch == 3


def test_a_groups_own_configs_hold_from_the_next_heartbeat_on() -> None:
    shell = Shell(Topics(a=2))
    shell.join("one", "a")
    session = Timer("session", "one")
    assert shell.timers[session] == 45_000
    shell.configs = {"consumer.session.timeout.ms": "50000"}
    shell.beat("one", 1)
    assert shell.timers[session] == 50_000
    shell.configs = {}
    shell.beat("one", 1)
    assert shell.timers[session] == 45_000


def test_a_group_rests_between_two_targets_as_long_as_its_config_says() -> None:
    shell = Shell(Topics(a=2))
    shell.configs = {"consumer.assignment.interval.ms": "700"}
    shell.join("one", "a")
    assert shell.timers[REST_TIMER] == 700
    shell.join("two", "a")
    assert shell.group.epoch > shell.group.target_epoch
    shell.timers.pop(REST_TIMER)
    shell.do(shell.group.timer_fired(REST_TIMER))
    shell.beat("two", 1)
    assert shell.group.epoch == shell.group.target_epoch
