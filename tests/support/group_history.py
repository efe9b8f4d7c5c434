"""What coordinators told members of groups, in the order in which it was seen, and what of it can't
be true of a group that is in one generation at a time. Pure; `support.group_tap` writes it down.

A request counts as asked when it passed on its way to an agent, an answer as told when it passed on
its way back: what was told before something else was asked, the asked one must not contradict.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """The requests that carry a generation, or give one."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"


@dataclass(frozen=True, kw_only=True)
class Told:
    """An answer without an error to a request of one member.

    Args:
        agent: who answered.
        generation: of the request; of the answer, if it is a join's.
        asked, told: places in the order of everything that passed.
        partitions: of a sync, what the member holds.
    """

    kind: Kind
    agent: str
    group: str
    member: str
    generation: int
    asked: int
    told: int
    partitions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class Generation:
    """The newest that took effect, and what its members hold as far as they were told."""

    number: int
    members: dict[str, frozenset[tuple[str, int]]]


@dataclass
class GroupHistory:
    """Answers, in the order in which they were told."""

    answers: list[Told] = field(default_factory=list)
    refused: list[tuple[Kind, str, int, str]] = field(default_factory=list)
    """Kind, group, generation and error of what was answered with one."""

    def newest(self, group: str) -> Generation:
        """A group's newest generation; number 0: none yet."""
        syncs = self.of(group, Kind.SYNC)
        number = max((sync.generation for sync in syncs), default=0)
        return Generation(
            number, {sync.member: sync.partitions for sync in syncs if sync.generation == number}
        )

    def of(self, group: str, kind: Kind) -> list[Told]:
        """A group's answers of a kind."""
        return [one for one in list(self.answers) if one.group == group and one.kind is kind]


def contradictions(history: GroupHistory) -> list[str]:
    """Sentences about what shows two generations at once, or one that went back; none: all is well.

    A generation takes effect when a member is told its assignment, which is journaled by then: a
    join's alone may be given again by another coordinator, to others.
    """
    found = []
    by_group: dict[str, list[Told]] = defaultdict(list)
    for answer in sorted(history.answers, key=lambda one: one.told):
        by_group[answer.group].append(answer)
    for answers in by_group.values():
        found += _shared(answers)
        found += _gone_back(answers)
    return found


def _shared(answers: list[Told]) -> list[str]:
    """Partitions that two members hold in one generation, and assignments that were changed."""
    found = []
    holders: dict[tuple[int, tuple[str, int]], Told] = {}
    held: dict[tuple[int, str], Told] = {}
    for sync in answers:
        if sync.kind is not Kind.SYNC:
            continue
        before = held.setdefault((sync.generation, sync.member), sync)
        if before.partitions != sync.partitions:
            found.append(f"one member, two assignments in a generation: {before} and {sync}")
        for partition in sync.partitions:
            other = holders.setdefault((sync.generation, partition), sync)
            if other.member != sync.member:
                found.append(f"{partition} is held twice in a generation: {other} and {sync}")
    return found


def _gone_back(answers: list[Told]) -> list[str]:
    """What was allowed in a generation though a newer one had taken effect before it was asked."""
    found = []
    effective = [one for one in answers if one.kind is Kind.SYNC]
    for answer in answers:
        newer = next(
            (
                sync
                for sync in effective
                if sync.told < answer.asked and sync.generation > answer.generation
            ),
            None,
        )
        if newer is not None:
            found.append(f"{answer} after {newer}")
    return found
