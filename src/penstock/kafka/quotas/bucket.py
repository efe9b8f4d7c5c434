"""Measures a rate that may be exceeded for a while, and not on average. Pure.

Source: the token bucket of KIP-599. With a burst of 10 s it throttles for as long as Kafka's
windows do, `(observed - limit) / limit * window` (KIP-13): what is above the limit, divided by it.
"""


class Bucket:
    """Tokens that come at a rate, up to a burst. Times are seconds of one monotonic clock."""

    __slots__ = ("_at_s", "_burst_s", "_level", "_rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        """
        Args:
            rate: tokens per second; above 0.
            burst_s: it holds the tokens of so many seconds, which are there at once.
        """
        self._rate = rate
        self._burst_s = burst_s
        self._level = rate * burst_s
        self._at_s = now_s

    @property
    def size(self) -> float:
        """The most tokens that it holds."""
        return self._rate * self._burst_s

    def set_rate(self, rate: float, now_s: float) -> None:
        """Go on at another rate. What was taken too much is owed still."""
        if rate != self._rate:
            self._fill(now_s)
            self._level = min(self._level * rate / self._rate, rate * self._burst_s)
            self._rate = rate

    def take(self, tokens: float, now_s: float) -> None:
        """Take tokens, also such as are not there yet."""
        self._fill(now_s)
        self._level -= tokens

    def is_overdrawn(self, now_s: float) -> bool:
        """Whether more was taken than there was."""
        self._fill(now_s)
        return self._level < 0

    def is_full(self, now_s: float) -> bool:
        """Whether it is as a new one would be."""
        self._fill(now_s)
        return self._level >= self.size

    def wait_s(self, now_s: float) -> float:
        """Return in how many seconds nothing is owed any more; 0: nothing is."""
        self._fill(now_s)
        return max(0.0, -self._level / self._rate)

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._level = min(self.size, self._level + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
