"""Randomness as a port."""

from typing import Protocol


class Random(Protocol):
    """A source of random bytes and choices. The real one is seeded by the system."""

    def token_bytes(self, count: int) -> bytes:
        """`count` random bytes."""
        ...

    def below(self, bound: int) -> int:
        """A random integer in [0, bound)."""
        ...
