"""The append path of an agent in a cluster: gather, make durable, order, answer. Event loop only.

Order of effects: bytes durable -> `CommitRuns` submitted, in the order of the flushes whatever
order their bytes became durable in -> applied here -> answered. Flushes overlap in all of these.

A flush fails for good only before it is submitted: then its appends fail retriably, and whatever
stood behind them from the same producer and partition, too. Once submitted it is applied or the
agent is over; a request that waited long enough meanwhile is answered retriably without anything
being taken back: its retry is a duplicate by its sequences.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from penstock.log.append.broken import BrokenSequences, KnownProducer, follower_error
from penstock.log.append.flight import Flight, Waiting
from penstock.log.append.gathering import Gathering
from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import PartitionAppend, take_answer
from penstock.log.append.stored import Stored, plan_commit
from penstock.model.errors import FatalStorageError, PenstockError, RetryableError
from penstock.model.ids import TopicKey, topic_key_of
from penstock.ports.clock import Clock
from penstock.state.answers import AnyAnswer, Refused, RunsCommitted
from penstock.state.order_types import Order
from penstock.system import background
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

HELD_TURN_S: Final = 0.1
"""How often requests that wait for a flush to end are looked at for their deadlines."""


class ByteStore(Protocol):
    """Makes bytes durable: `penstock.log.append.durable`. Event loop only."""

    flights_max: int
    """Flushes that may be made durable at once."""

    async def store(self, appends: Sequence[PartitionAppend]) -> Stored | None:
        """Return once the batches are durable; None: there was nothing to keep. Cancelled when no
        request
        waits any more: then no command names the bytes.

        Raises:
            FatalStorageError: what is durable is unknown; the process must end.
            PenstockError: the batches aren't durable, or it isn't known.
        """
        ...

    def is_over(self, stored: Stored, *, named: bool) -> None:
        """The command that names these bytes was applied, or never will be."""
        ...


class Flusher:
    """Appends by flushes.

    Args:
        flush_bytes: a flush begins as soon as this many bytes wait.
        bytes_max: see `Gathering`.
        store_wait_s: a flush that isn't durable this long after it began has failed. Requests
            are answered at their own deadlines, whatever the outcome of their flush.
        unordered_max: the greatest number of flushes with open outcomes; beyond it, requests
            wait.
        deliver: called with each flush whose batches were given offsets, before it is answered.
        over: called once with each flush, whatever its outcome.
        on_fatal: ends the process.
    """

    def __init__(
        self,
        *,
        order: Order,
        bytes_store: ByteStore,
        known_producer: KnownProducer,
        clock: Clock,
        flush_bytes: int,
        bytes_max: int,
        store_wait_s: float,
        unordered_max: int,
        deliver: Callable[[Flight], object],
        over: Callable[[Flight], object],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._order = order
        self._bytes = bytes_store
        self._clock = clock
        self._store_wait_s = store_wait_s
        self._unordered_max = unordered_max
        self._deliver = deliver
        self._over = over
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._broken = BrokenSequences(known_producer)
        self._pending = Gathering(flush_bytes=flush_bytes, bytes_max=bytes_max)
        self._due_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._held_timer: asyncio.TimerHandle | None = None
        self._unsubmitted: deque[Flight] = deque()
        self._submitted: dict[Flight, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._place = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusal: RetryableError | None = None
        self.waiting_bytes = 0
        """Bytes handed in and not yet resolved, be they answered or not."""
        self.flush_count = 0
        self.last_error = ""

    def submit(self, request: AppendRequest, *, wait_s: float = 0.0) -> None:
        """Take one request's batches.

        Args:
            wait_s: how long others may be waited for that share its flush.
        """
        if self._closed:
            request.done(_closed_error())
            return
        self._place += 1
        waiting = Waiting(request, self._place)
        if self._refusal is not None:
            # What its producer sent behind it fails as well, whenever this agent takes it again.
            self._note_broken(waiting)
            waiting.answer(self._refusal)
            return
        self.waiting_bytes += request.length
        self._pending.add(waiting)
        self._idle.clear()
        if self._pending.is_full:
            self._flush()
            return
        due_s = self._loop.time() + wait_s
        if due_s < self._due_s:
            self._set_due(due_s)

    def refuse(self, appends: Sequence[PartitionAppend], source: int) -> None:
        """Have what stands behind these batches fail: they were refused before they got here."""
        self._place += 1
        self._broken.note(appends, place=self._place, source=source, last_place=self._place)

    def let_go(self, error: RetryableError | None) -> None:
        """Fail all that is not submitted, and all that comes, until it is called with None.

        What is submitted is the order's to fail, unless it may have been sent.
        """
        self._refusal = error
        if error is None:
            return
        for flight in self._unsubmitted:
            if flight.error is None and flight.task is not None:
                flight.error = error
                flight.task.cancel()
        self._fail_pending(list(self._pending), error)
        self._submit_ready()

    def give_up(self, error: RetryableError) -> None:
        """Answer what was submitted; it may be stored, and its flushes go on."""
        for flight in list(self._submitted):
            self._answer(flight, error)

    def holds_topic(self, topic_key: TopicKey) -> bool:
        """Whether batches of a topic are on their way here."""
        waiting = [*self._pending]
        for flight in (*self._unsubmitted, *self._submitted):
            waiting += flight.waiting
        return any(
            topic_key_of(append.partition_key) == topic_key
            for one in waiting
            for append in one.request.appends
        )

    async def drain(self, deadline_s: float) -> bool:
        """Flush what waits and let all of it be answered; whether it was within `deadline_s`."""
        self._is_due = True
        self._flush()
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Refuse new work, give up batches that aren't durable yet, and answer all open
        requests."""
        self._closed = True
        for timer in (self._timer, self._held_timer):
            if timer is not None:
                timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_pending(list(self._pending), _closed_error())
        for flight in list(self._submitted):
            # The flush may still be applied; a client that tries another agent learns it by its
            # sequences.
            self._answer(flight, _unknown_error("the server is shutting down"))

    # -- beginning flushes ---------------------------------------------------------------------

    def _set_due(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        # Also without a wait not at once: what arrives with the same readiness shares the flush.
        self._timer = self._loop.call_at(due_s, self._come_due)

    def _come_due(self) -> None:
        self._is_due = True
        self._flush()

    def _flush(self) -> None:
        """Begin flushes as long as there is a reason and room."""
        while self._pending and (self._is_due or self._pending.is_full):
            storing = len(self._tasks)
            if storing >= self._bytes.flights_max or self._open_count >= self._unordered_max:
                self._watch_held()
                return
            self._begin(self._pending.next_group())
        if not self._pending:
            self._is_due = False
            self._due_s = float("inf")
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    @property
    def _open_count(self) -> int:
        return len(self._unsubmitted) + len(self._submitted)

    def _begin(self, group: list[Waiting]) -> None:
        flight = Flight(
            group, sum(waiting.request.length for waiting in group), self._clock.monotonic_s()
        )
        self._unsubmitted.append(flight)
        self.flush_count += 1
        task = flight.task = background.start(background.FLUSH, partial(self._store, flight))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # After the task has left the set, so that its room is seen.
        task.add_done_callback(lambda _: self._after_store())
        self._watch(flight)

    async def _store(self, flight: Flight) -> None:
        appends = flight.appends()
        try:
            async with asyncio.timeout(self._store_wait_s):
                flight.stored = await self._bytes.store(appends)
            if flight.stored is None:
                flight.stored = Stored(runs=())
        except FatalStorageError as error:
            flight.error = error
            self._on_fatal(error)
        except TimeoutError:
            flight.error = RetryableError(
                "append", "log", f"{flight.length} bytes were not durable in time"
            )
        except asyncio.CancelledError:
            flight.error = flight.error or _closed_error()
            raise
        except PenstockError as error:
            flight.error = RetryableError("append", "log", str(error))
        except Exception as error:  # noqa: BLE001 - handed to its producers
            # A bug in making bytes durable: no command names the bytes, and no request hangs.
            heard(Cause.FLUSH, error, logger, f"a flush of {flight.length} bytes failed")
            flight.error = RetryableError("append", "log", f"{type(error).__name__}: {error}")
        finally:
            flight.stored_s = self._clock.monotonic_s() - flight.begun_s

    def _after_store(self) -> None:
        self._submit_ready()
        self._flush()

    # -- ordering ------------------------------------------------------------------------------

    def _submit_ready(self) -> None:
        """Submit, or fail, the flushes whose turn it is."""
        while self._unsubmitted and self._unsubmitted[0].is_settled:
            flight = self._unsubmitted.popleft()
            if flight.error is not None:
                if flight.stored is not None:
                    # It was let go when its bytes were durable already.
                    self._bytes.is_over(flight.stored, named=False)
                self._fail(flight, flight.error)
            else:
                self._submit(flight)

    def _submit(self, flight: Flight) -> None:
        stored = flight.stored
        assert stored is not None
        if self._broken:
            flight.refused = [
                waiting
                for waiting in flight.waiting
                if self._broken.is_follower(
                    waiting.request.appends, place=waiting.place, source=waiting.request.source
                )
            ]
            for waiting in flight.refused:
                waiting.answer(follower_error())
        if not stored.runs or len(flight.refused) == len(flight.waiting):
            self._bytes.is_over(stored, named=False)
            self._answer(flight, None)
            self._resolve(flight)
            return
        refused = {id(append) for waiting in flight.refused for append in waiting.request.appends}
        flight.plan, command = plan_commit(
            stored, (lambda append: id(append) in refused) if refused else None
        )
        if not flight.plan.runs:
            # What was not refused was kept nowhere: its topics are gone.
            self._bytes.is_over(stored, named=False)
            self._answer(flight, None)
            self._resolve(flight)
            return
        self._submitted[flight] = None
        future = self._order.submit([command])
        if future.done():
            # Refused at once: what stands behind it must be refused before it is submitted.
            self._applied(flight, future)
        else:
            future.add_done_callback(partial(self._applied, flight))

    def _applied(self, flight: Flight, future: asyncio.Future[list[AnyAnswer]]) -> None:
        stored, plan = flight.stored, flight.plan
        assert stored is not None
        assert plan is not None
        del self._submitted[flight]
        error: PenstockError | None = None
        if future.cancelled():
            error = _closed_error()
        elif (failure := future.exception()) is not None:
            error = (
                failure
                if isinstance(failure, PenstockError)
                else RetryableError("append", "log", f"{type(failure).__name__}: {failure}")
            )
        else:
            answer = future.result()[0]
            if isinstance(answer, Refused):
                error = RetryableError(
                    "append", "log", f"{answer.reason.name}: {answer.detail}", "send it again"
                )
            else:
                assert isinstance(answer, RunsCommitted), answer
                take_answer(plan, answer)
        self._bytes.is_over(stored, named=error is None)
        if error is not None:
            self._fail(flight, error)
            return
        self.last_error = ""
        flight.applied_s = self._clock.monotonic_s() - flight.begun_s - flight.stored_s
        self._deliver(flight)
        self._answer(flight, None)
        self._resolve(flight)

    def _fail(self, flight: Flight, error: PenstockError) -> None:
        """Nothing of it was or will be committed."""
        self.last_error = str(error)
        refused = set(flight.refused)
        for waiting in flight.waiting:
            if waiting not in refused:
                self._note_broken(waiting)
        flight.error = error
        self._answer(flight, error)
        self._resolve(flight)

    def _note_broken(self, waiting: Waiting) -> None:
        request = waiting.request
        self._broken.note(
            request.appends, place=waiting.place, source=request.source, last_place=self._place
        )

    def _answer(self, flight: Flight, error: PenstockError | None) -> None:
        for waiting in flight.waiting:
            waiting.answer(error)

    def _resolve(self, flight: Flight) -> None:
        if flight.timer is not None:
            # It would keep the batches in memory.
            flight.timer.cancel()
        self.waiting_bytes -= flight.length
        self._over(flight)
        if self._pending:
            self._flush()
        elif not self._open_count:
            self._idle.set()

    # -- deadlines -----------------------------------------------------------------------------

    def _watch(self, flight: Flight) -> None:
        """Answer what waits too long, though its flush goes on."""
        left_s = flight.deadline_s - self._clock.monotonic_s()
        if left_s != float("inf"):
            flight.timer = self._loop.call_later(max(0.0, left_s), self._expire, flight)

    def _expire(self, flight: Flight) -> None:
        now_s = self._clock.monotonic_s()
        for waiting in list(flight.unanswered()):
            if waiting.request.deadline_s <= now_s:
                waiting.answer(_unknown_error("not ordered in time"))
        self._watch(flight)

    def _watch_held(self) -> None:
        if self._held_timer is None and not self._closed:
            self._held_timer = self._loop.call_later(HELD_TURN_S, self._expire_held)

    def _expire_held(self) -> None:
        self._held_timer = None
        now_s = self._clock.monotonic_s()
        late = [one for one in self._pending if one.request.deadline_s <= now_s]
        if late:
            self._fail_pending(
                late, RetryableError("append", "log", "the flushes before it take too long")
            )
        self._flush()

    def _fail_pending(self, late: list[Waiting], error: PenstockError) -> None:
        self._pending.remove(late)
        for waiting in late:
            self.waiting_bytes -= waiting.request.length
            self._note_broken(waiting)
            waiting.answer(error)
        if not self._pending and not self._open_count:
            self._idle.set()


def _closed_error() -> RetryableError:
    return RetryableError("append", "log", "the server is shutting down", "try another agent")


def _unknown_error(detail: str) -> RetryableError:
    return RetryableError("append", "log", detail, "it may still be stored: send it again")
