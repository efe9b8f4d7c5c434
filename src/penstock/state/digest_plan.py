"""Decides what an agent does about the digests of one position. Pure.

An agent that differs from the majority of the live agents is wrong, and bootstraps. Without a
majority it is unknown which is wrong, and all of them stop writing. A majority is more than half of
the live agents that answered comparably or have yet to answer: an answer that is missing could make
another majority, and one bad agent must never stop the good ones.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.state.state_digest import StateDigest


class Verdict(enum.Enum):
    """A verdict says what the answers that are there mean for one agent."""

    NOT_ASKED = enum.auto()
    """There is no round, or it is not of this agent's epoch."""
    WAITING = enum.auto()
    """This agent's answer is missing, or others' are."""
    ALONE = enum.auto()
    """No other agent answered comparably, and none will."""
    EQUAL = enum.auto()
    """It is of the majority, and no agent differs so far."""
    MAJORITY = enum.auto()
    """It is of the majority, and others differ, who bootstrap."""
    MINORITY = enum.auto()
    """It differs from the majority: it stops, and bootstraps."""
    SPLIT = enum.auto()
    """There is no majority: all of them stop writing."""


@dataclass(slots=True)
class DigestRound:
    """A round holds what was asked for last, and by whom it was answered."""

    position: int = 0
    """0: nothing was ever asked for."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Epochs of the agents that were live then, by id."""
    answers: dict[int, StateDigest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """`tables`: those that differ, by name. `agents`: those that differ from the majority, or all
    where there is none. `missing`: those whose answer isn't there."""

    verdict: Verdict
    tables: Sequence[str] = ()
    agents: Sequence[int] = ()
    missing: Sequence[int] = ()


def judge(found: DigestRound, *, me: int, live: Mapping[int, int]) -> Judged:
    """Return what the round means for an agent.

    Args:
        live: epochs of the live agents by id. Who has begun another epoch since answers no more.
    """
    asked = [agent for agent, epoch in found.epochs.items() if live.get(agent) == epoch]
    if me not in asked:
        return Judged(Verdict.NOT_ASKED)
    missing = sorted(agent for agent in asked if agent not in found.answers)
    mine = found.answers.get(me)
    if mine is None:
        return Judged(Verdict.WAITING, missing=missing)
    comparable = {
        agent: found.answers[agent]
        for agent in asked
        if agent in found.answers and _kind(found.answers[agent]) == _kind(mine)
    }
    if len(comparable) == 1 and not missing:
        return Judged(Verdict.ALONE)
    groups = _groups(comparable)
    tables = _differing(list(comparable.values()))
    largest = max(groups, key=len)
    if 2 * len(largest) > len(comparable) + len(missing):
        others = sorted(agent for agent in comparable if agent not in largest)
        if me not in largest:
            tables = _differing([mine, comparable[largest[0]]])
            return Judged(Verdict.MINORITY, tables, others, missing)
        return Judged(Verdict.MAJORITY if others else Verdict.EQUAL, tables, others, missing)
    if missing:
        return Judged(Verdict.WAITING, tables, missing=missing)
    return Judged(Verdict.SPLIT, tables, sorted(comparable))


def left_split(found: DigestRound) -> Judged | None:
    """Find the split that the last round ended with, whichever agents live now; None: it did not.

    For an agent that starts: a restart doesn't resolve what no operator has resolved.
    """
    for agent in found.answers:
        judged = judge(found, me=agent, live=found.epochs)
        if judged.verdict is Verdict.SPLIT:
            return judged
    return None


def is_settled(found: DigestRound) -> bool:
    """Whether the last round compared states to its end; also where none was ever asked for.

    For an agent that starts: one that was alone, or died before it answered, may differ from
    another although no round says so.
    """
    return not found.position or len(found.answers) == len(found.epochs) > 1


def differing_tables(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """Names of the tables whose digests aren't equal, those that only one has included."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _kind(digest: StateDigest) -> tuple[int, int, int]:
    return digest.digest_version, digest.feature_level, digest.format_version


def _groups(answers: Mapping[int, StateDigest]) -> list[list[int]]:
    """Agents whose digests are equal, together."""
    groups: dict[tuple[tuple[str, bytes], ...], list[int]] = {}
    for agent, digest in answers.items():
        groups.setdefault(tuple(digest.tables), []).append(agent)
    return list(groups.values())


def _differing(digests: Sequence[StateDigest]) -> list[str]:
    first = dict(digests[0].tables)
    return sorted({name for one in digests for name in differing_tables(first, dict(one.tables))})
