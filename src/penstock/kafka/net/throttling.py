"""One connection's throttling: its requests are charged, and it is muted for as long as it owes.

As in Kafka (KIP-219) an answer is never held back: it leaves at once with the time to wait, and
until that is over no further request of the connection is started, nor read.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.kafka.context import RequestContext
from penstock.kafka.net.exchange import Exchange
from penstock.kafka.quotas.bucket import Bucket
from penstock.kafka.quotas.quotas import REQUEST_WAIT_MAX_S, Quotas
from penstock.kafka.registry import PRODUCE_KEY
from penstock.kafka.replies import AnyReply, reply_bytes
from penstock.kafka.wire.throttle import throttled
from penstock.security.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

FETCH_KEY: Final = 1
SHARE_FETCH_KEY: Final = 78
_FETCHES: Final = frozenset({FETCH_KEY, SHARE_FETCH_KEY})
PERCENT: Final = 100.0


class Throttling:
    """Event loop only.

    Args:
        count: takes "throttled:<key>".
        unmuted: called when the connection may go on.
    """

    __slots__ = ("_count", "_loop", "_quotas", "_timer", "_unmuted", "is_muted")

    def __init__(
        self,
        quotas: Quotas,
        loop: asyncio.AbstractEventLoop,
        count: Callable[[str], object],
        unmuted: Callable[[], object],
    ) -> None:
        self._quotas = quotas
        self._loop = loop
        self._count = count
        self._unmuted = unmuted
        self._timer: asyncio.TimerHandle | None = None
        self.is_muted = False

    def answered(self, exchange: Exchange, now_s: float) -> AnyReply:
        """Charge a request, mute the connection if something is owed, and return the answer."""
        reply, context = exchange.reply, exchange.context
        wait_s, key = context.throttle_s, exchange.api.key
        if key == PRODUCE_KEY:
            owed_s = self._charge(PRODUCER_BYTE_RATE, context, exchange.frame_bytes, now_s)
            wait_s = max(wait_s, owed_s)
        elif key in _FETCHES and reply is not None:
            owed_s = self._charge(CONSUMER_BYTE_RATE, context, reply_bytes(reply), now_s)
            wait_s = max(wait_s, owed_s)
        if exchange.work_s:
            owed_s = self._charge(REQUEST_PERCENTAGE, context, PERCENT * exchange.work_s, now_s)
            wait_s = max(wait_s, min(owed_s, REQUEST_WAIT_MAX_S))
        if wait_s <= 0:
            return reply
        self._mute(wait_s)
        if reply is None:
            return None
        return throttled(exchange.api, context.api_version, reply, wait_s)

    def fetch_room(self, exchange: Exchange, room_bytes: int) -> int:
        """Return how many bytes a Fetch may give, of those for which there is room: no more than
        its client may have in the time of a burst."""
        bucket = self._bucket(CONSUMER_BYTE_RATE, exchange.context)
        return room_bytes if bucket is None else min(room_bytes, int(bucket.size))

    def end(self) -> None:
        """Mute no more: the connection is ending."""
        self.is_muted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _bucket(self, key: str, context: RequestContext) -> Bucket | None:
        return self._quotas.bucket(key, context.connection.principal, context.client_id)

    def _charge(self, key: str, context: RequestContext, tokens: float, now_s: float) -> float:
        bucket = self._bucket(key, context)
        if bucket is None:
            return 0.0
        bucket.take(tokens, now_s)
        wait_s = bucket.wait_s(now_s)
        if wait_s > 0:
            self._count(f"throttled:{key}")
        return wait_s

    def _mute(self, wait_s: float) -> None:
        due_s = self._loop.time() + wait_s
        if self._timer is not None:
            if self._timer.when() >= due_s:
                return
            self._timer.cancel()
        self.is_muted = True
        self._timer = self._loop.call_at(due_s, self._over)

    def _over(self) -> None:
        self._timer = None
        self.is_muted = False
        self._unmuted()
