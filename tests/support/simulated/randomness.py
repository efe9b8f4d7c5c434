"""Randomness that a seed decides, the same on every platform and Python version."""

import hashlib


class SeededRandom:
    """Implements `penstock.ports.random.Random` by SHA-256 of the seed and a counter."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn = 0

    def token_bytes(self, count: int) -> bytes:
        """`count` bytes, the next ones of the seed's stream."""
        blocks = [self._block() for _ in range(-(-count // hashlib.sha256().digest_size))]
        return b"".join(blocks)[:count]

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        # Each callback of a virtual loop draws one.
        return int.from_bytes(self._block()[:16], "big") % bound

    def _block(self) -> bytes:
        block = hashlib.sha256(b"%d:%d" % (self.seed, self._drawn)).digest()
        self._drawn += 1
        return block
