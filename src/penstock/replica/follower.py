"""A follower: applies a shared journal to a replica, row by row, for any state machine.

Rows become visible out of order. Only a dense prefix is applied; a gap that lingers is sealed,
which waits for the append that holds its position. When the journal is away the follower tries
again by itself, and then first looks whether the journal still holds what was applied here.

Applying and committing run in the given executor, but for small batches; everything else on the
event loop. One commit per batch, without a sync: what a power cut takes is read again.

While the replica's disk is full, rows are applied in memory alone, in one transaction that stays
open; a commit is tried now and then. So the agent keeps up with the journal, answers and beats.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from penstock.model.errors import PenstockError, RetryableError, StorageFullError
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal, JournalRow
from penstock.replica.applied import Applied
from penstock.replica.ended_tasks import end_tasks
from penstock.replica.heads import ConfirmedHeads, HeadReading, journal_older
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT")
OutcomeT_contra = TypeVar("OutcomeT_contra", contravariant=True)
ResultT = TypeVar("ResultT")


BACKOFF: Final = Backoff(first_s=0.02, most_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSettings:
    """Durations in ms, but for the pauses of `backoff`."""

    page_rows: int = 128
    """Rows per read, and at most per commit."""
    inline_bytes_max: int = 4_096
    """Batches of fewer bytes are applied on the event loop: nothing is synced, so that it takes a
    fraction of a ms, and two hops between threads that share an interpreter take longer."""
    poll_ms: int = 100
    """Reads without a hint."""
    gap_ms: int = 50
    """How old a gap is when it is sealed."""
    awaited_gap_ms: int = 5
    """How old a gap is when it is sealed while something waits for a head."""
    gap_poll_ms: int = 2
    """Between looks at a gap."""
    head_ms: int = 1_000
    """Between reads of the head that no caller asked for (they compare clocks, too)."""
    backoff: Backoff = BACKOFF
    full_again_ms: int = 1_000
    """Between commits, at least, while the disk is full: each that fails has all that waits for it
    applied again, which takes a tenth of the time at most."""


class FollowingReplica(Protocol[OutcomeT]):
    """The part of `penstock.replica.Replica` that a follower needs."""

    @property
    def position(self) -> int:
        """The position of the last applied entry."""
        ...

    @property
    def time_ms(self) -> int:
        """Journal time there."""
        ...

    def apply(
        self, body: bytes, *, stamp_ms: int, position: int | None = None
    ) -> Applied[OutcomeT]:
        """Apply a row in the open transaction. An empty body is a seal: its outcome is empty."""
        ...

    def commit(self) -> int:
        """Commit what was applied, and the mark of its last row with it."""
        ...

    def local(self, name: str) -> int | str | None:
        """A value of this copy alone."""
        ...


class Pins(Protocol[OutcomeT_contra]):
    """Keeps the state of single positions. Called where rows are applied, by any thread."""

    def wants(self, outcome: OutcomeT_contra) -> bool:
        """Whether the state that a row with this outcome gave is to be kept."""
        ...

    def pin(self, position: int) -> None:
        """Keep it: it is committed, and no row past it is. Never raises."""
        ...


class Follower(Generic[OutcomeT]):
    """Event loop only. `run` follows until it is cancelled."""

    def __init__(
        self,
        journal: Journal,
        replica: FollowingReplica[OutcomeT],
        *,
        clock: Clock,
        executor: Executor | None,
        deliver: Callable[[list[Applied[OutcomeT]]], None],
        settings: FollowerSettings | None = None,
        on_reading: Callable[[HeadReading], None] | None = None,
        pins: Pins[OutcomeT] | None = None,
    ) -> None:
        """
        Args:
            replica: only this follower writes to it.
            executor: of one thread; None: the loop's own.
            deliver: called on the event loop with each applied batch, in order.
            on_reading: called with each head that was read.
            pins: which states are to be kept, and what keeps them.
        """
        self._journal = journal
        self._replica = replica
        self._clock = clock
        self._executor = executor
        self._deliver = deliver
        self._settings = settings or FollowerSettings()
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._pins = pins
        self._ahead: dict[int, JournalRow] = {}
        """Rows behind a gap, at most a page."""
        self._gap_s: tuple[int, float] | None = None
        """The first missing position, and since when."""
        self._is_checked = False
        """It was looked, since the journal last failed, whether the journal still holds what was
        applied here."""
        self._is_same = False
        """The look has found that it does. No head is confirmed before: a journal that came back
        older may have grown past the replica's position."""
        self._mark = RowMark.parse(replica.local(LOCAL_MARK))
        self._full_s: float | None = None
        """Since when there is no space to commit what was applied; None: there is."""
        self._commit_after_s = float("-inf")
        self.position = replica.position
        """Applied and delivered."""
        self.time_ms = replica.time_ms
        self.answering_since_s: float | None = None
        """Monotonic time since which the journal answers without a break; None: it is away."""
        self.away_detail = "not reached yet"
        self.heads = ConfirmedHeads(
            journal,
            clock=clock,
            interval_s=self._settings.head_ms / 1000,
            position=lambda: self.position,
            is_same=lambda: self._is_same,
            wanted=self.nudge,
            answered=self._note_answer,
            on_reading=on_reading or (lambda _: None),
        )

    def nudge(self) -> None:
        """There are rows to be read, probably."""
        self._wake.set()

    @property
    def is_same(self) -> bool:
        """Whether it was looked, since the journal last failed or was doubted, that it holds what
        was applied here."""
        return self._is_same

    def hurry(self) -> None:
        """Something waits for the look: try now, whatever the back-off says."""
        self._hurry.set()

    def doubt(self) -> None:
        """Something else of the journal failed: it is looked again before anything is confirmed."""
        self._is_checked = self._is_same = False
        self.nudge()

    async def between(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in the executor while nothing is being applied."""
        async with self._writing:
            return await _run_whole(self._executor, work)

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            JournalOlderError: the journal lost what was applied here.
            NotFoundError: rows that this replica needs were trimmed; it bootstraps again.
            CorruptDataError: a row that the machine doesn't know, or damaged storage.
            FatalStorageError: the replica can't be written.
        """
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._follow()), loop.create_task(self.heads.run())]
        raised: BaseException | None = None
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except BaseException as error:
            raised = error
            if isinstance(error, PenstockError):
                self.heads.fail(error)
            raise
        finally:
            try:
                await end_tasks(tasks, Cause.FOLLOW_JOURNAL, raised=raised)
            finally:
                self.heads.fail(RetryableError("follow journal", "journal", "it was closed"))

    # -- inside ----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        settings = self._settings
        failures = 0
        while True:
            try:
                if not self._is_checked:
                    self._is_checked = True
                    await self._check_same_journal()
                    # False if the journal failed meanwhile: then it is looked again.
                    self._is_same = self._is_checked
                    self.heads.moved(self.position)
                await self._step()
                failures = 0
            except StorageFullError as error:
                # The journal is there, and its rows go on being read.
                heard(Cause.DATABASE_FULL, error, logger, "rows wait for space in the replica")
                self._ahead.clear()
                await self._pause(settings.full_again_ms)
            except RetryableError as error:
                self._ahead.clear()
                self._note_answer(error)
                failures += 1
                await self._back_off(settings.backoff.after(failures))

    async def _step(self) -> None:
        """Read once and apply what that allows; wait if there is nothing to do."""
        began_s = self._clock.monotonic_s()
        self._wake.clear()
        if self._ahead:
            await self._mind_gap()
            return
        rows = await self._journal.read(self.position, self._settings.page_rows)
        self._note_answer(None)
        self._ahead = {row.position: row for row in rows}
        await self._apply_dense()
        if not self._ahead and len(rows) < self._settings.page_rows:
            self.heads.read_all(began_s)
            await self._idle()

    async def _apply_dense(self) -> None:
        """Apply what follows on."""
        dense: list[JournalRow] = []
        while self.position + len(dense) + 1 in self._ahead:
            dense.append(self._ahead.pop(self.position + len(dense) + 1))
        if dense:
            await self._apply(dense)

    async def _apply(self, rows: list[JournalRow]) -> None:
        async with self._writing:
            is_short = sum(len(row.body) for row in rows) <= self._settings.inline_bytes_max
            if is_short and self._full_s is None:
                followed, failure = self._apply_rows(rows)
            else:
                followed, failure = await _run_whole(self._executor, lambda: self._apply_rows(rows))
            if followed:
                last = followed[-1]
                self._mark = RowMark.of(rows[len(followed) - 1])
                self.position = last.position
                self.time_ms = last.time_ms
                self._deliver(followed)
                self.heads.moved(self.position)
        if failure is not None:
            raise failure

    def _apply_rows(
        self, rows: list[JournalRow]
    ) -> tuple[list[Applied[OutcomeT]], StorageFullError | None]:
        """Apply rows, in the executor. What was applied is returned, also when there was no space
        for the rest, or to commit it: the replica applies it again by itself if its transaction was
        lost.

        Returns:
            What was applied, and why the rest was not; None: all was.
        """
        followed: list[Applied[OutcomeT]] = []
        replica = self._replica
        began_s = self._clock.monotonic_s()
        try:
            for row in rows:
                applied = replica.apply(row.body, stamp_ms=row.stamp_ms, position=row.position)
                applied.body = row.body
                followed.append(applied)
                if self._pins is not None and self._pins.wants(applied.outcome):
                    # The rows of one read are one commit, else: a state between has no reader.
                    replica.commit()
                    self._pins.pin(row.position)
            if began_s >= self._commit_after_s:
                replica.commit()
                self._note_space()
        except StorageFullError as error:
            self._note_full(began_s, error)
            return followed, None if len(followed) == len(rows) else error
        if self._full_s is not None:
            # It may be this batch before which all that waits was applied again.
            self._leave_time(began_s)
        return followed, None

    def _note_full(self, began_s: float, error: StorageFullError) -> None:
        if self._full_s is None:
            self._full_s = began_s
        self._commit_after_s = self._clock.monotonic_s() + self._settings.full_again_ms / 1000
        self._leave_time(began_s)
        heard(
            Cause.DATABASE_FULL,
            error,
            logger,
            "entries are applied in memory alone until the replica's disk has space",
        )

    def _leave_time(self, began_s: float) -> None:
        """Commit no sooner than after ten times as long as that took."""
        now_s = self._clock.monotonic_s()
        self._commit_after_s = max(self._commit_after_s, now_s + 10 * (now_s - began_s))

    def _note_space(self) -> None:
        if self._full_s is not None:
            away_s = self._clock.monotonic_s() - self._full_s
            logger.info("the replica's disk has space again, after %.1f s", away_s)
            self._full_s, self._commit_after_s = None, float("-inf")

    async def _mind_gap(self) -> None:
        """Rows are there, but not the next one: wait a little for it, then settle the matter."""
        settings = self._settings
        missing = self.position + 1
        now_s = self._clock.monotonic_s()
        if self._gap_s is None or self._gap_s[0] != missing:
            self._gap_s = (missing, now_s)
        # Only what fills the gap is read: what lies behind it is here.
        row = await self._journal.row(missing)
        self._note_answer(None)
        if row is not None:
            self._ahead[missing] = row
            await self._apply_dense()
            return
        gap_ms = settings.awaited_gap_ms if self.heads.awaited else settings.gap_ms
        if (now_s - self._gap_s[1]) * 1000 < gap_ms:
            await self._pause(settings.gap_poll_ms)
            return
        # The gaps further on are about as old; one by one each would cost its own wait.
        positions = [
            position for position in range(missing, max(self._ahead)) if position not in self._ahead
        ]
        await self._journal.seal(positions[: settings.page_rows])
        self._ahead.clear()

    async def _check_same_journal(self) -> None:
        """See that the journal still holds what was applied here.

        Raises:
            JournalOlderError: it doesn't.
        """
        position = self.position
        mark = self._mark
        row = None if mark is None else await self._journal.row(mark.position)
        if row is not None:
            if RowMark.of(row) != mark:
                raise journal_older(position, f"another row is at position {row.position}")
            return
        head = await self._journal.head()
        if head.position < position:
            raise journal_older(position, f"its head is {head.position}")
        if mark is not None and mark.position >= head.first:
            raise journal_older(position, f"no row is at position {mark.position}")

    def _note_answer(self, error: RetryableError | None) -> None:
        if error is not None:
            # Whatever comes back may be another database: it is looked at first.
            self._is_checked = self._is_same = False
            self.answering_since_s = None
            self.away_detail = str(error)
        elif self.answering_since_s is None:
            self.answering_since_s = self._clock.monotonic_s()

    async def _idle(self) -> None:
        """Wait for a nudge, a hint, or the next poll."""
        timeout_s = self._settings.poll_ms / 1000
        hint = asyncio.get_running_loop().create_task(self._journal.wait(self.position, timeout_s))
        hint.add_done_callback(self._take_hint)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            hint.cancel()

    def _take_hint(self, hint: "asyncio.Task[None]") -> None:
        # One that failed is none: the poll comes.
        if not hint.cancelled() and hint.exception() is None:
            self._wake.set()

    async def _back_off(self, duration_s: float) -> None:
        """Let time pass before the journal is tried again, or until `hurry`."""
        self._hurry.clear()
        try:
            async with asyncio.timeout(duration_s):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _pause(self, duration_ms: int) -> None:
        """Let time pass; the event loop's timers own it."""
        loop = asyncio.get_running_loop()
        passed = loop.create_future()
        timer = loop.call_later(duration_ms / 1000, passed.set_result, None)
        try:
            await passed
        finally:
            timer.cancel()


async def _run_whole(executor: Executor | None, work: Callable[[], ResultT]) -> ResultT:
    """Run in the executor; a cancelled caller still waits for the end, since what runs there
    writes."""
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise
