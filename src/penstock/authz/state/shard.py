"""The state machine of a shard: a journal that many environments share, as one instance follows it.

It orders: each entry's commands get positions in their environments, and wait in `pending` until
this copy's database of the environment holds them. The directory's commands are applied here. An
entry that its sender sends again is known by its key. docs/formats/authz.md has tables and rules.
"""

import sqlite3
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.authz.state import entries, shard_entries
from penstock.authz.state.directory import DirectoryMachine
from penstock.authz.state.entries import Begin, CreateEnvironment, Done, Outcome
from penstock.authz.state.shard_entries import (
    CLAIM,
    HISTORY,
    OPENING,
    Decided,
    Denied,
    Item,
    Placed,
    ShardAnswer,
    ShardEntry,
    Unordered,
)
from penstock.model.errors import CorruptDataError
from penstock.order import outcome
from penstock.order.outcome import Standing

APPLICATION_ID: Final = 0x50415A53  # "PAZS"
FORMAT_VERSION: Final = 1
ANSWERED_KEPT: Final = 16
"""Entries of a sender whose answers are kept; twice what it has under way."""
SENDERS_MAX: Final = 1_000
"""Instances that may write; more make the one that wrote longest ago open a new epoch."""

_SCHEMA: Final = (
    """CREATE TABLE shard (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        cluster_id TEXT NOT NULL,
        history BLOB NOT NULL,
        since_ms INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE sender (
        agent INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        n INTEGER NOT NULL,
        position INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE answered (
        agent INTEGER NOT NULL,
        slot INTEGER NOT NULL,
        n INTEGER NOT NULL,
        answers BLOB NOT NULL,
        PRIMARY KEY (agent, slot)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE stream (
        environment TEXT PRIMARY KEY,
        position INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE claim (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        agent INTEGER NOT NULL,
        until_ms INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE pending (
        environment TEXT NOT NULL,
        position INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (environment, position)
    ) STRICT""",
)


@dataclass(frozen=True, slots=True)
class Streamed:
    """An entry of an environment, by its position there. `is_alone`: see `Item`."""

    environment: str
    position: int
    time_ms: int
    body: bytes
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class DirectoryChanged:
    """Environments or keys changed."""


@dataclass(frozen=True, slots=True)
class HistoryBegan:
    """Tokens are of this history from here on."""

    history: bytes


ShardChange = Streamed | DirectoryChanged | HistoryBegan
ShardOutcome = outcome.Outcome[ShardAnswer, ShardChange]


class ShardMachine:
    """Implements `penstock.replica.StateMachine` and `penstock.order.protocol.OrderedMachine`."""

    application_id = APPLICATION_ID
    format_version = FORMAT_VERSION
    oldest_version = 1

    def __init__(self) -> None:
        self._directory = DirectoryMachine()
        self._stored: dict[str, int] = {}
        """Positions up to which this copy's databases of environments hold what was pending."""

    # -- the machine's life ----------------------------------------------------------------------

    def create(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        self._directory.create(connection)
        for sql in _SCHEMA:
            connection.execute(sql)

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """See `StateMachine`."""
        raise AssertionError((connection, from_version))

    def bind(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        self._execute = connection.execute
        self._directory.bind(connection)

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:  # noqa: ARG002
        """See `StateMachine`."""
        return max(previous_ms, stamp_ms)

    def flush(self) -> None:
        """See `StateMachine`. Drop what this copy's other databases hold: `pending` is a part of
        this copy alone."""
        while self._stored:
            environment, position = self._stored.popitem()
            self._execute(
                "DELETE FROM pending WHERE environment = ? AND position <= ?",
                (environment, position),
            )

    def drop_caches(self) -> None:
        """See `StateMachine`."""

    def stored(self, environment: str, position: int) -> None:
        """A database holds, durably, the environment's entries up to a position. Any thread."""
        self._stored[environment] = position

    # -- as the order reads it -------------------------------------------------------------------

    def cluster_id(self) -> str:
        """See `OrderedMachine`."""
        row = self._execute("SELECT cluster_id FROM shard").fetchone()
        return "" if row is None else str(row[0])

    def next_epoch(self, agent_id: int, *, floor: int) -> int:
        """See `OrderedMachine`."""
        row = self._execute("SELECT epoch FROM sender WHERE agent = ?", (agent_id,)).fetchone()
        return max(0 if row is None else int(row[0]) + 1, floor)

    # -- applying --------------------------------------------------------------------------------

    def apply(self, position: int, time_ms: int, body: bytes) -> ShardOutcome:
        """See `StateMachine`."""
        if not body:
            return ShardOutcome(Standing.APPLIED, [], [])  # a seal
        entry = shard_entries.decode(body)
        settled = self._settled(entry)
        if settled is not None:
            return settled
        changes: list[ShardChange] = []
        answers = self._apply_items(position, time_ms, entry, changes)
        self._execute(
            "INSERT OR REPLACE INTO sender VALUES (?, ?, ?, ?)",
            (entry.agent, entry.epoch, entry.n, position),
        )
        self._execute(
            "INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)",
            (
                entry.agent,
                entry.n % ANSWERED_KEPT,
                entry.n,
                shard_entries.encode_answers(answers),
            ),
        )
        return ShardOutcome(Standing.APPLIED, answers, changes)

    def _settled(self, entry: ShardEntry) -> ShardOutcome | None:
        """Give the outcome of an entry that isn't its sender's next one; None: it is."""
        row = self._execute(
            "SELECT epoch, n FROM sender WHERE agent = ?", (entry.agent,)
        ).fetchone()
        epoch, last_n = row or (-1, -1)
        if entry.epoch > epoch:
            if entry.n == 0 and any(item.environment == OPENING for item in entry.items):
                self._begin_epoch(entry)
                return None
            return _refused(entry, f"epoch {entry.epoch} was never opened", ends_epoch=True)
        if entry.epoch < epoch:
            return _refused(
                entry, f"epoch {entry.epoch}, the instance's is {epoch}", ends_epoch=True
            )
        if entry.n == last_n + 1:
            return None
        stored = self._execute(
            "SELECT answers FROM answered WHERE agent = ? AND slot = ? AND n = ?",
            (entry.agent, entry.n % ANSWERED_KEPT, entry.n),
        ).fetchone()
        if stored is not None:
            return ShardOutcome(Standing.REPEATED, shard_entries.decode_answers(stored[0]), [])
        return _refused(entry, f"n {entry.n}, the instance's last is {last_n}", ends_epoch=False)

    def _begin_epoch(self, entry: ShardEntry) -> None:
        execute = self._execute
        execute("DELETE FROM answered WHERE agent = ?", (entry.agent,))
        forgotten = execute(
            "SELECT agent FROM sender WHERE agent <> ?"
            " ORDER BY position DESC, agent LIMIT -1 OFFSET ?",
            (entry.agent, SENDERS_MAX - 1),
        ).fetchall()
        for row in forgotten:
            execute("DELETE FROM sender WHERE agent = ?", row)
            execute("DELETE FROM answered WHERE agent = ?", row)

    def _apply_items(
        self, position: int, time_ms: int, entry: ShardEntry, changes: list[ShardChange]
    ) -> list[ShardAnswer]:
        """Apply an entry's items: the directory's here, others get places in their environments."""
        answers: list[ShardAnswer] = []
        placed: dict[str, tuple[int, list[msgspec.Raw], bool]] = {}
        for item in entry.items:
            name = item.environment
            if name == OPENING:
                cluster_id = shard_entries.opening_of(item).cluster_id
                self._execute("INSERT OR IGNORE INTO shard VALUES (1, ?, x'', 0)", (cluster_id,))
                answers.append(Decided(position, 1))
            elif name == HISTORY:
                answers.append(self._begin_history(position, time_ms, item, changes))
            elif name == CLAIM:
                answers.append(self._claim(position, time_ms, entry.agent, item))
            elif not name:
                answers.append(self._apply_directory(position, time_ms, item, changes))
            else:
                found = placed.get(name)
                if found is None:
                    row = self._execute(
                        "SELECT position FROM stream WHERE environment = ?", (name,)
                    ).fetchone()
                    if row is None:
                        answers.append(Denied(entries.MISSING))
                        continue
                    found = (row[0] + 1, [], False)
                at, commands, is_alone = found
                answers.append(Placed(at, len(commands)))
                commands.append(item.command)
                placed[name] = (at, commands, is_alone or item.is_alone)
        for name, (at, commands, is_alone) in placed.items():
            body = shard_entries.environment_entry(name, commands)
            changes.append(self._stream(Streamed(name, at, time_ms, body, is_alone)))
        return answers

    def _apply_directory(
        self, position: int, time_ms: int, item: Item, changes: list[ShardChange]
    ) -> ShardAnswer:
        command = shard_entries.directory_command(item)
        decided: Outcome = self._directory.decide(position, time_ms, command)
        if not isinstance(decided, Done):
            return Denied(decided.reason, decided.number)
        changes.append(DirectoryChanged())
        if isinstance(command, CreateEnvironment):
            if not command.log:
                raise CorruptDataError(
                    "apply entry", "shared authorization journal", f"entry {position} has no log"
                )
            begin = entries.encode(entries.Entry(command.name, (Begin(command.log),)))
            changes.append(self._stream(Streamed(command.name, 1, time_ms, begin)))
        return Decided(decided.position, decided.changed)

    def _begin_history(
        self, position: int, time_ms: int, item: Item, changes: list[ShardChange]
    ) -> ShardAnswer:
        new = shard_entries.history_of(item)
        # One that began later was begun for this loss, too, and the lost ones have no token of it.
        began = self._execute(
            "UPDATE shard SET history = ?, since_ms = ? WHERE since_ms <= ?",
            (new.history, time_ms, new.lost_ms),
        ).rowcount
        if not began:
            return Denied(entries.EXISTS)
        changes.append(HistoryBegan(new.history))
        return Decided(position, 1)

    def _claim(self, position: int, time_ms: int, agent: int, item: Item) -> ShardAnswer:
        hold_ms = shard_entries.claim_of(item).hold_ms
        held = self._execute(
            "SELECT 1 FROM claim WHERE agent <> ? AND until_ms > ?", (agent, time_ms)
        ).fetchone()
        if held is not None:
            return Denied(entries.EXISTS)
        self._execute("INSERT OR REPLACE INTO claim VALUES (1, ?, ?)", (agent, time_ms + hold_ms))
        return Decided(position, 1)

    def _stream(self, streamed: Streamed) -> Streamed:
        self._execute(
            "INSERT OR REPLACE INTO stream VALUES (?, ?)",
            (streamed.environment, streamed.position),
        )
        self._execute(
            "INSERT INTO pending VALUES (?, ?, ?, ?)",
            (streamed.environment, streamed.position, streamed.time_ms, streamed.body),
        )
        return streamed


def _refused(entry: ShardEntry, detail: str, *, ends_epoch: bool) -> ShardOutcome:
    refusal = Unordered(detail, ends_epoch)
    return ShardOutcome(Standing.REFUSED, [refusal for _ in entry.items], [])
