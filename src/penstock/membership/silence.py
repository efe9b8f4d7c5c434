"""Finds agents that have been silent for too long. Pure.

Silence is measured by the observer's own monotonic clock, from when an agent's last entry was
applied here, and only while the journal answers without a break (`HeadWatch`): whatever keeps
the observer from hearing doesn't count as the others' silence. It is a suspicion and nothing more:
the fence that is proposed on it names the last position seen, and is refused by apply if the agent
has had an entry since.
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


class SilenceDetector:
    """Times are seconds of one monotonic clock."""

    def __init__(self, timeout_s: float) -> None:
        """
        Args:
            timeout_s: silence beyond this is too long.
        """
        self._timeout_s = timeout_s
        self._seen: dict[int, _Seen] = {}

    def look(self, standings: Iterable[Standing], now_s: float) -> None:
        """Take note of who has had an entry since the last look."""
        seen: dict[int, _Seen] = {}
        for agent, epoch, position in standings:
            known = self._seen.get(agent)
            if known is None or known.position != position or known.epoch != epoch:
                known = _Seen(epoch, position, now_s)
            seen[agent] = known
        self._seen = seen

    def silent_s(self, agent: int, now_s: float) -> float:
        """Return since when an agent has had no entry, in seconds; 0 for one that is not known."""
        known = self._seen.get(agent)
        return 0.0 if known is None else now_s - known.at_s

    def suspects(
        self, now_s: float, *, answering_since_s: float | None, longer_than_s: float | None = None
    ) -> list[Standing]:
        """Return the agents that have been silent for too long, by id.

        Args:
            answering_since_s: since when the journal answers without a break; None: it does not.
            longer_than_s: what is too long; None: the timeout.
        """
        if answering_since_s is None:
            return []
        too_long_s = self._timeout_s if longer_than_s is None else longer_than_s
        return [
            Standing(agent, seen.epoch, seen.position)
            for agent, seen in sorted(self._seen.items())
            if now_s - max(seen.at_s, answering_since_s) > too_long_s
        ]
