"""The seed's stream of chance: splitmix64, the same on every platform and release of Python."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1


class Chance:
    """Implements `penstock.ports.random.Random`, and what a script of faults wants besides."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & _MASK

    def bits(self) -> int:
        """64 random bits."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        """In [0, bound)."""
        return self.bits() % bound

    def token_bytes(self, count: int) -> bytes:
        """`count` random bytes."""
        return b"".join(self.bits().to_bytes(8, "big") for _ in range(-(-count // 8)))[:count]

    def uniform(self, least: float, most: float) -> float:
        """In [least, most)."""
        return least + (most - least) * (self.bits() >> 11) / (1 << 53)

    def happens(self, share: float) -> bool:
        """True in `share` of the calls, 0 to 1."""
        return (self.bits() >> 11) / (1 << 53) < share

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of them, in an order of the seed's."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(len(rest))]

    def fork(self) -> "Chance":
        """A stream of its own, so that one actor's draws don't move another's."""
        return Chance(self.bits())
