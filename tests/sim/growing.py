"""A number that only grows, as those know it who were answered."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Growing:
    """A number that everybody who asks after an answer must find at least as great."""

    facts: list[tuple[float, int, str]] = field(default_factory=list)

    def learn(self, ended_s: float, value: int, why: str) -> None:
        """An answer that was given at `ended_s`."""
        if value > self.greatest():
            self.facts.append((ended_s, value, why))

    def greatest(self) -> int:
        """Of all answers; -1 before the first."""
        return self.facts[-1][1] if self.facts else -1

    def lower(self, value: int) -> None:
        """It went back, rightly: of older answers no more than this is left."""
        self.facts = [(ended_s, min(known, value), why) for ended_s, known, why in self.facts]

    def at(self, began_s: float) -> tuple[int, str]:
        """What is known of a question that began then."""
        best, why = -1, "nothing"
        for ended_s, value, reason in self.facts:
            if ended_s < began_s and value > best:
                best, why = value, reason
        return best, why
