"""The real randomness."""

import secrets


class SystemRandom:
    """Implements `penstock.ports.random.Random` by the operating system's generator."""

    __slots__ = ()

    def token_bytes(self, count: int) -> bytes:
        """`count` random bytes."""
        return secrets.token_bytes(count)

    def below(self, bound: int) -> int:
        """A random integer in [0, bound)."""
        return secrets.randbelow(bound)
