"""Texts of the dialects in which local authorization's SQL is written. Pure.

The statement runs in a customer's database. So an id is never more than a literal there: one with
anything but letters, digits and a few marks is written in hexadecimal. Ids compare byte by byte,
as texts; a database's own types and collations must not make two ids equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.@/+=, -]*", re.ASCII)
_INTEGERS: Final = frozenset(
    ["smallint", "integer", "int", "bigint", "int2", "int4", "int8", "serial", "bigserial"]
)
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,8}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_ ]{0,40}(\([0-9]{1,4}\))?", re.ASCII)
_COLUMN: Final = re.compile(
    r'(?:[A-Za-z_][A-Za-z0-9_$]*|"[^"\0]+"|`[^`\0]+`)'
    r'(?:\.(?:[A-Za-z_][A-Za-z0-9_$]*|"[^"\0]+"|`[^`\0]+`)){0,3}',
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write SQL.

    Args:
        literal: writes an id.
        text: makes an id of an expression.
        row: writes a row of VALUES.
        null: an unknown id.
        now: the present in seconds, as an id.
        integer: the name of the type by which Integers compare.
        joins_recursion: whether a recursive table may be read once alone.
        casts: whether an id may be cast to one of the database's types, for its indexes.
    """

    literal: Callable[[str], str]
    text: Callable[[str], str]
    row: Callable[[Iterable[str]], str]
    null: str
    now: str
    integer: str
    joins_recursion: bool
    casts: bool


def _postgresql_literal(text: str) -> str:
    written = f"'{text}'"
    if not _PLAIN.fullmatch(text):
        written = f"convert_from(decode('{text.encode().hex()}', 'hex'), 'UTF8')"
    return f'({written} COLLATE "C")'


def _mysql_literal(text: str) -> str:
    written = f"'{text}'" if _PLAIN.fullmatch(text) else f"X'{text.encode().hex()}'"
    return f"(_utf8mb4 {written} COLLATE utf8mb4_0900_bin)"


POSTGRESQL: Final = Dialect(
    literal=_postgresql_literal,
    # A column's own collation may take A for a; and a recursive table has one collation.
    text='(CAST({} AS TEXT) COLLATE "C")'.format,
    row=lambda texts: f"({', '.join(texts)})",
    null='(CAST(NULL AS TEXT) COLLATE "C")',
    now='(CAST(CAST(floor(extract(epoch FROM now())) AS BIGINT) AS TEXT) COLLATE "C")',
    integer="BIGINT",
    joins_recursion=True,
    casts=True,
)
MYSQL: Final = Dialect(
    literal=_mysql_literal,
    # Its usual collations take A for a, and "a " for "a"; a number's text is in the connection's.
    text="(CONVERT({} USING utf8mb4) COLLATE utf8mb4_0900_bin)".format,
    row=lambda texts: f"ROW({', '.join(texts)})",
    null="CAST(NULL AS CHAR(384))",
    now="CAST(UNIX_TIMESTAMP() AS CHAR)",
    integer="SIGNED",
    joins_recursion=False,
    casts=False,
)
DIALECTS: Final[Mapping[str, Dialect]] = {"postgresql": POSTGRESQL, "mysql": MYSQL}


def is_column(text: str) -> bool:
    """Whether a text is a column's name, perhaps with its table's, and nothing else."""
    return _COLUMN.fullmatch(text) is not None


def is_type(text: str) -> bool:
    """Whether a text is a type's name, and nothing else."""
    return _TYPE.fullmatch(text) is not None


def values(dialect: Dialect, rows: Sequence[tuple[str, ...]]) -> str:
    """Write facts as a table whose columns are a0, a1, ..."""
    if not rows[0]:
        return "(SELECT 1 AS present)"
    names = ", ".join(f"a{place}" for place in range(len(rows[0])))
    written = ", ".join(dialect.row(map(dialect.literal, row)) for row in rows)
    return f"(SELECT {names} FROM (VALUES {written}) AS penstockv ({names}))"  # noqa: S608


def bound(
    dialect: Dialect,
    query: str,
    constants: Sequence[str | None],
    wanted: Sequence[tuple[int, frozenset[str], str]],
) -> str:
    """Write a bound query as such a table.

    Args:
        constants: the value of each column that isn't the query's.
        wanted: columns of the query of which these ids alone are asked for, and their SQL type:
            compared as that type, so that an index on the column may serve.
    """
    places = [place for place, constant in enumerate(constants) if constant is None]
    columns = ", ".join(f"c{place}" for place in places) or "c"
    outputs = []
    for place, constant in enumerate(constants):
        text = dialect.literal(constant) if constant is not None else dialect.text(f"c{place}")
        outputs.append(f"{text} AS a{place}")
    # A column without a value would be taken for any value.
    conditions = [f"c{place} IS NOT NULL" for place in places]
    for place, ids, kind in wanted:
        casts = _casts(dialect, ids, kind)
        if casts is not None:
            conditions.append(f"c{place} IN ({', '.join(casts)})" if casts else "1 = 0")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return (
        f"(WITH penstockq ({columns}) AS ({query}\n)"  # noqa: S608 - the customer's own
        f" SELECT {', '.join(outputs) or '1 AS present'} FROM penstockq{where})"
    )


def _casts(dialect: Dialect, ids: frozenset[str], kind: str) -> list[str] | None:
    """Write ids as values of a type, without those that aren't any; None: it isn't known how."""
    lower = kind.lower()
    if not dialect.casts:
        return None
    if lower in _INTEGERS:
        # No column of a smaller type has larger ones; what is left out is compared as a text.
        if not all(_INTEGER.fullmatch(id_) is not None or not _is_number(id_) for id_ in ids):
            return None
        return [f"CAST('{id_}' AS {kind})" for id_ in sorted(ids) if _INTEGER.fullmatch(id_)]
    if lower == "uuid":
        return [f"CAST('{id_}' AS uuid)" for id_ in sorted(ids) if _UUID.fullmatch(id_)]
    if lower in ("text", "varchar", "character varying"):
        return [dialect.literal(id_) for id_ in sorted(ids)]
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", text, re.ASCII) is not None
