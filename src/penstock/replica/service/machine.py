"""The base class of a user's state machine: a schema, and how an entry changes its tables."""

import hashlib
import re
import sqlite3
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.model.errors import InvalidRequestError


class RefusedError(InvalidRequestError):
    """A machine raises it to refuse an entry, which then changes nothing; who has submitted the
    entry gets it, too."""

    def __init__(self, detail: str) -> None:
        """Args: detail: says why, to who has submitted it."""
        super().__init__("submit", "entry", detail)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the journal, as a machine is given it.

    Args:
        value: as it was submitted: None, bool, int, float, str, bytes, list or dict.
        position: its place in the order of all.
        time_ms: the journal's time, in ms since the epoch; it never goes back. A machine has no
            other clock.
        client, number: who has submitted it, and under which number.
    """

    value: Any
    position: int
    time_ms: int
    client: str
    number: int
    seed: bytes = field(repr=False, default=b"")

    def random_bytes(self, count: int) -> bytes:
        """Give random bytes that are the same in each instance, and at each call.

        Two calls for different things add a name: `entry.random_bytes(32)[:16]` and `[16:]`.
        """
        return hashlib.shake_256(self.seed).digest(count)


class Machine:
    """A state machine over tables of one SQLite database.

    A subclass has a `schema` and an `apply`. Every instance applies the same entries in the same
    order, and has to come to the same tables: `apply` depends on the tables and the entry alone. It
    asks no clock, draws nothing, reads no file and no network, and depends on the order of no set.
    """

    name: ClassVar[str] = ""
    """Names the service: a-z, 0-9 and _; "": the class's name, in such letters."""
    schema: ClassVar[str] = ""
    """Statements that create its tables and indexes."""
    version: ClassVar[int] = 1
    """Version of the schema, counted up with each change of it; see `migrate`."""
    oldest_version: ClassVar[int] = 1
    """The oldest version that `migrate` brings to this one."""

    def apply(self, connection: sqlite3.Connection, entry: Entry) -> Any:
        """Change the tables as an entry says, in a transaction that is open already.

        Returns:
            The answer, for who has submitted it: a value as an entry may have.
        Raises:
            RefusedError: nothing changes, and who has submitted it gets it.
            Exception: a bug: nothing changes, and who has submitted it gets its type.
        """
        raise NotImplementedError

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """Bring tables of an older version to this one, in a transaction that is open already."""
        raise NotImplementedError(f"{type(self).__name__} has no migration from {from_version}")


def name_of(machine: Machine) -> str:
    """Give a machine's name. Raises: InvalidRequestError: it isn't one."""
    name = machine.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(machine).__name__).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name, re.ASCII):
        raise InvalidRequestError(
            "open",
            "service",
            f"{name[:50]!r} isn't a name: up to 32 of a-z, 0-9 and _, the first a letter",
            "set `name` in the machine's class",
        )
    return name
