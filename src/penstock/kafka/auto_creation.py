"""Clients' requests for metadata may create only so many topics a second. Pure.

A client that gets LEADER_NOT_AVAILABLE asks again, so a program with more new topics has all of
them some seconds later.
"""


class AutoCreation:
    """Counts down the topics that all clients of one agent together may create in this second.

    Args:
        per_s: topics a second; after a second without any, this many may be created at once.
    """

    __slots__ = ("_asked_s", "_left", "_per_s")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._left = float(per_s)
        self._asked_s = 0.0

    def take(self, wanted: int, now_s: float) -> int:
        """Take up to `wanted` topics; return how many may be created now.

        Args:
            now_s: seconds of a monotonic clock.
        """
        gained = max(0.0, now_s - self._asked_s) * self._per_s
        self._asked_s = now_s
        self._left = min(float(self._per_s), self._left + gained)
        allowed = min(wanted, int(self._left))
        self._left -= allowed
        return allowed
