"""The commit lane: the one thread in which bytes become durable and then ordered.

Everything that waits when the lane turns to its queue shares one WAL frame, one fdatasync and
one SQLite transaction. One round trip between the event loop and the lane serves both, since a
hop costs as much as a system call and small produces are made of such costs.

Order of effects, which the tests hold: frame written -> fdatasync -> journal entry committed ->
answers handed to the event loop. A failure of the first two or of the commit itself is fatal:
the lane answers nothing more and calls `on_fatal`, which ends the process.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from penstock.log.append.broken import BrokenSequences, follower_error
from penstock.log.append.plan import (
    FramePlan,
    PartitionAppend,
    plan_frame,
    run_commits,
    take_answer,
)
from penstock.log.limits import LogLimits
from penstock.metadata.changes import Change
from penstock.metadata.commands import AnyAnswer, AnyCommand, CommitRuns, RunsCommitted
from penstock.model.errors import PenstockError, RetryableError, StorageFullError
from penstock.ports.clock import Clock
from penstock.wal import WalPlace, WalWriter

logger = logging.getLogger(__name__)

GATHER_SOURCES: Final = 8
GATHER_SPAN_S: Final = 0.05
GATHER_BYTES_MAX: Final = 256 << 10
"""Gathering is on while the last GATHER_SOURCES appends came from as many connections within
GATHER_SPAN_S; a commit that has GATHER_BYTES_MAX is worth its syncs without waiting."""

HELD_TURN_S: Final = 0.05
"""How soon appends that found the WAL full try again, in seconds."""

GROUP_ITEMS_MAX: Final = 10_000
"""Items of one group commit: bounds the entry's size and the time that one transaction takes."""


class AppliedEntry(Protocol):
    """What `Orderer.append` returns: `penstock.metadata.order.Applied`."""

    @property
    def answers(self) -> list[AnyAnswer]:
        """One per command, in order."""
        ...

    @property
    def changes(self) -> list[Change]:
        """For the view, in order."""
        ...


class Orderer(Protocol):
    """The journal and its replica, used by the lane's thread only."""

    def append(self, commands: Sequence[AnyCommand]) -> AppliedEntry:
        """Journal and apply, durably, in one transaction.

        Raises:
            StorageFullError: nothing was applied.
            FatalStorageError: unknown what was; the process must end.
        """
        ...


@dataclass(slots=True)
class AppendRequest:
    """The batches of one produce request. `done` is called once, on the event loop, with the
    error if nothing was stored, else None; the appends then hold their answers."""

    appends: list[PartitionAppend]
    length: int
    deadline_s: float
    done: Callable[[PenstockError | None], None]
    source: int = 0
    """The connection that it came from."""


@dataclass(slots=True)
class CommandRequest:
    """Commands of one `commit` call and the future of their answers."""

    commands: Sequence[AnyCommand]
    future: asyncio.Future[list[AnyAnswer]]


@dataclass(slots=True)
class Delivery:
    """One group commit's outcome, on its way to the event loop."""

    appends: list[AppendRequest]
    commands: list[CommandRequest]
    plan: FramePlan | None = None
    place: WalPlace | None = None
    answers: list[AnyAnswer] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    error: PenstockError | None = None
    wal_s: float = 0.0
    journal_s: float = 0.0


class CommitLane:
    """Group commit of appends and commands, on a thread of its own.

    Args:
        deliver: called on the event loop with each group's outcome, before anybody waiting for
            it goes on: it updates the views.
        announce: called after those who waited were answered: it wakes who reads, so that 500
            readers don't stand before the producer of what they get.
        on_fatal: called on the lane's thread when durability is unknown; must end the process.
    """

    def __init__(
        self,
        *,
        wal: WalWriter,
        order: Orderer,
        clock: Clock,
        limits: LogLimits,
        deliver: Callable[[Delivery], None],
        announce: Callable[[Delivery], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._wal = wal
        self._order = order
        self._clock = clock
        self._limits = limits
        self._deliver_views = deliver
        self._announce = announce
        self._on_fatal = on_fatal
        self._queue: SimpleQueue[AppendRequest | CommandRequest | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="commit-lane", daemon=True)
        self._closed = False
        self._sources: deque[tuple[int, float]] = deque(maxlen=GATHER_SOURCES)
        self._gathering = False
        self._never = threading.Event()
        self._broken = BrokenSequences()
        self.waiting_bytes = 0
        """Bytes handed in and not yet answered; read and written on the event loop."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: AppendRequest) -> None:
        """Queue one produce request's batches. Event loop only."""
        if self._closed:
            request.done(_closed_error())
            return
        self.waiting_bytes += request.length
        self._watch_sources(request.source)
        self._queue.put(request)

    def _watch_sources(self, source: int) -> None:
        sources = self._sources
        now_s = self._clock.monotonic_s()
        sources.append((source, now_s))
        if self._gathering or source != sources[0][0]:
            self._gathering = (
                now_s - sources[0][1] <= GATHER_SPAN_S
                and len({known for known, _ in sources}) == GATHER_SOURCES
            )

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.metadata.committer.Committer`."""
        return await self.submit_commands(commands)

    def submit_commands(self, commands: Sequence[AnyCommand]) -> asyncio.Future[list[AnyAnswer]]:
        """As `commit`; calls take their places in the order in which they are made."""
        future: asyncio.Future[list[AnyAnswer]] = self._loop.create_future()
        if self._closed:
            future.set_exception(_closed_error())
        else:
            self._queue.put(CommandRequest(commands, future))
        return future

    async def close(self) -> None:
        """Refuse new work, finish what waits, end the thread."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    # -- the lane's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        pending: deque[AppendRequest] = deque()
        """Appends that are not committed yet: more than a frame, or held by a full WAL."""
        open_, is_full = True, False
        try:
            while open_ or pending:
                commands, open_ = self._take(pending, open_=open_, is_full=is_full)
                is_full = self._turn(pending, commands, give_up=not open_)
        except BaseException as error:  # noqa: BLE001 - after any, nothing may be acknowledged
            self._on_fatal(error)

    def _take(
        self, pending: deque[AppendRequest], *, open_: bool, is_full: bool
    ) -> tuple[list[CommandRequest], bool]:
        """Move what waits in the queue to `pending` and to the commands that are returned.

        While the WAL is full all of it is taken, since the command that makes room may be the
        last; else as much as makes a frame.
        """
        commands: list[CommandRequest] = []
        length = taken = 0
        frame_bytes_max = self._frame_bytes_max
        try:
            # Held appends look again soon; otherwise the lane sleeps until there is work.
            item = self._queue.get(timeout=HELD_TURN_S) if is_full else self._queue.get()
            if self._gathering and self._limits.gather_ms and isinstance(item, AppendRequest):
                self._gather(item)
            while True:
                if item is None:
                    open_ = False
                elif isinstance(item, AppendRequest):
                    pending.append(item)
                    length += item.length
                else:
                    commands.append(item)
                taken += 1
                if taken >= GROUP_ITEMS_MAX or (length >= frame_bytes_max and not is_full):
                    break
                item = self._queue.get_nowait()
        except Empty:
            pass
        return commands, open_

    def _gather(self, first: AppendRequest) -> None:
        """Let a commit of many small producers wait for more of them.

        One sleep, not a wait for each arrival: being woken costs as much as it would save.
        """
        if first.length < GATHER_BYTES_MAX and self._queue.qsize() < GATHER_SOURCES:
            self._never.wait(self._limits.gather_ms / 1000)

    def _turn(
        self, pending: deque[AppendRequest], commands: list[CommandRequest], *, give_up: bool
    ) -> bool:
        """Group commits of all that is pending, as far as the WAL has room.

        Returns:
            Whether it was full, and appends are still pending.
        """
        is_full = False
        while pending:
            group = _next_group(pending, self._frame_bytes_max)
            if self._broken:
                group = self._refuse_followers(group)
                if not group:
                    continue
            try:
                self._commit_group(group, commands)
            except StorageFullError as error:
                pending.extendleft(reversed(group))
                self._refuse_late(pending, error, give_up=give_up)
                is_full = True
                break
            commands = []
        if commands:
            # Also while appends are held: StoreSegment is what makes room for them.
            self._commit_group([], commands)
        return is_full and bool(pending)

    @property
    def _frame_bytes_max(self) -> int:
        return min(self._limits.frame_bytes_max, self._wal.frame_bytes_max)

    def _refuse_late(
        self, pending: deque[AppendRequest], error: StorageFullError, *, give_up: bool
    ) -> None:
        now_s = self._clock.monotonic_s()
        late = [request for request in pending if give_up or request.deadline_s <= now_s]
        if not late:
            return
        kept = [request for request in pending if not give_up and request.deadline_s > now_s]
        pending.clear()
        pending.extend(kept)
        self._note_broken(late)
        self._hand_over(Delivery(late, [], error=error))

    def _note_broken(self, failed: list[AppendRequest]) -> None:
        for request in failed:
            self._broken.note(request.appends)

    def _refuse_followers(self, group: list[AppendRequest]) -> list[AppendRequest]:
        """Fail requests with a batch that stands behind a failed one; what may go on."""
        going: list[AppendRequest] = []
        followers: list[AppendRequest] = []
        for request in group:
            is_follower = self._broken.is_follower(request.appends)
            (followers if is_follower else going).append(request)
        if followers:
            self._hand_over(Delivery(followers, [], error=follower_error()))
        return going

    def _commit_group(self, group: list[AppendRequest], commands: list[CommandRequest]) -> None:
        """One frame and one journal entry.

        Raises:
            StorageFullError: the WAL has no room for the frame; nothing was named or committed,
                and the commands have not been tried.
        """
        delivery = Delivery(group, commands)
        entry: list[AnyCommand] = []
        started_s = self._clock.monotonic_s()
        if group:
            appends = (
                group[0].appends
                if len(group) == 1
                else [append for request in group for append in request.appends]
            )
            plan = delivery.plan = plan_frame(appends)
            place = delivery.place = self._wal.append(plan.buffers, length=plan.length)
            self._wal.sync()
            entry.append(
                CommitRuns(runs=run_commits(plan, position=place.position), wal=place.generation)
            )
            delivery.wal_s = self._clock.monotonic_s() - started_s
        for request in commands:
            entry += request.commands
        try:
            applied = self._order.append(entry)
        except StorageFullError as error:
            # The frame is in the WAL but unnamed: recovery cuts it, or its file is recycled.
            self._note_broken(group)
            if group and commands:
                # By themselves they may fit: what deletes something may use the last of the disk.
                delivery.commands = []
            delivery.error = error
            self._hand_over(delivery)
            if group and commands:
                self._commit_group([], commands)
            return
        delivery.journal_s = self._clock.monotonic_s() - started_s - delivery.wal_s
        delivery.answers = applied.answers
        delivery.changes = applied.changes
        if delivery.plan is not None:
            committed = applied.answers[0]
            assert isinstance(committed, RunsCommitted), committed
            take_answer(delivery.plan, committed)
        self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._deliver, delivery)

    # -- back on the event loop ----------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        self._deliver_views(delivery)
        error = delivery.error
        for request in delivery.appends:
            self.waiting_bytes -= request.length
            request.done(error)
        index = 1 if delivery.plan is not None else 0
        for command in delivery.commands:
            count = len(command.commands)
            answers = delivery.answers[index : index + count]
            index += count
            if command.future.done():  # its caller was cancelled; the commands stand
                continue
            if error is not None:
                command.future.set_exception(error)
            else:
                command.future.set_result(answers)
        # What was answered goes out with callbacks that are queued by now; this queues behind.
        self._loop.call_soon(self._announce, delivery)


def _next_group(pending: deque[AppendRequest], frame_bytes_max: int) -> list[AppendRequest]:
    """Take the first requests that fit into one frame, at least one; none is torn apart."""
    group = [pending.popleft()]
    length = group[0].length
    while (
        pending and length + pending[0].length <= frame_bytes_max and len(group) < GROUP_ITEMS_MAX
    ):
        length += pending[0].length
        group.append(pending.popleft())
    return group


def _closed_error() -> RetryableError:
    return RetryableError("append", "log", "the server is shutting down", "try another agent")
