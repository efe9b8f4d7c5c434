"""The state machine of one environment: its policy, the kinds of facts that it accepts, the facts.

Validity is decided here, at the entry's position, without a parser: a policy's entry carries the
signatures of the facts that it accepts. docs/formats/authz.md has tables and rules.
"""

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec

from penstock.authz.facts import schema
from penstock.authz.polar.program import Signature
from penstock.authz.state import entries
from penstock.authz.state.entries import (
    Begin,
    Clear,
    Delete,
    Done,
    Insert,
    Outcome,
    Refused,
    SetPolicy,
    SignatureRow,
    Write,
)
from penstock.model.errors import CorruptDataError

APPLICATION_ID: Final = 0x50415A45  # "PAZE"
FORMAT_VERSION: Final = 1
DELETED_MAX: Final = 100_000
"""Facts that one transaction may delete by patterns: it holds up the writes after it."""
REQUESTS_KEPT: Final = 10_000
"""Requests by which repeated ones are recognised."""
POLICIES_KEPT: Final = 10
_NAMED_MAX: Final = 20

_C = TypeVar("_C", Write, Clear, SetPolicy)
_Apply: TypeAlias = Callable[[int, _C], Outcome]

_SCHEMA: Final = (
    """CREATE TABLE environment (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        name TEXT NOT NULL,
        log BLOB NOT NULL,
        policy_version INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE policy (
        version INTEGER PRIMARY KEY,
        position INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        filename TEXT NOT NULL,
        source TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE signature (
        predicate TEXT NOT NULL,
        types TEXT NOT NULL,
        accepted INTEGER NOT NULL,
        PRIMARY KEY (predicate, types)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE without_effect (
        position INTEGER NOT NULL,
        place INTEGER NOT NULL,
        PRIMARY KEY (position, place)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE request (
        number INTEGER PRIMARY KEY,
        key BLOB NOT NULL UNIQUE,
        position INTEGER NOT NULL,
        changed INTEGER NOT NULL
    ) STRICT""",
)


class EnvironmentMachine:
    """Implements `penstock.replica.StateMachine`; an entry's outcome has one answer a command."""

    application_id = APPLICATION_ID
    format_version = FORMAT_VERSION
    oldest_version = 1

    def __init__(self, name: str) -> None:
        self._name = name
        self._signatures: dict[Signature, bool] | None = None
        """All that have a table, and whether the policy accepts them; None: to be read."""

    # -- the machine's life ----------------------------------------------------------------------

    def create(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        for sql in _SCHEMA:
            connection.execute(sql)

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """See `StateMachine`."""
        raise AssertionError((connection, from_version))

    def bind(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._signatures = None

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:  # noqa: ARG002
        """See `StateMachine`."""
        return max(previous_ms, stamp_ms)

    def flush(self) -> None:
        """See `StateMachine`."""

    def drop_caches(self) -> None:
        """See `StateMachine`."""
        self._signatures = None

    # -- applying --------------------------------------------------------------------------------

    def apply(self, position: int, time_ms: int, body: bytes) -> list[Outcome]:
        """See `StateMachine`."""
        entry = entries.decode(body)
        if entry.environment != self._name:
            raise CorruptDataError(
                "apply entry",
                f"environment {self._name}",
                f"entry {position} is of environment {entry.environment!r}",
            )
        outcomes: list[Outcome] = []
        for command in entry.commands:
            match command:
                case Begin():
                    outcomes.append(self._begin(position, command))
                case Write():
                    outcomes.append(self._once(position, command, self._write))
                case Clear():
                    outcomes.append(self._once(position, command, self._clear))
                case SetPolicy():
                    set_policy = partial(self._set_policy, time_ms=time_ms)
                    outcomes.append(self._once(position, command, set_policy))
                case _:
                    raise CorruptDataError(
                        "apply entry",
                        f"environment {self._name}",
                        f"entry {position} has a command of the directory",
                    )
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, Refused) or outcome.repeated:
                self._execute("INSERT INTO without_effect VALUES (?, ?)", (position, place))
        return outcomes

    def _begin(self, position: int, command: Begin) -> Outcome:
        self._execute(
            "INSERT INTO environment VALUES (1, ?, ?, 0)"
            " ON CONFLICT (id) DO UPDATE SET log = excluded.log",
            (self._name, command.log),
        )
        return Done(position, 1)

    def _once(self, position: int, command: _C, apply: _Apply[_C]) -> Outcome:
        """Apply a command, unless its request was applied before: then give that answer again."""
        key = command.request
        if key:
            row = self._execute(
                "SELECT position, changed FROM request WHERE key = ?", (key,)
            ).fetchone()
            if row is not None:
                return Done(row[0], row[1], repeated=True)
        outcome = apply(position, command)
        if key and isinstance(outcome, Done):
            number = self._execute(
                "INSERT INTO request (key, position, changed) VALUES (?, ?, ?)",
                (key, position, outcome.changed),
            ).lastrowid
            assert number is not None
            self._execute("DELETE FROM request WHERE number <= ?", (number - REQUESTS_KEPT,))
        return outcome

    def _write(self, position: int, command: Write) -> Outcome:
        known = self._known()
        unknown: dict[SignatureRow, None] = {}
        for change in command.changes:
            if isinstance(change, Insert):
                signature = _signature(change)
                if not known.get(signature, False):
                    unknown[signature.predicate, signature.types] = None
        if unknown:
            return Refused(entries.UNKNOWN_FACT, tuple(unknown)[:_NAMED_MAX])
        # Counted before anything changes, so that a refusal leaves nothing to undo.
        deleted = sum(
            self._matching(change) for change in command.changes if isinstance(change, Delete)
        )
        if deleted > DELETED_MAX:
            return Refused(entries.TOO_MANY_DELETED, number=DELETED_MAX)
        changed = 0
        for change in command.changes:
            if isinstance(change, Insert):
                sql = schema.insert(_signature(change))
                ids = [id_ or "" for _, id_ in change.arguments]
                changed += self._execute(sql, schema.row(ids)).rowcount
            else:
                for signature, bound, ids in self._matched(change):
                    changed += self._execute(schema.delete(signature, bound), ids).rowcount
        return Done(position, changed)

    def _clear(self, position: int, command: Clear) -> Outcome:  # noqa: ARG002
        changed = 0
        for signature in sorted(self._known()):
            changed += self._execute(schema.delete(signature, ())).rowcount
        return Done(position, changed)

    def _set_policy(self, position: int, command: SetPolicy, *, time_ms: int) -> Outcome:
        known = self._known()
        version, filename, source = self._execute(
            "SELECT e.policy_version, p.filename, p.source FROM environment AS e"
            " LEFT JOIN policy AS p ON p.version = e.policy_version"
        ).fetchone()
        if version != command.base:
            return Refused(entries.VERSION_MOVED, number=version)
        accepted = {Signature(predicate, types) for predicate, types in command.signatures}
        left = sorted(signature for signature in known if signature not in accepted)
        in_use = [each for each in left if self._has_facts(each)]
        if in_use:
            named = tuple((each.predicate, each.types) for each in in_use[:_NAMED_MAX])
            return Refused(entries.FACTS_IN_USE, named, len(in_use))
        is_same = accepted == {each for each, is_accepted in known.items() if is_accepted}
        if (filename, source) == (command.filename, command.source) and is_same:
            return Done(position, 0)
        for signature in left:
            if known[signature]:
                # Its table stays for one policy more: readers have plans that name it.
                self._accept(signature, accepted=False)
            else:
                self._forget(signature)
        for signature in sorted(accepted):
            if signature not in known:
                for sql in schema.create(signature):
                    self._execute(sql)
            if not known.get(signature, False):
                self._accept(signature, accepted=True)
        self._execute(
            "INSERT INTO policy VALUES (?, ?, ?, ?, ?)",
            (version + 1, position, time_ms, command.filename, command.source),
        )
        self._execute("DELETE FROM policy WHERE version <= ?", (version + 1 - POLICIES_KEPT,))
        self._execute("UPDATE environment SET policy_version = ?", (version + 1,))
        return Done(position, 1)

    # -- kinds of facts --------------------------------------------------------------------------

    def _known(self) -> dict[Signature, bool]:
        if self._signatures is None:
            self._signatures = {
                Signature(predicate, tuple(msgspec.json.decode(types, type=list[str]))): bool(flag)
                for predicate, types, flag in self._execute("SELECT * FROM signature")
            }
        return self._signatures

    def _accept(self, signature: Signature, *, accepted: bool) -> None:
        self._known()[signature] = accepted
        self._execute(
            "INSERT OR REPLACE INTO signature VALUES (?, ?, ?)",
            (signature.predicate, _types_text(signature), int(accepted)),
        )

    def _forget(self, signature: Signature) -> None:
        del self._known()[signature]
        self._execute(
            "DELETE FROM signature WHERE predicate = ? AND types = ?",
            (signature.predicate, _types_text(signature)),
        )
        self._execute(f"DROP TABLE IF EXISTS {schema.table(signature)}")

    def _has_facts(self, signature: Signature) -> bool:
        sql = f"SELECT EXISTS ({schema.select(signature, ())})"
        (found,) = self._execute(sql).fetchone()
        return bool(found)

    def _matched(self, pattern: Delete) -> list[tuple[Signature, list[int], list[str]]]:
        """Give the kinds of facts that a pattern matches, with the places and ids that it binds."""
        bound = [place for place, (_, id_) in enumerate(pattern.arguments) if id_ is not None]
        ids = [id_ for _, id_ in pattern.arguments if id_ is not None]
        types = [kind for kind, _ in pattern.arguments]
        return [
            (signature, bound, ids)
            for signature in matching(self._known(), pattern.predicate, types)
        ]

    def _matching(self, pattern: Delete) -> int:
        """Count the facts that a pattern matches, up to one more than may be deleted."""
        found = 0
        for signature, bound, ids in self._matched(pattern):
            if len(bound) == len(signature.types):
                found += 1
                continue
            sql = f"SELECT count(*) FROM ({schema.select(signature, bound)} LIMIT ?)"  # noqa: S608
            found += self._execute(
                sql, (*ids, DELETED_MAX + 1 - min(found, DELETED_MAX))
            ).fetchone()[0]
        return found


def matching(
    known: Iterable[Signature], predicate: str, types: list[str | None], *, is_prefix: bool = False
) -> list[Signature]:
    """Give the signatures of a predicate whose types are these, sorted; None is any type.

    Args:
        is_prefix: further arguments may follow those of `types`.
    """
    return sorted(
        signature
        for signature in known
        if signature.predicate == predicate
        and (
            len(signature.types) == len(types) or (is_prefix and len(signature.types) > len(types))
        )
        and all(
            wanted is None or wanted == found
            for wanted, found in zip(types, signature.types, strict=False)
        )
    )


def _signature(change: Insert) -> Signature:
    return Signature(change.predicate, tuple(kind or "" for kind, _ in change.arguments))


def _types_text(signature: Signature) -> str:
    return msgspec.json.encode(signature.types).decode()
