"""How many topics clients' requests for metadata may create: so many a second. Pure.

A client that is told LEADER_NOT_AVAILABLE asks again, so that a program with more new topics than
that has them some seconds later.
"""


class AutoCreation:
    """What is left of this second's topics, of all clients of one agent together.

    Args:
        per_s: topics a second, and at once after a second without any.
    """

    __slots__ = ("_asked_s", "_left", "_per_s")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._left = float(per_s)
        self._asked_s = 0.0

    def take(self, wanted: int, now_s: float) -> int:
        """How many of `wanted` topics may be created now.

        Args:
            now_s: seconds of a monotonic clock.
        """
        gained = max(0.0, now_s - self._asked_s) * self._per_s
        self._asked_s = now_s
        self._left = min(float(self._per_s), self._left + gained)
        allowed = min(wanted, int(self._left))
        self._left -= allowed
        return allowed
