"""One instance of a replicated service: it follows the journal, submits to it, and answers reads.

```
DIR/lock           one process at a time
DIR/instance       this instance's number
DIR/state.sqlite   the tables, applied up to a position of the journal
DIR/lost-N/        the same, as it was when the journal came back without its end
```

The database is a copy, and unsynced: what a power cut takes of it is read from the journal again.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    InDoubtError,
    InvalidRequestError,
    JournalOlderError,
    NotFoundError,
    OtherClusterError,
    PenstockError,
    RetryableError,
)
from penstock.objects.opening import open_reliable_store
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.replica import copies, tokens
from penstock.replica.applied import Applied
from penstock.replica.arrivals import Arrivals
from penstock.replica.difference import aside_of, set_aside_if_different
from penstock.replica.follower import BACKOFF, Follower, FollowerSettings
from penstock.replica.replica import Replica
from penstock.replica.service import entries
from penstock.replica.service.comparing import Comparing, Verdict
from penstock.replica.service.entries import Kind, Outcome
from penstock.replica.service.hosting import HostedMachine
from penstock.replica.service.journals import ServiceJournal, open_journal
from penstock.replica.service.machine import Machine
from penstock.replica.service.reading import Readers, behind, first_row
from penstock.replica.service.snapshots import ServiceSnapshots
from penstock.replica.service.submitting import Submitter
from penstock.replica.service.values import Answer, Settings, Status, answer_of
from penstock.replica.snapshot_turns import SnapshotSettings, SnapshotTurns
from penstock.replica.upkeep import Upkeep
from penstock.system import background
from penstock.system.clock import SystemClock
from penstock.system.heard import Cause, heard
from penstock.system.lock import DirectoryLock
from penstock.system.randomness import SystemRandom
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

T = TypeVar("T")

STATE_FILE: Final = "state.sqlite"
JOURNAL_FILE: Final = "journal.sqlite"
_JOURNAL_ID: Final = "journal id"
_COPIES: Final = (STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm")


class AsyncService:
    """Event loop only: `async with await AsyncService.open(...) as service`."""

    def __init__(
        self,
        machine: HostedMachine,
        folder: Path,
        journal: str,
        settings: Settings,
        clock: Clock,
        random: Random,
        lock: DirectoryLock,
        snapshots: ObjectStore | None,
    ) -> None:
        """Use `open`."""
        self._machine = machine
        self._folder = folder
        self._path = folder / STATE_FILE
        self._location = journal
        self._settings = settings
        self._clock = clock
        self._random = random
        self._lock = lock
        self._instance = copies.instance_number(folder, random)
        self._applying = ThreadPoolExecutor(1, "apply")
        self._readers = Readers(self._path)
        self._journal: ServiceJournal | None = None
        self._replica: Replica[list[Outcome]] | None = None
        self._follower: Follower[list[Outcome]] | None = None
        self._following: asyncio.Task[None] | None = None
        self._upkeep: Upkeep | None = None
        self._away = "not reached yet"
        self._failure: PenstockError | None = None
        self._is_closed = False
        self._arrivals = Arrivals()
        self._submitter = Submitter(
            f"{self._instance}-{random.token_bytes(8).hex()}",
            random=random,
            wait_s=settings.wait_s,
            journal=self._reached_journal,
            written=self._nudge,
            why_away=self._why_away,
            is_over=lambda: self._is_closed or self._failure is not None,
            failed=self._fail,
        )
        self._history = b""
        self._log = b""
        self._snapshots = snapshots
        self._comparing: Comparing | None = None
        self._jobs: list[asyncio.Task[None]] = []
        self._turns: SnapshotTurns | None = None

    @classmethod
    async def open(
        cls,
        machine: Machine,
        folder: str | Path,
        *,
        journal: str = "",
        snapshots: str = "",
        settings: Settings | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> "AsyncService":
        """Open an instance, brought to the journal's head.

        With the journal away it opens all the same where it has a copy, and serves reads.

        Args:
            folder: this instance's own; made where it is missing.
            journal: a path or sqlite:///PATH for the instances of one host, postgresql://... for
                those of several; "": a file in the folder, for one instance.
            snapshots: a path, file://, s3://, gs:// or az:// URL, the same for all instances; "":
                none are taken, and the journal is kept whole.
        Raises:
            ConflictError: another process uses the folder.
            InvalidRequestError: the schema can't be replicated; or the folder or the journal is of
                another service.
            RetryableError: there is no copy yet, and the journal doesn't answer.
            PenstockError: the copy can't be used.
        """
        hosted = HostedMachine(machine)
        folder = Path(folder)
        clock, random = clock or SystemClock(), random or SystemRandom()
        lock = DirectoryLock.acquire(folder)
        try:
            store = None
            if snapshots:
                store = open_reliable_store(snapshots, clock=clock, random=random)
            service = cls(
                hosted,
                folder,
                journal or str(folder / JOURNAL_FILE),
                settings or Settings(),
                clock,
                random,
                lock,
                store,
            )
        except BaseException:
            lock.release()
            raise
        try:
            await service._start()
        except BaseException:
            await service.close()
            raise
        return service

    # -- writing ---------------------------------------------------------------------------------

    async def submit(
        self, value: Any, *, client: str | None = None, number: int | None = None
    ) -> Answer:
        """Have every instance apply a value, and return this one's answer to it.

        Args:
            value: None, bool, int, float, str, bytes, list or dict, of 1 MiB at most.
            client, number: name the submit: a second one of the same name is not applied, and gets
                the first one's answer. A client counts its numbers up; the answers to its last 64
                are kept. Without both, each submit is its own.
        Raises:
            RefusedError: the machine refuses it; nothing has changed.
            InvalidRequestError: it can't be submitted, or `apply` has failed on it.
            ConflictError: the number was used with another value, or is too old.
            RetryableError: the journal is away; nothing was written.
            InDoubtError: no answer in time; it may still be applied. Submitted again under the same
                client and number it is applied once.
        """
        if self._comparing is not None and self._comparing.refusal is not None:
            raise self._comparing.refusal
        packed = entries.pack(value)
        self._check_usable("submit")
        outcome = await self._submitter.submit(packed, client, number)
        return answer_of(outcome, self.token(outcome.position))

    # -- reading ---------------------------------------------------------------------------------

    async def read(self, ask: Callable[[sqlite3.Connection], T], *, token: str | None = None) -> T:
        """Ask this instance's database, in one read transaction, in a thread.

        Args:
            ask: is given a connection that can't write; what it returns must not need it any more.
            token: the answer has what the token's entry changed. One of a history that the journal
                has lost, or of another service, asks for nothing.
        Raises:
            InvalidRequestError: the token is damaged.
            RetryableError: this instance hasn't come to the token's entry in time.
        """
        position = await self._reach(token) if token is not None else 0
        self._check_usable("read", is_read=True)
        return await self._readers.ask(ask, position)

    def token(self, position: int | None = None) -> str:
        """Give the token of a position, or of what this instance has applied."""
        history = tokens.log_in(self._log, self._history)
        return tokens.encode(history, self._position if position is None else position)

    async def _reach(self, token: str) -> int:
        """Wait until a token's entry is applied; return its position."""
        log = tokens.log_of(token)
        if log is None:
            raise InvalidRequestError("read", "token", "it is damaged, or isn't a token")
        position = tokens.decode(token, tokens.log_in(self._log, self._history))
        follower = self._follower
        if not position and follower is not None and follower.answering_since_s is not None:
            # It may be of a history that has begun and isn't known here yet.
            await follower.heads.confirm(self._settings.wait_s)
            position = tokens.decode(token, tokens.log_in(self._log, self._history))
        if position > self._position:
            try:
                await self._arrivals.wait(position, self._settings.wait_s)
            except TimeoutError as error:
                raise behind(position, self._position, self._why_away()) from error
        return position

    async def catch_up(self) -> None:
        """Return once all that was in the journal at the call is applied here.

        Raises:
            RetryableError: the journal doesn't answer in time.
        """
        self._check_usable("catch up")
        if self._follower is None:
            raise RetryableError("catch up", "journal", self._away)
        await self._follower.heads.confirm(self._settings.wait_s)

    async def compare(self) -> bool:
        """Have all instances compare their tables; return whether all that answer are equal.

        It is done by itself once an hour. An instance that differs from most others stops.

        Raises:
            RetryableError: the journal doesn't answer in time.
        """
        self._check_usable("compare")
        if self._comparing is None:
            raise RetryableError("compare", "journal", self._away)
        return await self._comparing.compare(self._settings.wait_s) is Verdict.EQUAL

    @property
    def status(self) -> Status:
        """Say how far this instance is."""
        lag_s = None
        away = self._away
        if self._follower is not None:
            confirmed_s = self._follower.heads.confirmed_s
            if confirmed_s > float("-inf"):
                lag_s = max(0.0, self._clock.monotonic_s() - confirmed_s)
            away = ""
            if self._follower.answering_since_s is None:
                away = self._follower.away_detail
        return Status(
            position=self._position,
            time_ms=0 if self._replica is None else self._replica.time_ms,
            lag_s=lag_s,
            journal_is_away=away,
            failure="" if self._failure is None else str(self._failure),
        )

    # -- its life --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Submit and follow no more, and close the database; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._end(RetryableError("use", f"service {self._machine.name}", "it is closed"))
        if self._comparing is not None:
            await self._comparing.close()
        for task in self._jobs:
            task.cancel()
            await asyncio.wait([task])
        await self._submitter.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._upkeep is not None:
            await self._upkeep.wait()
        if self._journal is not None:
            await self._journal.close()
        self._applying.shutdown()
        await self._readers.close()
        if self._replica is not None:
            self._replica.close()
        self._lock.release()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def _start(self) -> None:
        if set_aside_if_different(self._path):
            logger.error("what differed is kept as %s, and made again", aside_of(self._path))
        try:
            self._journal = await self._open_journal()
        except RetryableError as error:
            if not self._path.exists():
                raise
            self._away = str(error)
            self._open_replica("")
            self._following = background.start(background.JOURNAL_CONNECTION, self._reach_journal)
            return
        try:
            await self._begin(self._journal)
        except (JournalOlderError, CorruptDataError, NotFoundError) as error:
            # Not found: the journal is trimmed beyond what this copy has.
            if isinstance(error, JournalOlderError):
                copies.note_lost(self._folder, copies.time_of(self._path))
            await self._let_go()
            kept = copies.set_aside(self._folder, _COPIES)
            saying = f"this instance's database is kept in {kept}, and made again"
            heard(Cause.REPLICA_COPY, error, logger, saying, logging.ERROR)
            self._journal = await self._open_journal()
            await self._begin(self._journal)
        lost_ms = copies.lost_ms(self._folder)
        if lost_ms is not None:
            new = entries.NewHistory(lost_ms, self._random.token_bytes(tokens.LOG_BYTES))
            await self._submit_own(entries.HISTORY, new)
            copies.forget_lost(self._folder)
        self._begin_jobs(self._journal)

    async def _submit_own(self, kind: str, value: object) -> Outcome:
        """Submit an item of the library itself."""
        self._check_usable("submit")
        return await self._submitter.submit_own(kind, value)

    async def _open_journal(self) -> ServiceJournal:
        async with asyncio.timeout(self._settings.open_s):
            return await open_journal(
                self._location, name=self._machine.name, clock=self._clock, random=self._random
            )

    async def _begin(self, journal: ServiceJournal) -> None:
        """Open the copy, and follow until it is at the head, or the journal is away."""
        if self._snapshots is not None and not self._path.exists():
            await self._in(self._snapshots, journal).restore(journal, self._machine.again)
        self._open_replica(journal.cluster_id)
        self._follow(journal)
        assert self._follower is not None
        while True:
            before = self._position
            try:
                await self._follower.heads.confirm(self._settings.wait_s)
            except InDoubtError:
                continue  # the follower is ending: the next call has its reason
            except RetryableError:
                if self._position == before and self._follower.answering_since_s is None:
                    return  # away: reads show the lag
            else:
                return

    def _open_replica(self, journal_id: str) -> None:
        replica: Replica[list[Outcome]] = Replica.open(
            self._path, self._machine, fsync=False, keeps_journal=False
        )
        self._replica = replica
        known = replica.local(_JOURNAL_ID)
        if known is None and journal_id:
            replica.set_local(_JOURNAL_ID, journal_id)
        elif journal_id and known != journal_id:
            raise OtherClusterError(
                "open",
                str(self._folder),
                f"its database follows the journal {known}, this one is {journal_id}",
                "use another folder, or the right journal",
                cluster_id=str(known),
            )
        self._log = sha256(str(known or journal_id).encode()).digest()[: tokens.LOG_BYTES]
        (history,) = first_row(self._path, "SELECT history FROM penstock_service")
        self._history = bytes(history)
        self._upkeep = Upkeep(replica, self._applying, failed=self._fail)
        self._comparing = Comparing(
            self._path,
            self._instance,
            version=self._machine.format_version,
            interval_s=self._settings.compare_s,
            settle_s=self._settings.settle_s,
            executor=self._readers.threads,
            clock=self._clock,
            submit=self._submit_own,
            failed=self._fail,
        )

    def _in(self, store: ObjectStore, journal: ServiceJournal) -> ServiceSnapshots:
        return ServiceSnapshots(
            store, journal_id=journal.cluster_id, path=self._path, executor=self._readers.threads
        )

    def _begin_jobs(self, journal: ServiceJournal) -> None:
        """Compare and take snapshots from now on."""
        assert self._comparing is not None
        assert self._replica is not None
        self._jobs = [background.start(background.COMPARE_TABLES, self._comparing.run)]
        if self._snapshots is None:
            return
        snapshots, replica = self._in(self._snapshots, journal), self._replica
        self._turns = SnapshotTurns(
            clock=self._clock,
            settings=SnapshotSettings(
                entries=self._settings.snapshot_entries,
                interval_s=self._settings.snapshot_s,
                look_s=self._settings.look_s,
            ),
            applied=lambda: self._position,
            newest=lambda: snapshots.newest(journal),
            claim=self._claim,
            take=lambda: snapshots.take(journal, replica.commit),
            cause=Cause.SNAPSHOT,
        )
        self._jobs.append(background.start(background.SERVICE_SNAPSHOTS, self._turns.run))

    async def _claim(self, hold_ms: int) -> bool:
        claim = entries.Claim(self._instance, hold_ms)
        return (await self._submit_own(entries.CLAIM, claim)).kind is Kind.DONE

    def _follow(self, journal: ServiceJournal) -> None:
        assert self._replica is not None
        self._journal = journal
        self._follower = Follower(
            journal,
            self._replica,
            clock=self._clock,
            executor=self._applying,
            deliver=self._deliver,
            settings=FollowerSettings(),
            pins=None if self._comparing is None else self._comparing.pins,
        )
        self._following = background.start(
            background.FOLLOW_JOURNAL, partial(self._run, self._follower)
        )

    async def _reach_journal(self) -> None:
        """Open the journal once it answers, then follow."""
        failures = 0
        while True:
            failures += 1
            await wait(BACKOFF.after(failures))
            try:
                journal = await self._open_journal()
            except (RetryableError, TimeoutError) as error:
                heard(Cause.FOLLOW_JOURNAL, error, logger, "the journal is tried again")
                self._away = str(error)
                continue
            except PenstockError as error:
                self._fail(error)
                return
            break
        assert self._replica is not None
        known = self._replica.local(_JOURNAL_ID)
        if known != journal.cluster_id:
            await journal.close()
            detail = f"its database follows the journal {known}, this is {journal.cluster_id}"
            self._fail(InvalidRequestError("open", str(self._folder), detail))
            return
        self._follow(journal)
        self._begin_jobs(journal)

    async def _run(self, follower: Follower[list[Outcome]]) -> None:
        try:
            await follower.run()
        except PenstockError as error:
            self._fail(error)
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            self._fail(FatalStorageError("follow", "journal", detail, "see the log"))
            raise

    async def _let_go(self) -> None:
        """Close what `_begin` has opened: the instance begins again."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._upkeep is not None:
            await self._upkeep.wait()
        if self._replica is not None:
            self._replica.close()
        if self._journal is not None:
            await self._journal.close()
        if self._comparing is not None:
            await self._comparing.close()
        self._following = self._follower = self._upkeep = self._comparing = None
        self._replica = self._journal = None
        self._failure = None

    # -- inside ----------------------------------------------------------------------------------

    def _deliver(self, applied: list[Applied[list[Outcome]]]) -> None:
        for one in applied:
            for outcome in one.outcome:
                if outcome.client == entries.HISTORY:
                    self._history = outcome.value
                elif outcome.client.startswith(entries.RESERVED) and self._comparing is not None:
                    self._comparing.follow(outcome)
                self._submitter.answer(outcome)
        self._arrivals.moved(applied[-1].position)
        if self._upkeep is not None:
            self._upkeep.look()

    def _reached_journal(self) -> ServiceJournal:
        if self._journal is None:
            raise RetryableError("append", "journal", self._away)
        return self._journal

    def _nudge(self) -> None:
        assert self._follower is not None
        self._follower.nudge()

    @property
    def _position(self) -> int:
        if self._follower is not None:
            return self._follower.position
        return 0 if self._replica is None else self._replica.position

    def _fail(self, error: PenstockError) -> None:
        """Nothing more can be applied."""
        if self._failure is None and not self._is_closed:
            self._failure = error
            logger.error("the service %s stops: %s", self._machine.name, error)
        self._end(error)

    def _end(self, error: PenstockError) -> None:
        self._arrivals.fail(error)
        self._submitter.end(error)

    def _check_usable(self, operation: str, *, is_read: bool = False) -> None:
        subject = f"service {self._machine.name}"
        if self._is_closed:
            raise RetryableError(operation, subject, "it is closed")
        if self._failure is not None and not (is_read and self._is_readable):
            raise self._failure

    @property
    def _is_readable(self) -> bool:
        """Whether what is here may be read though nothing more is applied."""
        return isinstance(self._failure, NotFoundError)

    def _why_away(self) -> str:
        away = self.status.journal_is_away
        return f", and the journal is away: {away}" if away else ""
