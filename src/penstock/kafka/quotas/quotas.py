"""Measures what each client of this process takes of its quotas (docs/quotas.md)."""

from typing import Final

from penstock.kafka.quotas.bucket import Bucket
from penstock.ports.clock import Clock
from penstock.security.quota import (
    CONNECTION_CREATION_RATE,
    QuotaEntity,
)
from penstock.security.quota_index import Limit, QuotaIndex

BURST_S: Final = 10.0
"""A client that has been quiet for this time may take at once what it may take in it. Kafka:
quota.window.num (11, the last of which is not over) times quota.window.size.seconds (1)."""
REQUEST_WAIT_MAX_S: Final = 1.0
"""The longest throttling for request_percentage (KIP-124: one window)."""
BUCKETS_MAX: Final = 50_000
"""Above this, buckets that are full are dropped: a new one would be the same."""


class Quotas:
    """The buckets of all clients. Event loop only."""

    def __init__(self, index: QuotaIndex, clock: Clock) -> None:
        self._index = index
        self._clock = clock
        self._buckets: dict[tuple[str, QuotaEntity], Bucket] = {}
        self._sweep_at = BUCKETS_MAX

    @property
    def is_on(self) -> bool:
        """Whether there are quotas at all."""
        return len(self._index) > 0

    def has(self, key: str) -> bool:
        """Whether there are quotas of a key."""
        return self._index.has(key)

    def bucket(self, key: str, principal: str, client_id: str | None) -> Bucket | None:
        """Return where a client's use of a key is measured; None: it has no limit.

        Args:
            principal: with its type, such as "User:alice".
        """
        if not self._index.has(key):
            return None
        user = principal.partition(":")[2]
        return self._bucket(key, self._index.limit(key, user, client_id or ""))

    def connect(self, address: str) -> float:
        """Count a new connection; return for how many seconds its address must wait; 0: it need
        not."""
        bucket = self._bucket(CONNECTION_CREATION_RATE, self._index.connection_limit(address))
        if bucket is None:
            return 0.0
        now_s = self._clock.monotonic_s()
        if bucket.is_overdrawn(now_s):
            # Not counted: a client that tries again and again would never be let in.
            return bucket.wait_s(now_s)
        bucket.take(1, now_s)
        return 0.0

    def _bucket(self, key: str, limit: Limit | None) -> Bucket | None:
        if limit is None:
            return None
        now_s = self._clock.monotonic_s()
        name = (key, limit.shared_by)
        found = self._buckets.get(name)
        if found is None:
            if len(self._buckets) >= self._sweep_at:
                self._sweep(now_s)
            found = self._buckets[name] = Bucket(limit.rate, BURST_S, now_s)
        else:
            found.set_rate(limit.rate, now_s)
        return found

    def _sweep(self, now_s: float) -> None:
        kept = {name: one for name, one in self._buckets.items() if not one.is_full(now_s)}
        self._buckets = kept
        # Where most are in use, a sweep for each new one would take all the time.
        self._sweep_at = max(BUCKETS_MAX, 2 * len(kept))
