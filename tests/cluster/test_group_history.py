"""The checker of groups' generations finds what it is for, and nothing in a sound history."""

from __future__ import annotations

from dataclasses import replace

from support.group_history import GroupHistory, Kind, Told, contradictions

FIRST = frozenset({("t", 0)})
SECOND = frozenset({("t", 1)})


def told(kind: Kind, member: str, generation: int, at: int, **more: object) -> Told:
    """Asked and told at once."""
    one = Told(
        kind=kind, agent="x", group="g", member=member, generation=generation, asked=at, told=at
    )
    return replace(one, **more)  # type: ignore[arg-type]


SOUND = [
    told(Kind.JOIN, "a", 1, 0),
    told(Kind.JOIN, "b", 1, 1),
    told(Kind.SYNC, "a", 1, 2, partitions=FIRST),
    told(Kind.SYNC, "b", 1, 3, partitions=SECOND),
    told(Kind.COMMIT, "a", 1, 4),
    # Given by a coordinator that died, and again by the next one.
    told(Kind.JOIN, "a", 2, 5),
    told(Kind.JOIN, "a", 2, 6, agent="y"),
    # Asked before the next generation took effect.
    told(Kind.COMMIT, "b", 1, 7, told=9),
    told(Kind.SYNC, "a", 2, 8, partitions=FIRST | SECOND, agent="y"),
    told(Kind.HEARTBEAT, "a", 2, 10, agent="y"),
    told(Kind.SYNC, "a", 2, 11, partitions=FIRST | SECOND),
]


def found_with(*more: Told) -> list[str]:
    return contradictions(GroupHistory([*SOUND, *more]))


def test_a_sound_history_has_no_contradiction() -> None:
    assert not found_with()
    assert not found_with(told(Kind.COMMIT, "b", 1, 20, group="another"))
    newest = GroupHistory(SOUND).newest("g")
    assert (newest.number, newest.members) == (2, {"a": FIRST | SECOND})


def test_what_a_generation_allows_once_it_is_over_is_found() -> None:
    for kind in Kind:
        held = SECOND if kind is Kind.SYNC else frozenset()
        (found,) = found_with(told(kind, "b", 1, 12, partitions=held))
        assert "generation=1" in found
        assert "generation=2" in found


def test_two_members_with_one_partition_are_found() -> None:
    (found,) = found_with(told(Kind.SYNC, "b", 2, 12, partitions=SECOND))
    assert "held twice" in found


def test_an_assignment_that_changed_is_found() -> None:
    (found,) = found_with(told(Kind.SYNC, "a", 2, 12, partitions=FIRST))
    assert "two assignments" in found
