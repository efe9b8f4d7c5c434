"""One environment as the service uses it: its writer, its policy's plans, and its readers.

Short questions are answered on the event loop, from a connection of its own. One that is still
running after LOOP_S, or joins more than LOOP_STEPS facts, is asked again by a thread, so that no
question holds up the others.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from penstock.authz.facts.asking import Asking, Plans
from penstock.authz.polar.check import check
from penstock.authz.polar.errors import PolicyError
from penstock.authz.polar.program import Fact, Program, Value
from penstock.authz.polar.tabled import STEPS_MAX
from penstock.authz.service import keeping
from penstock.authz.service.following import StreamFollower
from penstock.authz.service.shard import Shard
from penstock.authz.service.writer import Writer, Writing
from penstock.authz.state.entries import (
    Begin,
    Entry,
    EnvironmentCommand,
    Outcome,
    SetPolicy,
    Write,
    encode,
)
from penstock.authz.state.environment import EnvironmentMachine
from penstock.model.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.replica import tokens
from penstock.replica.applied import Applied
from penstock.replica.arrivals import Arrivals
from penstock.replica.database import connect_reader, translate
from penstock.replica.replica import Replica
from penstock.replica.snapshot import JournalEntry

logger = logging.getLogger(__name__)

LOOP_S: Final = 0.02
LOOP_STEPS: Final = 3_000
QUESTION_S: Final = 20.0
"""A question that takes longer is refused, as the vendor's service does."""
TOKEN_WAIT_S: Final = 4.0
"""Oso's Python client gives up after 5 s."""
ARRIVAL_S: Final = 60.0
"""How long a snapshot waits for the entries that it needs."""
_PROGRESS_INSTRUCTIONS: Final = 20_000
_FOREIGN_MAX: Final = 1_000
_CACHED_STATEMENTS: Final = 512

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a position.

    Args:
        version: 0: none has been set.
        plans: None if this release can't read it; `problem` says why.
    """

    version: int
    filename: str
    source: str
    plans: Plans | None
    problem: str = ""

    @property
    def program(self) -> Program:
        """The checked policy. Raises: RetryableError: this release can't read it."""
        return self.ready.program

    @property
    def ready(self) -> Plans:
        """Its plans. Raises: RetryableError: this release can't read it."""
        if self.plans is None:
            raise RetryableError(
                "read", "policy", f"this release refuses the stored policy: {self.problem}"
            )
        return self.plans


class TooCostlyError(InvalidRequestError):
    """A question takes longer than a question may."""


class _Reader:
    """A connection with a deadline. One thread at a time uses it."""

    def __init__(self, path: Path, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._deadline_s = 0.0
        self.connection = connect_reader(path)
        self.connection.set_progress_handler(self._is_over, _PROGRESS_INSTRUCTIONS)

    def ask(self, ask: Callable[[sqlite3.Connection], T], *, seconds: float) -> T:
        """Ask in one read transaction. Raises: TooCostlyError: it takes longer."""
        self._deadline_s = self._monotonic_s() + seconds
        connection = self.connection
        try:
            connection.execute("BEGIN")
            try:
                return ask(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self.translated(error) from error

    def begin(self, seconds: float) -> sqlite3.Connection:
        """Give the connection for one statement, which has to end in time."""
        self._deadline_s = self._monotonic_s() + seconds
        return self.connection

    def translated(self, error: sqlite3.Error) -> PenstockError:
        """Give what an error means to the caller."""
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            return TooCostlyError("ask", "question", "it takes too long")
        return translate(error, "ask", "facts")

    def _is_over(self) -> bool:
        return self._monotonic_s() > self._deadline_s


class Environment:
    """One environment. Event loop only, but for what says otherwise."""

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        snapshots: Path,
        fsync: bool,
        clock: Clock,
        random: Random,
        writing: Executor,
        reading: ThreadPoolExecutor,
        failed: Callable[[PenstockError], None],
        shard: Shard | None = None,
    ) -> None:
        """Open, or create.

        Args:
            snapshots: the folder of its snapshots.
            shard: has the journal; None: it is the database's own.
        Raises:
            PenstockError: as `Replica.open` and `Shard.catch_up`.
        """
        self.name = name
        self.path = path
        self._snapshots = snapshots
        self._clock = clock
        self._reading = reading
        self._replica: Replica[list[Outcome]] = Replica.open(
            path, EnvironmentMachine(name), fsync=fsync
        )
        if shard is not None:
            try:
                shard.catch_up(name, self._replica)
            except BaseException:
                self._replica.close()
                raise
        elif not self._replica.position:
            begin = Entry(name, (Begin(random.token_bytes(tokens.LOG_BYTES)),))
            self._replica.append(encode(begin), stamp_ms=clock.now_ms())
        self._loop_reader = _Reader(path, clock.monotonic_s)
        self._threads = threading.local()
        self._thread_readers: list[_Reader] = []
        self.position = self._replica.position
        self.user_count = 0
        """Calls that are under way: it stays open for them."""
        self._shard = shard
        row = self._loop_reader.connection.execute("SELECT log FROM environment").fetchone()
        self._log: bytes = row[0]
        self._logs: dict[bytes, bytes] = {}
        """The name that tokens have for its history, by the last history of the shard."""
        self._foreign: set[bytes] = set()
        """Names that tokens of clients have, and that aren't of this environment."""
        self._candidate: Program | None = None
        self.policy = self._stored_policy()
        self._arrivals = Arrivals()
        self._writer: Writing[EnvironmentCommand]
        if shard is not None:
            self._writer = StreamFollower(
                shard,
                name,
                self._replica,
                executor=writing,
                applied=self._on_applied,
                failed=failed,
                upkeep=self._upkeep,
            )
        else:
            self._writer = Writer(
                self._replica,
                name,
                executor=writing,
                clock=clock,
                applied=self._on_applied,
                is_alone=lambda command: isinstance(command, SetPolicy),
                failed=failed,
                upkeep=self._upkeep,
            )

    @property
    def log(self) -> bytes:
        """The name of its history, in tokens."""
        if self._shard is None:
            return self._log
        history = self._shard.history
        if history not in self._logs:
            self._logs = {history: tokens.log_in(self._log, history)}
        return self._logs[history]

    @property
    def time_ms(self) -> int:
        """Journal time at `position`."""
        return self._replica.time_ms

    @property
    def is_idle(self) -> bool:
        """Whether it may be closed: it opens again for the next call."""
        return self._writer.is_idle and not self.user_count

    async def close(self) -> None:
        """End what waits, and close the database."""
        await self._writer.close()
        self._close()

    def close_idle(self) -> None:
        """Close the database, while nothing is under way."""
        self._writer.close_idle()
        self._close()

    def _close(self) -> None:
        for reader in (self._loop_reader, *self._thread_readers):
            reader.connection.close()
        self._replica.close()

    # -- writing ---------------------------------------------------------------------------------

    async def write(self, command: EnvironmentCommand) -> Outcome:
        """Apply a command durably. Raises: as `Writer.submit`."""
        weight = len(command.changes) if isinstance(command, Write) else 1
        return await self._writer.submit(command, weight=weight)

    def token(self, position: int) -> str:
        """Give the token of a position."""
        return tokens.encode(self.log, position)

    async def reach(self, token: str) -> None:
        """Wait until a token's position is applied here.

        Raises:
            RetryableError: it isn't after TOKEN_WAIT_S.
        """
        position = tokens.decode(token, self.log)
        if not position and self._is_strange(token):
            position = await self._look_again(token)
        try:
            await self._arrive(position, TOKEN_WAIT_S)
        except TimeoutError as error:
            raise RetryableError(
                "read",
                f"environment {self.name}",
                f"position {position} of the header OsoOffset isn't here yet; {self.position} is",
                "try again",
            ) from error

    def _is_strange(self, token: str) -> bool:
        """Whether a token may be of a history that has begun and isn't known here yet."""
        if self._shard is None or self._shard.answering_since_s is None:
            return False
        log = tokens.log_of(token)
        return log is not None and log not in self._foreign

    async def _look_again(self, token: str) -> int:
        """Give a token's position once all histories are known here. Raises: RetryableError."""
        assert self._shard is not None
        await self._shard.confirm(TOKEN_WAIT_S)
        position = tokens.decode(token, self.log)
        log = tokens.log_of(token)
        if not position and log is not None:
            # It won't ever be: a history's name is drawn when it begins.
            if len(self._foreign) >= _FOREIGN_MAX:
                self._foreign.clear()
            self._foreign.add(log)
        return position

    async def arrive(self, position: int) -> None:
        """Wait until a position is applied here. Raises: RetryableError: it takes too long."""
        try:
            await self._arrive(position, ARRIVAL_S)
        except TimeoutError as error:
            detail = f"position {position} isn't here yet; {self.position} is"
            raise RetryableError("wait", f"environment {self.name}", detail) from error

    async def _arrive(self, position: int, seconds: float) -> None:
        """Wait for a position. Raises: TimeoutError."""
        if position <= self.position:
            return
        await self._arrivals.wait(position, seconds)

    async def moved(self, position: int, seconds: float) -> bool:
        """Wait until something is applied after a position; return whether it is in time."""
        try:
            await self._arrive(position + 1, seconds)
        except TimeoutError:
            return False
        return True

    def _upkeep(self) -> None:
        """Take a snapshot where one is due. Any thread."""
        last = max((at for at, _ in keeping.snapshots(self._snapshots)), default=0)
        if self._replica.position - last >= keeping.SNAPSHOT_ENTRIES:
            keeping.keep(self._replica, self._snapshots)

    def journal(self, position: int, count: int) -> list[tuple[JournalEntry, frozenset[int]]]:
        """Read entries after a position, with the places of their commands that changed nothing.
        Any thread.

        Raises:
            NotFoundError: entries right after the position aren't kept any more.
        """
        connection = connect_reader(self.path)
        try:
            connection.execute("BEGIN")
            rows = connection.execute(
                "SELECT position, time_ms, body FROM journal WHERE position > ?"
                " ORDER BY position LIMIT ?",
                (position, count),
            )
            found = [JournalEntry(*row) for row in rows]
            if found and found[0].position != position + 1:
                raise NotFoundError(
                    "read",
                    "changes",
                    f"those after position {position} aren't kept any more; "
                    f"{found[0].position} is the first",
                    "begin without a token",
                )
            return [
                (
                    entry,
                    frozenset(
                        place
                        for (place,) in connection.execute(
                            "SELECT place FROM without_effect WHERE position = ?",
                            (entry.position,),
                        )
                    ),
                )
                for entry in found
            ]
        except sqlite3.Error as error:
            raise translate(error, "read journal", str(self.path)) from error
        finally:
            connection.close()

    def is_reached(self, token: str) -> bool:
        """Whether nothing has to be waited for."""
        position = tokens.decode(token, self.log)
        return position <= self.position if position else not self._is_strange(token)

    def _on_applied(
        self, applied: Applied[list[Outcome]], commands: list[EnvironmentCommand]
    ) -> None:
        if any(isinstance(command, SetPolicy) for command in commands):
            self.policy = self._stored_policy()
        self.position = applied.position
        self._arrivals.moved(self.position)

    # -- the policy ------------------------------------------------------------------------------

    def _stored_policy(self) -> Policy:
        row = self._loop_reader.connection.execute(
            "SELECT version, filename, source FROM policy ORDER BY version DESC LIMIT 1"
        ).fetchone()
        version, filename, source = row or (0, "", "")
        candidate, self._candidate = self._candidate, None
        if candidate is not None and candidate.source == source:
            return Policy(version, filename, source, Plans(candidate))
        try:
            return Policy(version, filename, source, Plans(check(source)))
        except PolicyError as error:
            return Policy(version, filename, source, None, error.message)

    def offer(self, program: Program) -> None:
        """Keep a checked policy, which is about to be set: it needn't be checked twice."""
        self._candidate = program

    # -- reading ---------------------------------------------------------------------------------

    def authorize(
        self, actor: Value, action: str, resource: Value, context: Sequence[Fact] = ()
    ) -> "bool | asyncio.Future[bool]":
        """Ask whether an actor may do an action to a resource. Raises: as `ask`."""
        plans = self.policy.ready
        if not context:
            checks = plans.checks(actor, action, resource, frozenset())
            if not checks:
                return False
            if len(checks) == 1 and checks[0].plan.sql:
                # One statement needs no transaction, and is most of what is asked.
                values = (actor.id, action, resource.id)
                bindings = checks[0].bindings(values, self._clock.now_ms() // 1000, {})
                connection = self._loop_reader.begin(LOOP_S)
                try:
                    found = connection.execute(checks[0].plan.sql, bindings).fetchone()
                except sqlite3.Error as error:
                    if not isinstance(self._loop_reader.translated(error), TooCostlyError):
                        raise self._loop_reader.translated(error) from error
                else:
                    return found is not None
        return self.ask(lambda _, asking: asking.authorize(actor, action, resource), context)

    def ask(
        self,
        ask: Callable[[Policy, Asking], T],
        context: Iterable[Fact] = (),
        *,
        is_long: bool = False,
    ) -> "T | asyncio.Future[T]":
        """Ask in one read transaction: here, or by a thread if it takes long.

        Args:
            is_long: it mostly does.
        Raises (itself or by the future):
            TooCostlyError: it takes longer than a question may.
            RetryableError: this release can't read the stored policy.
        """
        facts = tuple(context)
        now_s = self._clock.now_ms() // 1000
        policy = self.policy

        def once(connection: sqlite3.Connection, policy: Policy, steps: int) -> T:
            asking = Asking(policy.ready, connection, now_s=now_s, context=facts, steps=steps)
            return ask(policy, asking)

        if not is_long:
            try:
                return self._loop_reader.ask(
                    lambda connection: once(connection, policy, LOOP_STEPS), seconds=LOOP_S
                )
            except (TooCostlyError, OverloadedError):
                pass
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._reading, self._ask_by_thread, once)

    def _ask_by_thread(self, once: Callable[[sqlite3.Connection, Policy, int], T]) -> T:
        reader: _Reader | None = getattr(self._threads, "reader", None)
        if reader is None:
            reader = self._threads.reader = _Reader(self.path, self._clock.monotonic_s)
            self._thread_readers.append(reader)

        def asked(connection: sqlite3.Connection) -> T:
            row = connection.execute("SELECT policy_version FROM environment").fetchone()
            policy = self.policy
            if policy.version != row[0]:
                raise RetryableError("ask", "question", "the policy changes just now", "try again")
            return once(connection, policy, STEPS_MAX)

        try:
            return reader.ask(asked, seconds=QUESTION_S)
        except OverloadedError as error:
            raise TooCostlyError("ask", "question", error.detail) from error
        except TooCostlyError as error:
            detail = f"it takes longer than {QUESTION_S:.0f} s"
            raise TooCostlyError("ask", "question", detail) from error
