"""Leaders, instances and votes."""

from penstock.groups.member import Member
from penstock.groups.messages import Protocol
from penstock.groups.roster import Roster
from unit.groups.fakes import join_request


def member(member_id: str, *protocols: str, instance: str | None = None) -> Member:
    join = join_request()
    return Member(
        member_id=member_id,
        instance_id=instance,
        client_id="c",
        client_host="h",
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocols=tuple(Protocol(name, b"") for name in protocols or ("range",)),
    )


def roster_of(*members: Member) -> Roster:
    roster = Roster()
    for one in members:
        roster.add(one)
    return roster


def test_the_most_voted_of_those_that_all_know_is_selected() -> None:
    roster = roster_of(
        member("a", "mine", "range", "sticky"),
        member("b", "sticky", "range"),
        member("c", "sticky", "range"),
    )
    assert roster.select_protocol() == "sticky"


def test_between_equals_the_first_members_choice_is_selected() -> None:
    assert roster_of(member("a", "x", "y"), member("b", "y", "x")).select_protocol() == "x"


def test_a_protocol_named_twice_counts_once() -> None:
    roster = roster_of(member("a", "x", "x"), member("b", "y"))
    assert not roster.knows_one_of([Protocol("x", b"")])


def test_the_lead_passes_to_the_first_that_is_left() -> None:
    roster = roster_of(member("a"), member("b"), member("c"))
    roster.remove("a")
    assert roster.leader == "b"
    roster.remove("c")
    roster.remove("b")
    assert roster.leader == ""


def test_a_renamed_member_keeps_its_place_and_its_lead() -> None:
    roster = roster_of(member("a", instance="one"), member("b"))
    roster.rename("a", "a2")
    assert [one.member_id for one in roster] == ["a2", "b"]
    assert roster.leader == "a2"
    assert roster.member_of_instance("one") == "a2"


def test_a_leader_that_has_not_joined_gives_way_to_one_that_has() -> None:
    roster = roster_of(member("a", instance="one"), member("b"))
    assert not roster.elect_joined_leader()
    second = roster.get("b")
    assert second is not None
    second.join_request = 1
    assert roster.elect_joined_leader()
    assert roster.leader == "b"
