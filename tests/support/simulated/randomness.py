"""Randomness that a seed decides, the same on every platform and Python version."""

import hashlib


class SeededRandom:
    """Implements `penstock.ports.random.Random` by SHA-256 of the seed and a counter."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn = 0

    def token_bytes(self, count: int) -> bytes:
        """`count` bytes, the next ones of the seed's stream."""
        blocks = []
        for _ in range(-(-count // hashlib.sha256().digest_size)):
            blocks.append(hashlib.sha256(f"{self.seed}:{self._drawn}".encode()).digest())
            self._drawn += 1
        return b"".join(blocks)[:count]

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        return int.from_bytes(self.token_bytes(16), "big") % bound
