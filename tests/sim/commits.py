"""What is known of the offset that a group has committed in one partition.

A client commits only greater offsets than before, or goes on from what it was told. Its offset
may go back nevertheless, in Kafka too: a commit that nobody answered, since its connection broke,
may be carried out after a later one that came over another connection. It is carried out once at
the most, and not after one of a later generation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sim.growing import Growing


@dataclass(slots=True, eq=False)
class Commit:
    """One that was begun. `generation`: -1 is a consumer's that is no member.

    `seen_s`: when it was first known to have been carried out, though nobody had answered it.
    """

    group: str
    place: tuple[str, int]
    offset: int
    generation: int
    began_s: float
    seen_s: float = math.inf


@dataclass(slots=True)
class CommittedOffset:
    """Of one group and partition."""

    known: Growing = field(default_factory=Growing)
    begun_max: int = -1
    """The greatest that anybody ever committed, answered or not."""
    went_back_s: float = -math.inf
    """When it was last known to have gone back."""
    _unanswered: list[Commit] = field(default_factory=list)

    def begin(self, commit: Commit) -> None:
        """It is about to be sent: from now on it may be carried out."""
        self.begun_max = max(self.begun_max, commit.offset)
        self._unanswered.append(commit)

    def restore(self, offset: int, now_s: float) -> None:
        """It is again what it was at a moment.

        Args:
            offset: -1: none had been committed.
        """
        self.known = Growing()
        if offset >= 0:
            self.known.learn(now_s, offset, "restored")
        self.went_back_s = now_s
        self._unanswered = []

    def refused(self, commit: Commit) -> None:
        """It won't be carried out after anything that is committed later."""
        self._unanswered = [other for other in self._unanswered if other is not commit]

    def done(self, commit: Commit, ended_s: float) -> None:
        """It was acknowledged, and with it is over what was carried out before it was sent."""
        self._unanswered = [
            other
            for other in self._unanswered
            if other is not commit
            and other.seen_s >= commit.began_s
            and other.generation >= commit.generation
        ]
        self.known.learn(ended_s, commit.offset, "commit")

    def told(self, offset: int, began_s: float, ended_s: float, who: str) -> str | None:
        """Somebody asked for it; what is wrong with the answer, if anything is."""
        least, why = self.known.at(began_s)
        late = [commit for commit in self._unanswered if commit.offset == offset]
        if offset < least and not late:
            return f"told {offset} after {least}, {why}"
        # Else another of the same offset may be what was seen.
        is_new = offset < least or offset > self.known.greatest()
        if late and is_new and all(commit.seen_s == math.inf for commit in late):
            late[0].seen_s = ended_s
        if offset < least:
            self.known.lower(offset)
            self.went_back_s = ended_s
        elif began_s > self.went_back_s:
            # An answer from before it went back says nothing of what is true after it.
            self.known.learn(ended_s, offset, f"fetched by {who}")
        return None
