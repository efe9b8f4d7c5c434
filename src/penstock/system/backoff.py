"""Says how long to wait before something that failed is tried again. Pure."""

from dataclasses import dataclass
from typing import Final

from penstock.ports.random import Random

_STEPS: Final = 1 << 16
_DOUBLINGS_MAX: Final = 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double with each failure in a row, up to a bound.

    The caller counts the failures, and sets the count to 0 after a success.

    Args:
        first_s: seconds after the first failure; above 0.
        most_s: seconds that no pause exceeds; at least `first_s`.
    Source: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    first_s: float
    most_s: float

    def __post_init__(self) -> None:
        assert 0 < self.first_s <= self.most_s, self

    def after(self, failures: int) -> float:
        """Return the longest pause after so many failures in a row, in seconds; 0 after none."""
        if failures <= 0:
            return 0.0
        return min(self.most_s, self.first_s * (1 << min(failures - 1, _DOUBLINGS_MAX)))

    def jittered(self, failures: int, random: Random, *, least: float = 0.0) -> float:
        """Return a random pause, so that callers that failed together don't return together.

        Args:
            failures: in a row.
            least: the shortest pause as a share of the longest, from 0 ("full jitter") to 1.
        Returns:
            Seconds, above 0 after a failure.
        """
        share = (1 + random.below(_STEPS)) / _STEPS
        return self.after(failures) * (least + (1 - least) * share)
