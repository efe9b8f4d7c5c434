"""Holds creations and deletions of partitions to controller_mutation_rate (KIP-599).

A request of a version that knows THROTTLING_QUOTA_EXCEEDED is served until the client has taken
more than there was; the topics after that are refused. An older one is served whole. The answers
of both say for how long to wait.
"""

from typing import Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import Outcome
from penstock.security.quota import CONTROLLER_MUTATION_RATE

STRICT_FROM: Final = {"create_topics": 6, "create_partitions": 3, "delete_topics": 5}
"""The first version of each API that knows the error."""


class Mutations:
    """Counts what one request creates or deletes against its client's quota."""

    def __init__(self, context: RequestContext, module: str) -> None:
        self._context = context
        self._clock = context.broker.clock
        self._is_strict = context.api_version >= STRICT_FROM[module]
        self._bucket = context.broker.quotas.bucket(
            CONTROLLER_MUTATION_RATE, context.connection.principal, context.client_id
        )

    def refusal(self, partitions: int) -> Outcome | None:
        """Take partitions; return why they can't be had now; None: they can."""
        bucket, context = self._bucket, self._context
        if bucket is None:
            return None
        now_s = self._clock.monotonic_s()
        is_refused = self._is_strict and bucket.is_overdrawn(now_s)
        if not is_refused:
            bucket.take(partitions, now_s)
        wait_s = bucket.wait_s(now_s)
        context.throttle_s = max(context.throttle_s, wait_s)
        if not is_refused:
            return None
        context.broker.instruments.count(f"throttled:{CONTROLLER_MUTATION_RATE}")
        return Outcome(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"the client has used up its quota of {CONTROLLER_MUTATION_RATE}: send it again in"
            f" {wait_s:.1f} s",
        )
