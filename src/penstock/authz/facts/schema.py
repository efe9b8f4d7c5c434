"""The tables of facts, as SQL. Pure: a signature alone decides its table.

| column | what |
| --- | --- |
| `a0` ... `a4` | the ids of the arguments, TEXT |

The primary key is all columns in order (WITHOUT ROWID, so the table is that index), and one more
index has them in reverse: a question is answered from either end. A signature without arguments has
one column `present`, which is 1.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Final

from penstock.authz.polar.program import Signature

_READABLE_MAX: Final = 40
_NAMES_MAX: Final = 10_000
"""Names of tables that are kept: each is hashed once."""


@functools.lru_cache(maxsize=_NAMES_MAX)
def table(signature: Signature) -> str:
    """Name the table of a signature: readable, and another one for each signature.

    SQLite compares names without regard to case, and Polar's names have any characters, so a hash
    keeps them apart.
    """
    exact = "\0".join((signature.predicate, *signature.types)).encode("utf-8", "surrogatepass")
    readable = re.sub(r"[^a-z0-9]+", "_", str(signature).lower()).strip("_")[:_READABLE_MAX]
    return f"fact_{readable}_{hashlib.blake2b(exact, digest_size=8).hexdigest()}"


def columns(signature: Signature) -> list[str]:
    """Name the columns of a signature's table."""
    return [f"a{place}" for place in range(len(signature.types))] or ["present"]


def create(signature: Signature) -> list[str]:
    """Give the statements that make a signature's table, if it isn't there."""
    name, names = table(signature), columns(signature)
    kind = "TEXT" if signature.types else "INTEGER"
    declared = ", ".join(f"{each} {kind} NOT NULL" for each in names)
    key = f"PRIMARY KEY ({', '.join(names)})"
    statements = [f"CREATE TABLE IF NOT EXISTS {name} ({declared}, {key}) WITHOUT ROWID"]
    if len(names) > 1:
        statements.append(
            f"CREATE INDEX IF NOT EXISTS {name}_reverse ON {name} ({', '.join(reversed(names))})"
        )
    return statements


def insert(signature: Signature) -> str:
    """Give the statement that stores a fact; its parameters are `row(ids)`."""
    places = ", ".join("?" for _ in columns(signature))
    return f"INSERT OR IGNORE INTO {table(signature)} VALUES ({places})"  # noqa: S608


def delete(signature: Signature, bound: Sequence[int]) -> str:
    """Give the statement that deletes the facts with the ids of the bound places."""
    return f"DELETE FROM {table(signature)}{_where(bound)}"  # noqa: S608


def select(signature: Signature, bound: Sequence[int]) -> str:
    """Give the statement that finds the facts with the ids of the bound places."""
    return f"SELECT {', '.join(columns(signature))} FROM {table(signature)}{_where(bound)}"  # noqa: S608


def row(ids: Sequence[str]) -> tuple[str | int, ...]:
    """Give what `insert` binds."""
    return tuple(ids) or (1,)


def _where(bound: Sequence[int]) -> str:
    conditions = [f"a{place} = ?" for place in bound]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
