"""A toy: agents add to one sum. No type of the log is in it, and all three orders run it."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.model.errors import RetryableError
from penstock.order.host.relaying import RelayedEntry, RelayProtocol
from penstock.order.outcome import Outcome, Standing
from penstock.order.protocol import AgentIdentity, CommandProtocol, EntryKey, EntryRefusal

Command = list[Any]
"""A name, and what it takes: ["add", 5]."""
Answer = int | list[Any]
"""The sum, or why nothing was changed: [reason, detail, whether the epoch is over]."""
Change = int
"""The feature level that is on from here."""
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Toy:
    """The state machine; an entry is [agent, epoch, n, stamp, commands]."""

    application_id, format_version, oldest_version = 0x746F79, 1, 1

    def create(self, connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE cells (name TEXT PRIMARY KEY, value) WITHOUT ROWID")
        connection.execute("CREATE TABLE agents (agent INTEGER PRIMARY KEY, epoch, n)")
        key = "PRIMARY KEY (agent, epoch, n)"
        connection.execute(f"CREATE TABLE entries (agent, epoch, n, answers, {key})")

    def bind(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        raise AssertionError(from_version)

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:
        return max(previous_ms, stamp_ms)

    def flush(self) -> None:
        """Nothing is in memory only."""

    drop_caches = flush

    def apply(self, position: int, time_ms: int, body: bytes) -> Outcome[Answer, Change]:
        self.set("position", position)
        return self.take(unpack(body)) if body else Outcome(Standing.APPLIED, [], [])

    def take(self, entry: list[Any]) -> Outcome[Answer, Change]:
        agent, epoch, n, _, commands = entry
        key = (agent, epoch, n)
        found = self.execute("SELECT epoch, n FROM agents WHERE agent = ?", (agent,)).fetchone()
        known, last = found or (0, -1)
        said = "SELECT answers FROM entries WHERE (agent, epoch, n) = (?, ?, ?)"
        if stored := self.execute(said, key).fetchone():
            return Outcome(Standing.REPEATED, unpack(stored[0]), [])
        if epoch < known or (epoch > known and n > 0):
            return Outcome(Standing.REFUSED, [["OVER", f"{known} is open", True]], [])
        if epoch == known and n != last + 1:
            return Outcome(Standing.REFUSED, [["EARLY", f"{last} is the last", False]], [])
        self.execute("REPLACE INTO agents VALUES (?, ?, ?)", key)
        changes: list[Change] = []
        answers = [self.do(changes, *command) for command in commands]
        self.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (*key, pack(answers)))
        return Outcome(Standing.APPLIED, answers, changes)

    def do(self, changes: list[Change], name: str, *given: Any) -> Answer:
        match name:
            case "relay":
                relayed = self.take(unpack(given[0]))
                changes += relayed.changes
                return [int(relayed.standing), relayed.answers]
            case "cluster":
                self.set("cluster", given[0])
            case "level":
                self.set("level", given[0])
                changes.append(given[0])
            case "end":
                self.execute(
                    "UPDATE agents SET epoch = ? WHERE agent = ?", (given[1] + 1, given[0])
                )
            case "add" | "add twice":
                self.set("sum", self.get("sum") + given[0] * (2 if name == "add twice" else 1))
        return int(self.get("sum"))

    def get(self, name: str) -> Any:
        found = self.execute("SELECT value FROM cells WHERE name = ?", (name,)).fetchone()
        return found[0] if found else 0

    def set(self, name: str, value: Any) -> None:
        self.execute("REPLACE INTO cells VALUES (?, ?)", (name, value))


class ToyState:
    """What the orders read of the machine: its cluster, epochs and levels ("add twice" is of 2)."""

    format_version = 1

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.level = 1

    # -- Levels

    @property
    def is_highest(self) -> bool:
        return self.level >= 2

    @property
    def ends_epochs(self) -> bool:
        return True

    def refusal(self, commands: Sequence[Command]) -> RetryableError | None:
        if self.is_highest or all(name != "add twice" for name, *_ in commands):
            return None
        return RetryableError("commit", "add twice", f"level 2 is needed, {self.level} is on")

    def follow(self, changes: Sequence[Change]) -> None:
        for self.level in changes:
            pass

    def load_levels(self) -> None:
        self.level = self.toy.get("level") or 1

    # -- OwnedMachine, SharedState

    def cluster_id(self) -> str:
        return self.toy.get("cluster") or ""

    def next_epoch(self, agent_id: int, *, floor: int) -> int:
        self.load_levels()
        found = self.toy.execute("SELECT epoch FROM agents WHERE agent = ?", (agent_id,)).fetchone()
        return max(floor, 1 + (found[0] if found else 0))

    def only_agent(self) -> int | None:
        return None

    def raising(self, level: int) -> list[Command]:
        return [["level", level]] if level > 1 else []

    def position(self) -> int:
        return int(self.toy.get("position"))


def _opening(identity: AgentIdentity, cluster_id: str, token: bytes) -> list[Command]:
    return [["cluster", cluster_id]] if cluster_id else [["hello", token]]


def _refusal(answer: Answer) -> EntryRefusal | None:
    return EntryRefusal(*answer) if isinstance(answer, list) and len(answer) == 3 else None


def _relayed(answer: Answer) -> RelayedEntry[Answer] | EntryRefusal:
    assert isinstance(answer, list)
    return _refusal(answer) or RelayedEntry(*answer)


PROTOCOL: CommandProtocol[Command, Answer] = CommandProtocol(
    encode=lambda key, stamp_ms, commands: pack([*key, stamp_ms, commands]),
    key_of=lambda body: EntryKey(*unpack(body)[:3]),
    weigh=len,
    opening=_opening,
    ending=lambda agent, epoch: ["end", agent, epoch],
    refusal=_refusal,
    is_beat=lambda command: False,
    is_given_up=lambda command: False,
    frees_space=lambda command: False,
    takes_space=lambda command: command[0] == "add",
    is_never_stopped=lambda command: command[0] != "add",
)
RELAYING: RelayProtocol[Command, Answer, Change] = RelayProtocol(
    relay=lambda body: ["relay", body],
    relayed=_relayed,
    encode_answers=pack,
    decode_answers=unpack,
    pack_changes=lambda changes: [[change] for change in changes],
    unpack_changes=lambda packed: [change for (change,) in packed],
)
