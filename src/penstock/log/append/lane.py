"""The commit lane: where batches and commands become durable and ordered, one turn at a time.

Everything that waits when a turn begins shares one WAL frame, one sync and one journal entry. A
turn runs on the lane's thread, or, if it is small, nothing is under way and the disk is quick, on
the event loop: two hops between threads cost more than such a write.

Order of effects, which the tests hold: entry applied -> frame that holds it written and synced ->
answers handed to the event loop -> database committed behind. A failure of the second, or an
unknown one, is fatal: the lane answers nothing more and calls `on_fatal`, which ends the process.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from penstock.log.append.broken import BrokenSequences, KnownProducer, follower_error
from penstock.log.append.frames import (
    FrameCommitter,
    FrameWriter,
    WalFullError,
    too_large_error,
)
from penstock.log.append.group_commit import AppendRequest, CommandRequest, GroupCommit
from penstock.log.append.plan import plan_frame, take_answer
from penstock.log.settings import LogSettings
from penstock.model.errors import RetryableError, StorageFullError
from penstock.ports.clock import Clock
from penstock.state.answers import AnyAnswer, RunsCommitted
from penstock.state.commands import AnyCommand
from penstock.state.levels import Levels, refuse_below_level
from penstock.state.orders import LocalJournal

logger = logging.getLogger(__name__)

LONE_APPENDS: Final = 8
"""After so many appends of one connection there is no other to share a turn with."""

HERE_BYTES_MAX: Final = 64 << 10
"""More is the thread's: it takes long to write, and the next may be received meanwhile."""

HELD_TURN_S: Final = 0.05
"""How soon appends that found the WAL full try again, in seconds."""

BEHIND_S: Final = 0.1
"""How long the database may be behind what was answered, in seconds. A commit writes about as many
pages for a hundred single records as for 25, and holds up appends meanwhile."""

GROUP_ITEMS_MAX: Final = 10_000
"""Items of one group commit: bounds the entry's size and the time that one turn takes."""

GROUP_BATCHES_MAX: Final = 2_000
"""Batches of one group commit, unless one request has more. A commit is delivered in one go, at
some 5 us of the event loop for each."""


_Item = AppendRequest | CommandRequest


class CommitLane:
    """Group commit of appends and commands.

    Args:
        known_producer: of whichever thread a turn runs on.
        levels: what of feature levels is applied; commands above it are refused.
        on_fatal: called on the thread that a turn runs on when durability is unknown; must end
            the process.
    """

    def __init__(
        self,
        *,
        wal: FrameWriter,
        journal: LocalJournal,
        known_producer: KnownProducer,
        clock: Clock,
        levels: Levels,
        limits: LogSettings,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._append_bytes_max = wal.frame_bytes_max
        self._frame_bytes_max = min(limits.frame_bytes_max, wal.frame_bytes_max)
        self._frames = FrameCommitter(wal, journal, clock)
        self._clock = clock
        self._levels = levels
        self._limits = limits
        self._on_applied: Callable[[GroupCommit], None] = lambda _: None
        self._on_answered: Callable[[GroupCommit], None] = lambda _: None
        self._on_fatal = on_fatal
        self._queue: SimpleQueue[list[_Item] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="commit-lane", daemon=True)
        self._closed = False
        self._last_source = -1
        self._lone_count = 0
        """Appends in a row of one connection."""
        self._is_held = False
        self._is_delivering = False
        """A caller that gets its answer may append again at once; its turn comes after all
        answers."""
        self._broken = BrokenSequences(known_producer)
        self._place = 0
        """The place of the request that was handed in last. The thread reads it."""
        self._arrived: list[_Item] = []
        self._arrived_bytes = 0
        self._begin_handle: asyncio.Handle | None = None
        self._handed_over = 0
        """Items that the thread has and whose outcome has not come back. While there are none the
        thread touches nothing but the database's commit, and a turn may run here."""
        self._is_here = False
        self._is_dead = False
        self._behind_handle: asyncio.Handle | None = None
        self._behind_due_s = float("inf")
        """When the thread brings the database along; it alone reads and writes this."""
        self._is_stuck = False
        """The disk is too full for it; the thread's, too."""
        self._later: Callable[[float, Callable[[], None]], asyncio.Handle] = self._loop.call_later
        self.may_turn_here = True
        """Whether turns may run on the event loop at all."""
        self.waiting_bytes = 0
        """Bytes handed in and not yet answered; read and written on the event loop."""

    @property
    def hidden_position(self) -> int:
        """See `FrameCommitter`: set before its commands are answered."""
        return self._frames.hidden_position

    def start(
        self,
        *,
        on_applied: Callable[[GroupCommit], None],
        on_answered: Callable[[GroupCommit], None],
    ) -> None:
        """Start the thread.

        Args:
            on_applied: called on the event loop with each group that was applied or has failed,
                before its callers go on: it moves the view.
            on_answered: called after they were answered: it wakes who reads.
        """
        self._on_applied, self._on_answered = on_applied, on_answered
        self._thread.start()

    def submit(self, request: AppendRequest) -> None:
        """Queue one produce request's batches. Event loop only."""
        if self._closed:
            request.done(_closed_error())
            return
        too_large = too_large_error(request.length, frame_bytes_max=self._append_bytes_max)
        if too_large is not None:
            # Its retry would fail as well, so that what its producer sent after it waits for none.
            request.done(too_large)
            return
        self._place += 1
        request.place = self._place
        self.waiting_bytes += request.length
        is_lone = request.source == self._last_source
        self._lone_count = self._lone_count + 1 if is_lone else 0
        self._last_source = request.source
        self._arrive(request, request.length)

    def hold(self) -> None:
        """Begin no turn before `settle`: more may be submitted in the same breath."""
        self._is_held = True

    def settle(self, *, all_came: bool = False) -> None:
        """Begin a turn for what was submitted since `hold`, or soon if others may share it.

        Args:
            all_came: who may share it has been waited for.
        """
        self._is_held = False
        if not self._arrived or self._begin_handle is not None:
            return
        if (all_came or self._lone_count >= LONE_APPENDS) and not self._is_delivering:
            # Without a detour by the loop, which looks for other work first.
            self._begin()
        else:
            self._begin_soon()

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.port.Committer`."""
        return await self.submit_commands(commands)

    def submit_commands(self, commands: Sequence[AnyCommand]) -> asyncio.Future[list[AnyAnswer]]:
        """Journal commands as `commit` does, in the order of the calls."""
        future: asyncio.Future[list[AnyAnswer]] = self._loop.create_future()
        refusal = _closed_error() if self._closed else refuse_below_level(self._levels, commands)
        if refusal is None:
            self._arrive(CommandRequest(commands, future), 0)
        else:
            future.set_exception(refusal)
        return future

    async def close(self) -> None:
        """Refuse new work, finish what waits, end the thread."""
        if self._closed:
            return
        self._closed = True
        if self._begin_handle is not None:
            self._begin_handle.cancel()
        if self._arrived:
            self._hand_to_thread()
        if self._behind_handle is not None:
            self._behind_handle.cancel()
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    # -- on the event loop ---------------------------------------------------------------------

    def _arrive(self, item: _Item, length: int) -> None:
        self._arrived.append(item)
        self._arrived_bytes += length
        if self._begin_handle is None and not self._is_held:
            self._begin_soon()

    def _begin_soon(self) -> None:
        """Not now: what else has arrived with it shares its turn."""
        self._begin_handle = self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """A turn for what has arrived, here or on the thread."""
        if self._is_dead:
            return
        if (
            self.may_turn_here
            and not self._handed_over
            and self._arrived_bytes <= HERE_BYTES_MAX
            and self._frames.is_quick(self._arrived_bytes)
            and all(isinstance(item, AppendRequest) for item in self._arrived)
        ):
            self._begin_handle = None
            self._turn_here()
        else:
            self._hand_to_thread()

    def _hand_to_thread(self) -> None:
        self._begin_handle = None
        items, self._arrived, self._arrived_bytes = self._arrived, [], 0
        self._handed_over += len(items)
        self._queue.put(items)

    def _turn_here(self) -> None:
        pending = deque(item for item in self._arrived if isinstance(item, AppendRequest))
        self._arrived, self._arrived_bytes = [], 0
        self._is_here = True
        try:
            self._turn(pending, [], give_up=False)
        except BaseException as error:  # noqa: BLE001 - after any, nothing may be acknowledged
            self._is_dead = True
            self._on_fatal(error)
            return
        finally:
            self._is_here = False
        if pending:  # held by a full WAL
            self._handed_over += len(pending)
            self._queue.put(list(pending))
        if self._behind_handle is None and self._frames.uncommitted_count:
            self._behind_handle = self._later(BEHIND_S, self._commit_behind)

    def _commit_behind(self) -> None:
        """The database is behind what was answered here for long enough."""
        self._behind_handle = None
        if self._closed or self._is_dead or not self._frames.uncommitted_count:
            return
        if self._handed_over:
            return  # the thread sees to it
        try:
            if not self._frames.commit_behind():
                self._behind_handle = self._later(HELD_TURN_S, self._commit_behind)
        except BaseException as error:  # noqa: BLE001 - as in a turn
            self._is_dead = True
            self._on_fatal(error)

    # -- the lane's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        pending: deque[AppendRequest] = deque()
        """Appends that are not committed yet: more than a frame, or held by a full WAL."""
        open_, is_full = True, False
        try:
            while open_ or pending:
                commands, open_ = self._take(pending, open_=open_, is_full=is_full)
                if pending or commands:
                    is_full = self._turn(pending, commands, give_up=not open_)
                    self._follow()
                else:
                    self._is_stuck = not self._frames.commit_behind()
        except BaseException as error:  # noqa: BLE001 - after any, nothing may be acknowledged
            self._is_dead = True
            self._on_fatal(error)

    def _follow(self) -> None:
        """Bring the database along, if it is far behind or was behind at the turn before."""
        now_s = self._clock.monotonic_s()
        if self._frames.is_far_ahead or now_s >= self._behind_due_s:
            self._is_stuck = not self._frames.commit_behind()
            self._behind_due_s = float("inf")
        elif self._behind_due_s == float("inf"):
            self._behind_due_s = now_s + BEHIND_S

    def _take(
        self, pending: deque[AppendRequest], *, open_: bool, is_full: bool
    ) -> tuple[list[CommandRequest], bool]:
        """Move what waits in the queue to `pending` and to the commands that are returned.

        While the WAL is full all of it is taken, since the command that makes room may be the
        last; else as much as makes a frame. Nothing at all, when nothing came for a while.
        """
        commands: list[CommandRequest] = []
        length = taken = 0
        frame_bytes_max = self._frame_bytes_max
        timeout_s = None
        if is_full or self._is_stuck:  # held appends look again soon
            timeout_s = HELD_TURN_S
        elif self._frames.uncommitted_count:
            timeout_s = BEHIND_S
        try:
            items = self._queue.get(timeout=timeout_s)
            while True:
                if items is None:
                    return commands, False
                for item in items:
                    if isinstance(item, AppendRequest):
                        pending.append(item)
                        length += item.length
                    else:
                        commands.append(item)
                taken += len(items)
                if taken >= GROUP_ITEMS_MAX or (length >= frame_bytes_max and not is_full):
                    break
                items = self._queue.get_nowait()
        except Empty:
            pass
        return commands, open_

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
            except WalFullError as error:
                pending.extendleft(reversed(group))
                self._refuse_late(pending, error, give_up=give_up)
                is_full = True
                break
            commands = []
        if commands:
            # Also while appends are held: StoreSegment is what makes room for them.
            self._commit_group([], commands)
        return is_full and bool(pending)

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
        self._hand_over(GroupCommit(late, [], error=error))

    def _note_broken(self, failed: list[AppendRequest]) -> None:
        for request in failed:
            self._broken.note(
                request.appends,
                place=request.place,
                source=request.source,
                last_place=self._place,
            )

    def _refuse_followers(self, group: list[AppendRequest]) -> list[AppendRequest]:
        """Fail requests with a batch that stands behind a failed one; what may go on."""
        going: list[AppendRequest] = []
        followers: list[AppendRequest] = []
        for request in group:
            is_follower = self._broken.is_follower(
                request.appends, place=request.place, source=request.source
            )
            (followers if is_follower else going).append(request)
        if followers:
            self._hand_over(GroupCommit(followers, [], error=follower_error()))
        return going

    def _commit_group(self, appends: list[AppendRequest], commands: list[CommandRequest]) -> None:
        """One entry, in one frame.

        Raises:
            WalFullError: the WAL has no room for the batches; nothing was applied, and the
                commands have not been tried.
        """
        group = GroupCommit(appends, commands)
        if appends:
            group.plan = plan_frame(
                appends[0].appends
                if len(appends) == 1
                else [append for request in appends for append in request.appends]
            )
        entry = [command for request in commands for command in request.commands]
        try:
            applied = self._frames.commit(group, entry)
        except WalFullError:
            raise
        except StorageFullError as error:
            self._note_broken(appends)
            if appends and commands:
                # By themselves they may fit: what deletes something may use the last of the disk.
                group.commands = []
            group.error = error
            self._hand_over(group)
            if appends and commands:
                self._commit_group([], commands)
            return
        if group.plan is not None:
            answer = applied.outcome.answers[0]
            assert isinstance(answer, RunsCommitted), answer
            take_answer(group.plan, answer)
        self._hand_over(group)

    def _hand_over(self, group: GroupCommit) -> None:
        if self._is_here:
            try:
                self._deliver(group)
            except Exception as error:  # noqa: BLE001
                # Of a receiver: what was appended is as durable as before.
                self._loop.call_exception_handler(
                    {"message": "delivering a commit failed", "exception": error}
                )
        else:
            self._loop.call_soon_threadsafe(self._deliver_from_thread, group)

    # -- back on the event loop ----------------------------------------------------------------

    def _deliver_from_thread(self, group: GroupCommit) -> None:
        # First, since a caller who is answered may ask for more at once.
        self._handed_over -= len(group.appends) + len(group.commands)
        self._deliver(group)

    def _deliver(self, group: GroupCommit) -> None:
        self._is_delivering = True
        try:
            self._on_applied(group)
            self._answer(group)
            if not group.commands:
                self._on_answered(group)
                return
        finally:
            self._is_delivering = False
        # What was answered goes out with callbacks that are queued by now; this queues after them.
        self._loop.call_soon(self._on_answered, group)

    def _answer(self, group: GroupCommit) -> None:
        error = group.error
        for request in group.appends:
            self.waiting_bytes -= request.length
            try:
                request.done(error)
            except Exception as failure:  # noqa: BLE001 - of one client, and there may be others
                self._loop.call_exception_handler(
                    {"message": "answering an append failed", "exception": failure}
                )
        answers = [] if group.applied is None else group.applied.outcome.answers
        index = 1 if group.plan is not None else 0
        for command in group.commands:
            first, index = index, index + len(command.commands)
            if command.future.done():  # its caller was cancelled; the commands stand
                continue
            if error is not None:
                command.future.set_exception(error)
            else:
                command.future.set_result(answers[first:index])


def _next_group(pending: deque[AppendRequest], frame_bytes_max: int) -> list[AppendRequest]:
    """Take the first requests that fit into one frame, at least one; none is torn apart."""
    group = [pending.popleft()]
    length, batches = group[0].length, len(group[0].appends)
    while pending:
        request = pending[0]
        length += request.length
        batches += len(request.appends)
        if length > frame_bytes_max or batches > GROUP_BATCHES_MAX:
            break
        group.append(pending.popleft())
    return group


def _closed_error() -> RetryableError:
    return RetryableError("append", "log", "the server is shutting down", "try another agent")
