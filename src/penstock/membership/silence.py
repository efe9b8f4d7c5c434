"""Finds agents that have been silent for too long. Pure.

Silence is measured by the observer's own monotonic clock, from when an agent's last entry was
applied here. Time during which the journal was away from the observer is not counted, nor as much
time again: the others reconnect with pauses that double, so that each may come back later than this
one by as long as the journal was away. Silence is a suspicion and nothing more: the fence that is
proposed on it names the last position seen, and is refused by apply if the agent has had an entry
since.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Standing(NamedTuple):
    """An agent whose epoch is not over, with the position of its last applied entry."""

    agent: int
    epoch: int
    position: int


@dataclass(slots=True)
class _Seen:
    epoch: int
    position: int
    at_s: float
    """When its last entry was applied, moved on by what does not count as its silence."""


class SilenceDetector:
    """Times are seconds of one monotonic clock. Looks at least four times per `away_s`."""

    def __init__(self, timeout_s: float, *, away_s: float, rejoin_s: float) -> None:
        """
        Args:
            timeout_s: silence beyond this is too long.
            away_s: how old the journal's last answer may be before the journal counts as away. A
                look that comes later than this after the one before counts as well: the process was
                stopped, and what it takes for the present may be old.
            rejoin_s: the most time that others are given to reconnect.
        """
        self._timeout_s = timeout_s
        self._away_s = away_s
        self._rejoin_s = rejoin_s
        self._seen: dict[int, _Seen] = {}
        self._looked_s: float | None = None
        self._away_since_s: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether the journal was away from the observer at the last look."""
        return self._away_since_s is not None

    def look(self, standings: Iterable[Standing], now_s: float, *, answered_s: float) -> None:
        """Take note of the agents that have had an entry since the last look.

        Args:
            answered_s: when the journal answered last.
        """
        gap_s = self._ended_gap_s(now_s, answered_s)
        grace_s = min(gap_s, self._rejoin_s)
        seen: dict[int, _Seen] = {}
        for agent, epoch, position in standings:
            known = self._seen.get(agent)
            if known is None or known.position != position or known.epoch != epoch:
                known = _Seen(epoch, position, now_s)
            else:
                # Not past the grace: its entries may have come while this one's own did not.
                known.at_s = min(known.at_s + gap_s + grace_s, max(known.at_s, now_s + grace_s))
            seen[agent] = known
        self._seen = seen

    def silent_s(self, agent: int, now_s: float) -> float:
        """Return for how long an agent has had no entry, in seconds; 0 for an unknown agent."""
        known = self._seen.get(agent)
        return 0.0 if known is None else max(0.0, now_s - known.at_s)

    def suspects(self, now_s: float, *, longer_than_s: float | None = None) -> list[Standing]:
        """Return the agents that have been silent for too long, by id; while the journal is away,
        none.

        Args:
            longer_than_s: what is too long; None: the timeout.
        """
        if self.is_away:
            return []
        too_long_s = self._timeout_s if longer_than_s is None else longer_than_s
        return [
            Standing(agent, seen.epoch, seen.position)
            for agent, seen in sorted(self._seen.items())
            if now_s - seen.at_s > too_long_s
        ]

    def _ended_gap_s(self, now_s: float, answered_s: float) -> float:
        """Return for how long the journal was away, at the look that finds it back; else 0."""
        if self._looked_s is not None and now_s - self._looked_s > self._away_s:
            answered_s = min(answered_s, self._looked_s)
        self._looked_s = now_s
        if now_s - answered_s > self._away_s:
            if self._away_since_s is None:
                self._away_since_s = answered_s
            return 0.0
        if self._away_since_s is None:
            return 0.0
        gap_s = now_s - self._away_since_s
        self._away_since_s = None
        return gap_s
