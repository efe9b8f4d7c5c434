"""Fetch, versions 4 to 18: sessions (KIP-227), topic ids (KIP-516), waiting by notification.

Raw: records go out as views of the caches. The whole of a fetch runs on the event loop without a
task: it answers at once, or parks until a commit, a load or its deadline wakes it; only one of more
than STEP_ITEMS partitions is a coroutine that takes turns (`kafka.fetch.long_fetch`). In a cluster
an answer that a topic isn't there, or that an offset is out of range, is given of the present alone
(`kafka.confirmed`); a client of another zone gets the address of an agent in its own (KIP-392).
"""

import asyncio
from collections.abc import Hashable
from typing import Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.fetch.long_fetch import LongFetch
from penstock.kafka.fetch.targets import LastFetch
from penstock.kafka.fetch.work import LOADS_MAX, FetchWork
from penstock.kafka.fetch_sessions import FINAL_EPOCH
from penstock.kafka.replies import LateReply, Reply, ReplyFuture
from penstock.kafka.wire.fetch_codec import STEP_ITEMS, encode_fetch, fetch_steps
from penstock.kafka.wire.fetch_repeat import Repetition
from penstock.log.fetch.waiters import Waiter
from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.model.steps import at_once, if_short
from penstock.system import background

RAW: Final = True


def serve(context: RequestContext, body: memoryview) -> Reply | ReplyFuture:
    """Answer at once when there is enough; else a future."""
    broker = context.broker
    started_s = broker.clock.monotonic_s()
    fetch = _Fetch(context)
    is_long = not fetch.parse(body)
    broker.instruments.observe("parse:Fetch", broker.clock.monotonic_s() - started_s)
    return LongFetch(context).begin(body) if is_long else fetch.start()


_SHARED_TARGETS_MAX: Final = 16
"""Fetches of more partitions share no answers: who waits for many seldom waits for the same."""


class _Fetch(FetchWork):
    """One request under way."""

    # What most requests leave as it is costs nothing to set.
    _generation = -1
    _waiter: Waiter | None = None
    _deadline_s = 0.0
    _confirming: asyncio.Task[None] | None = None
    _last: LastFetch | None = None
    """The connection's last fetch, if this request repeats it."""
    reply: LateReply | None = None
    """Set while an answer is waited for."""

    def parse(self, body: memoryview) -> bool:
        """Read the request; where the connection's last one asked the same, its places are known.

        Returns:
            False: it is a long one, and nothing of it is kept.
        """
        last = self._connection.last_fetch
        if isinstance(last, LastFetch) and last.version == self._version:
            repetition = last.known.repetition(body)
            if repetition is not None:
                self._request = last.request
                self._repeat(last, repetition)
                return True
        request = if_short(fetch_steps(body, self._version))
        # Sessions have a memory of their own. What a connection remembers is bounded: it is short.
        if request is not None and request.session_epoch == FINAL_EPOCH and request.partitions:
            self._last = LastFetch(self._version, bytes(body), request)
        self._forget_last(last)
        self._connection.last_fetch = self._last
        if request is None:
            return False
        self._request = request
        self._wanted = request.partitions
        return True

    def _repeat(self, last: LastFetch, repetition: Repetition) -> None:
        first, offsets = repetition.first, repetition.offsets
        self._last = last
        wanted = last.request.partitions
        self._wanted = wanted[first:] + wanted[:first] if first else wanted
        if last.generation != self._now():
            for partition, offset in zip(self._wanted, offsets, strict=True):
                partition.fetch_offset = offset
            return
        self._generation = last.generation
        targets = last.targets
        self._targets = targets = targets[first:] + targets[:first] if first else targets
        for target, offset in zip(targets, offsets, strict=True):
            target.offset = target.wanted.fetch_offset = offset

    def _forget_last(self, last: object) -> None:
        if isinstance(last, LastFetch) and last.waiter is not None:
            self._log.waiters.remove(last.waiter)

    def start(self) -> Reply | ReplyFuture:
        request = self._request
        refusal = at_once(self._session_steps())
        if refusal:
            return encode_fetch([], self._version, error_code=refusal)
        if len(self._wanted) > STEP_ITEMS:
            return LongFetch(self._context).resume(request, self._session, self._wanted)
        leaders = self._nearer_leaders()
        if leaders is not None and self._wanted:
            targets = self._find_nearer(self._wanted, leaders)
            if any(target.data.preferred_read_replica >= 0 for target in targets):
                # The client asks here again for the others alone.
                self._targets = targets
                self._connection.last_fetch = self._last = None
                return self._encode()
        length, missing, failed = self._collect()
        must_confirm = self._must_confirm()
        if not must_confirm and (
            self._is_enough(length, failed=failed) or (request.wait_ms_max <= 0 and missing is None)
        ):
            return self._encode()
        loop = asyncio.get_running_loop()
        self.reply = reply = LateReply(loop=loop)
        # A cancelled fetch must stop waiting; an answered one has stopped by then.
        reply.add_done_callback(self._stop_waiting)
        self._deadline_s = loop.time() + max(request.wait_ms_max, 0) / 1000
        if must_confirm:
            self._confirm()
        else:
            self._park(length, missing)
        return reply

    # -- in a cluster ---------------------------------------------------------------------------

    def _confirm(self) -> None:
        """Find out how it is at present, then answer or wait as of that."""
        if self._confirming is None:
            self._confirming = background.start(background.CONFIRM_ANSWER, self._confirmed)

    async def _confirmed(self) -> None:
        self._certainty = await fresh.second(self._context)
        self._confirming = None
        if self.reply is None or self.reply.done():
            return
        self._generation = -1
        length, missing, failed = self._collect()
        if self._is_enough(length, failed=failed) or self._is_pressed():
            self._answer()
        else:
            self._park(length, missing)

    # -- collecting ------------------------------------------------------------------------------

    def _collect(self) -> tuple[int, asyncio.Task[None] | None, bool]:
        """See `_collect_from`."""
        if self._touched:
            self._clean()
        if self._generation != self._now():
            self._find_targets()
        return self._collect_from(self._targets, 0, None)

    def _find_targets(self) -> None:
        self._generation = self._now()
        self._targets = self._find(self._wanted)
        last = self._last
        if last is not None:
            if last.waiter is not None:
                self._log.waiters.remove(last.waiter)
                last.waiter = None
            by_wanted = {id(target.wanted): target for target in self._targets}
            last.targets = [by_wanted[id(wanted)] for wanted in last.request.partitions]
            last.generation = self._generation

    # -- waiting ---------------------------------------------------------------------------------

    def _park(self, length: int, missing: asyncio.Task[None] | None) -> None:
        if missing is not None and length == 0 and self._loads < LOADS_MAX:
            # There are records, only not in memory: not the client's max_wait counts but the disk.
            self._loads += 1
            missing.add_done_callback(self._loaded)
            return
        if self._deadline_s <= asyncio.get_running_loop().time() or self._connection.is_asked_more:
            self._answer()
        elif self._waiter is None:
            self._wait()
        else:
            self._set_alarm(self._deadline_s, self._expire)  # it may have been hurried

    def _wait(self) -> None:
        last = self._last
        waiter = None if last is None else last.waiter
        if waiter is None:
            keys = [target.key for target in self._targets if target.head is not None]
            waiter = Waiter(keys, self._wake)
            if last is not None:
                last.waiter = waiter
        waiter.wake = self._wake
        self._waiter = waiter
        self._log.waiters.add(waiter)
        self._set_alarm(self._deadline_s, self._expire)

    def _make_share_key(self) -> Hashable:
        """Return everything on which the answer depends, except for stored records and the
        budgets."""
        request = self._request
        return (
            self._version,
            self._generation,
            request.isolation_level,
            request.bytes_min,
            self._bytes_max,
            self._connection.takes_files,
            *((t.data.topic, t.key, t.offset, t.bytes_max, t.leader_epoch) for t in self._targets),
        )

    def _wake(self) -> None:
        if self.reply is None or self.reply.done():
            return
        share_key: Hashable = None
        if (
            self._log.waiters.are_many
            and self._generation == self._now()
            and self._session is None
            and len(self._targets) <= _SHARED_TARGETS_MAX
        ):
            share_key = self._make_share_key()
            known = self._log.waiters.shared.get(share_key)
            if known is not None and known[1] <= self._connection.reply_room_bytes:
                self._clean()
                self._give(known[0])
                return
        room = 0 if share_key is None else self._connection.reply_room_bytes
        length, missing, failed = self._collect()
        if self._must_confirm():
            self._confirm()
        elif self._is_enough(length, failed=failed) or self._is_pressed():
            reply = self._encode()
            if share_key is not None and length and not failed and room >= self._bytes_max:
                self._log.waiters.shared[share_key] = (reply, length)
            self._give(reply)
        elif missing is not None and length == 0:
            self._park(length, missing)

    def _expire(self) -> None:
        if self.reply is not None and not self.reply.done():
            length, missing, _ = self._collect()
            if self._must_confirm():
                self._confirm()
            elif missing is not None and length == 0:
                self._park(length, missing)
            else:
                self._answer()

    def _loaded(self, load: asyncio.Task[None]) -> None:
        if self.reply is None or self.reply.done():
            return
        error = None if load.cancelled() else load.exception()
        if load.cancelled():
            error = RetryableError("read", "segment", "the server is shutting down")
        if isinstance(error, (NotFoundError, RetryableError)):
            # Moved between the look-up and the read: look it up again. `_loads` bounds this.
            for target in self._targets:
                self._log.reader.forget_places(target.key)
        if isinstance(error, PenstockError) and self._loads < LOADS_MAX and not load.cancelled():
            # Damage is raised by the next read of that partition; the load may have been for
            # several, of which the others are looked at for themselves.
            error = None
        length, missing, failed = self._collect()
        if error is not None and length == 0:
            self._tell(error)
            self._answer()
        elif self._is_enough(length, failed=failed):
            self._answer()
        else:
            self._park(length, missing)

    def _answer(self) -> None:
        self._give(self._encode())

    def _give(self, reply: Reply) -> None:
        late, self.reply = self.reply, None
        assert late is not None
        self._stop_waiting(late)
        late.give(reply)

    def _stop_waiting(self, _: ReplyFuture) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            is_remembered = self._last is not None and self._last.waiter is waiter
            self._log.waiters.remove(waiter, again=is_remembered)
            self._clear_alarm()
