"""An instance's end of a journal that several instances share.

The shard's database follows the journal and orders what environments are to apply; each
environment's own database is brought along by a `StreamFollower`, which is fed from here. All of
them are copies, unsynced: what a power cut takes is applied again from the shard's table `pending`,
or from the journal.

```
DIR/instance              this instance's number in the journal
DIR/shard.sqlite          environments, keys, and what is pending
DIR/environments/         a database for each environment
DIR/lost-N/               all of these, as they were when the journal came back without their end
```
"""

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from penstock.authz.service.archiving import SHARD_FILE
from penstock.authz.state import shard_entries
from penstock.authz.state.entries import (
    Command,
    CreateEnvironment,
    Done,
    Outcome,
    Refused,
)
from penstock.authz.state.shard import (
    DirectoryChanged,
    HistoryBegan,
    ShardChange,
    ShardMachine,
    ShardOutcome,
    Streamed,
)
from penstock.authz.state.shard_entries import (
    Decided,
    Denied,
    Item,
    Placed,
    ShardAnswer,
    Unordered,
)
from penstock.model.errors import (
    CorruptDataError,
    InDoubtError,
    JournalOlderError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.order.cluster_order import ClusterOrder, ClusterOrderSettings
from penstock.order.entry_window import ENTRY_WEIGHT_MAX
from penstock.order.port import AppliedEntries
from penstock.order.protocol import AgentIdentity, CommandProtocol, EntryRefusal
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal
from penstock.ports.random import Random
from penstock.replica import copies, tokens
from penstock.replica.database import connect_reader, translate
from penstock.replica.replica import Replica
from penstock.replica.upkeep import Upkeep
from penstock.system.files import make_folder
from penstock.system.heard import Cause, heard
from penstock.version import VERSION

logger = logging.getLogger(__name__)

WRITE_WAIT_S: Final = 4.0
"""How long a write waits for its answer; Oso's Python client gives up after 5 s."""
TAIL_MAX: Final = 1_000
"""Entries of an environment that may be pending; then its database is opened and applies them."""
_COMMIT_ENTRIES: Final = 1_000
_DISTRUSTED: Final = "distrusted"
"""A file: a database holds what the journal has not, up to this journal time."""
_COPIES: Final = (
    *(f"{SHARD_FILE}{suffix}" for suffix in ("", "-wal", "-shm")),
    "environments",
    "snapshots",
    _DISTRUSTED,
)


class SharedJournal(Journal, Protocol):
    """A journal that says which cluster it is of."""

    @property
    def cluster_id(self) -> str:
        """The id that the journal's first user gave it."""
        ...


Restore = Callable[[SharedJournal], Awaitable[object]]


async def _nothing(journal: SharedJournal) -> None:
    """There are no snapshots."""


class Fed(Protocol):
    """An open environment, which applies what is streamed to it."""

    def feed(self, streamed: Streamed, *, is_own: bool) -> None:
        """Apply an entry soon. `is_own`: a write of this instance waits for its outcome."""
        ...


class Shard:
    """Event loop only, but for what says otherwise."""

    def __init__(
        self,
        order: ClusterOrder[Item, ShardAnswer, ShardChange],
        journal: SharedJournal,
        machine: ShardMachine,
        folder: Path,
        *,
        random: Random,
        executor: ThreadPoolExecutor,
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Use `open`."""
        self._order = order
        self.journal = journal
        self._machine = machine
        self._folder = folder
        self._random = random
        self._executor = executor
        self._failed = failed
        self.path = folder / SHARD_FILE
        self._reader = connect_reader(self.path)
        self._fed: dict[str, Fed] = {}
        self._tails: dict[str, int] = {}
        """Pending entries of environments that aren't open, about."""
        self._upkeep = Upkeep(order, executor, failed=failed)
        row = self._reader.execute("SELECT history FROM shard").fetchone()
        self.history: bytes = b"" if row is None else row[0]
        """The history that tokens are of: another one since the journal came back older."""
        self._has_directory_changed = False
        """And is to be read."""
        self.on_directory: Callable[[], None] = lambda: None
        """Called when environments or keys have changed."""
        self.on_long_tail: Callable[[str], None] = lambda _: None
        """Called with an environment whose database has to be opened."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        open_journal: Callable[[], Awaitable[SharedJournal]],
        *,
        clock: Clock,
        random: Random,
        executor: ThreadPoolExecutor,
        failed: Callable[[PenstockError], None],
        restore: Restore = _nothing,
    ) -> "Shard":
        """Open this instance's copies, brought to the journal's head, and write from now on.

        Args:
            executor: has the disk's work.
            restore: makes the copies of snapshots, where there are none, or none that are of use.
            failed: is called when this instance can't go on.
        Raises:
            RetryableError: the journal doesn't answer.
            NotFoundError: its beginning is trimmed, and there are no snapshots.
            OtherClusterError: the folder is of another journal.
            PenstockError: a database can't be opened.
        """
        if (folder / _DISTRUSTED).exists():
            text = (folder / _DISTRUSTED).read_text("ascii", "replace")
            copies.note_lost(folder, int(text) if text.isdecimal() else 0)
            copies.set_aside(folder, _COPIES)
        instance = copies.instance_number(folder, random)
        journal = await open_journal()
        try:
            if not (folder / SHARD_FILE).exists():
                await restore(journal)
            try:
                shard = await cls._open(folder, journal, instance, clock, random, executor, failed)
            except (JournalOlderError, CorruptDataError, NotFoundError) as error:
                # Not found: the journal is trimmed beyond what these copies have.
                if isinstance(error, JournalOlderError):
                    copies.note_lost(folder, copies.time_of(folder / SHARD_FILE))
                kept = copies.set_aside(folder, _COPIES)
                heard(
                    Cause.AUTHZ_JOURNAL,
                    error,
                    logger,
                    f"this instance's databases are kept in {kept}, and made again",
                    logging.ERROR,
                )
                await restore(journal)
                shard = await cls._open(folder, journal, instance, clock, random, executor, failed)
        except BaseException:
            await journal.close()
            raise
        try:
            await shard._start()  # noqa: SLF001 - it is this class
        except BaseException:
            await shard.close()
            raise
        return shard

    @classmethod
    async def _open(
        cls,
        folder: Path,
        journal: SharedJournal,
        instance: int,
        clock: Clock,
        random: Random,
        executor: ThreadPoolExecutor,
        failed: Callable[[PenstockError], None],
    ) -> "Shard":
        make_folder(folder / "environments")
        machine = ShardMachine()
        replica: Replica[ShardOutcome] = Replica.open(
            folder / SHARD_FILE, machine, fsync=False, keeps_journal=False
        )
        try:
            order: ClusterOrder[Item, ShardAnswer, ShardChange] = await ClusterOrder.open(
                journal,
                replica,
                machine,
                _OneLevel(),
                PROTOCOL,
                identity=AgentIdentity(agent_id=instance, software=VERSION),
                cluster_id=journal.cluster_id,
                clock=clock,
                random=random,
                settings=ClusterOrderSettings(commit_timeout_s=WRITE_WAIT_S),
            )
        except BaseException:
            replica.close()
            raise
        return cls(order, journal, machine, folder, random=random, executor=executor, failed=failed)

    async def _start(self) -> None:
        await self._order.start(on_applied=self._on_applied, on_stopped=self._failed)
        lost_ms = copies.lost_ms(self._folder)
        if lost_ms is not None:
            new = shard_entries.new_history(lost_ms, self._random.token_bytes(tokens.LOG_BYTES))
            await self._order.commit([new])
            copies.forget_lost(self._folder)

    async def close(self) -> None:
        """Follow no more, and close the database."""
        await self._order.close()
        await self._upkeep.wait()
        self._reader.close()

    # -- how far it is ---------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The position of the journal that is applied here."""
        return self._order.position

    @property
    def head_confirmed_s(self) -> float:
        """Monotonic time before the last look at the journal at which nothing was missing here."""
        return self._order.head_confirmed_s

    @property
    def answering_since_s(self) -> float | None:
        """Monotonic time since which the journal answers; None: it is away."""
        return self._order.answering_since_s

    # -- writing ---------------------------------------------------------------------------------

    async def order(self, environment: str, command: Command) -> Placed | Outcome:
        """Give a command its place in the order of an environment; the directory, if it is empty.

        Raises:
            RetryableError: the journal is away; nothing was written.
            InDoubtError: no answer in time; it may still be applied.
        """
        if isinstance(command, CreateEnvironment):
            command = CreateEnvironment(command.name, self._random.token_bytes(tokens.LOG_BYTES))
        item = shard_entries.item(environment, command)
        try:
            (answer,) = await self._order.commit([item])
        except InDoubtError as error:
            raise InDoubtError(
                "write",
                f"environment {environment}" if environment else "the directory",
                f"it was sent to the journal and may still be applied: {error.detail}",
                "read it, or try again",
            ) from error
        except RetryableError as error:
            raise RetryableError(
                "write",
                f"environment {environment}" if environment else "the directory",
                f"nothing was written: {error.detail}",
                "try again",
            ) from error
        match answer:
            case Placed():
                return answer
            case Decided():
                return Done(answer.position, answer.changed)
            case Denied():
                return Refused(answer.reason, number=answer.number)
            case _:
                raise AssertionError(answer)

    async def claim(self, hold_ms: int) -> bool:
        """Claim the taking of snapshots for a time; False: another instance holds it.

        Raises:
            RetryableError: the journal is away.
            InDoubtError: no answer in time.
        """
        (answer,) = await self._order.commit([shard_entries.claim(hold_ms)])
        return isinstance(answer, Decided)

    async def confirm(self, timeout_s: float) -> None:
        """Return once all that the journal had at the call is applied to the shard.

        Raises:
            RetryableError: it doesn't answer in time.
        """
        await self._order.confirm_head(timeout_s)

    # -- what is streamed to environments --------------------------------------------------------

    def attach(self, name: str, fed: Fed) -> None:
        """Feed an environment from now on; what was pending before is caught up already."""
        self._fed[name] = fed
        self._tails.pop(name, None)

    def detach(self, name: str) -> None:
        """Feed it no more."""
        self._fed.pop(name, None)

    def long_tails(self) -> list[str]:
        """Give the environments of which too much is pending, as the database has it."""
        rows = self._reader.execute(
            "SELECT environment, count(*) FROM pending GROUP BY environment"
        ).fetchall()
        self._tails = dict(rows)
        return [name for name, count in rows if count >= TAIL_MAX]

    def catch_up(self, name: str, replica: Replica[list[Outcome]]) -> None:
        """Apply what is pending of an environment to its database.

        Raises:
            JournalOlderError: the database holds what the journal has not.
            RetryableError: the environment isn't here yet.
            CorruptDataError: entries are missing.
        """
        if not self._order.shows_answers:
            # What was fed already would be missing here.
            detail = "the disk is full, and entries are applied in memory alone"
            raise RetryableError("open", f"environment {name}", detail, "free some space")
        try:
            row = self._reader.execute(
                "SELECT position FROM stream WHERE environment = ?", (name,)
            ).fetchone()
            if row is None:
                raise RetryableError("open", f"environment {name}", "it isn't here yet")
            if replica.position > row[0]:
                raise self._distrust(
                    name, replica.position, f"{row[0]} is its last", replica.time_ms
                )
            self._compare(name, replica)
            rows = self._reader.execute(
                "SELECT position, time_ms, body FROM pending"
                " WHERE environment = ? AND position > ? ORDER BY position",
                (name, replica.position),
            )
            for count, (position, time_ms, body) in enumerate(rows, 1):
                replica.apply(body, stamp_ms=time_ms, position=position)
                if not count % _COMMIT_ENTRIES:
                    replica.commit()
            replica.commit()
        except sqlite3.Error as error:
            raise translate(error, "read pending entries", str(self.path)) from error
        if replica.position < row[0]:
            raise CorruptDataError(
                "open",
                f"environment {name}",
                f"entries {replica.position + 1} to {row[0]} aren't in {self.path}",
                f"remove {self._folder}: the next start makes it again from the journal",
            )

    def stored(self, name: str, position: int) -> None:
        """An environment's database holds, durably, what was streamed up to a position."""
        self._machine.stored(name, position)

    # -- inside ----------------------------------------------------------------------------------

    def _on_applied(self, applied: AppliedEntries[ShardAnswer, ShardChange]) -> None:
        me = (self._order.agent_id, self._order.epoch)
        long: set[str] = set()
        for entry in applied:
            key = shard_entries.key_of(entry.body)
            is_own = (key.agent, key.epoch) == me
            for change in entry.outcome.changes:
                if isinstance(change, DirectoryChanged):
                    self._has_directory_changed = True
                    continue
                if isinstance(change, HistoryBegan):
                    self.history = change.history
                    continue
                fed = self._fed.get(change.environment)
                if fed is not None:
                    fed.feed(change, is_own=is_own)
                    continue
                tail = self._tails.get(change.environment, 0) + 1
                self._tails[change.environment] = tail
                if not tail % TAIL_MAX:
                    long.add(change.environment)
        if self._has_directory_changed:
            # Read again later where there was no space to commit it.
            self._has_directory_changed = not self._order.shows_answers
            self.on_directory()
        for name in sorted(long):
            self.on_long_tail(name)
        self._upkeep.look()

    def _compare(self, name: str, replica: Replica[list[Outcome]]) -> None:
        """See that a database's entries are those that are pending; it may have trimmed some.

        Raises:
            JournalOlderError: one is another.
        """
        rows = self._reader.execute(
            "SELECT position, body FROM pending WHERE environment = ? AND position <= ?",
            (name, replica.position),
        )
        with closing(connect_reader(replica.path)) as connection:
            for position, body in rows:
                own = connection.execute(
                    "SELECT body FROM journal WHERE position = ?", (position,)
                ).fetchone()
                if own is not None and own[0] != body:
                    raise self._distrust(name, position, "another entry is there", replica.time_ms)

    def _distrust(self, name: str, position: int, found: str, time_ms: int) -> JournalOlderError:
        """Have the next start make all copies again: one holds what the journal has not.

        Args:
            time_ms: up to which it holds entries.
        """
        (self._folder / _DISTRUSTED).write_text(str(time_ms), "ascii")
        error = JournalOlderError(
            "open",
            f"environment {name}",
            f"its database is at position {position}, and in the journal {found}",
            "start again: this instance's databases are set aside then, and made again",
        )
        self._failed(error)
        return error


class _OneLevel:
    """Implements `Levels`: there is one feature level so far."""

    is_highest = True
    ends_epochs = False

    def refusal(self, commands: Sequence[Item]) -> RetryableError | None:  # noqa: ARG002
        """See `Levels`."""
        return None

    def follow(self, changes: Sequence[ShardChange]) -> None:
        """See `Levels`."""


def _weigh(items: Sequence[Item]) -> int:
    """A command that is alone fills an entry; bytes say how much others have."""
    return sum(
        ENTRY_WEIGHT_MAX if item.is_alone else 1 + len(memoryview(item.command)) // 64
        for item in items
    )


def _opening(identity: AgentIdentity, cluster_id: str, token: bytes) -> list[Item]:
    return [shard_entries.opening(cluster_id, token, identity.software)]


def _ending(agent: int, epoch: int) -> Item:
    raise AssertionError((agent, epoch))


def _refusal(answer: ShardAnswer) -> EntryRefusal | None:
    if not isinstance(answer, Unordered):
        return None
    return EntryRefusal("refused by its key", answer.detail, answer.ends_epoch)


def _never(item: Item) -> bool:  # noqa: ARG001
    return False


PROTOCOL: Final[CommandProtocol[Item, ShardAnswer]] = CommandProtocol(
    encode=shard_entries.encode,
    key_of=shard_entries.key_of,
    weigh=_weigh,
    opening=_opening,
    ending=_ending,
    refusal=_refusal,
    is_beat=_never,
    is_given_up=_never,
    frees_space=_never,
    takes_space=lambda _: True,
    is_never_stopped=_never,
)
