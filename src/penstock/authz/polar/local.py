"""Questions as SQL for a customer's database: the plan of a question, with symbolic tables. Pure.

A signature whose facts lie in the customer's database stands for their query there. Central facts
become literals: those alone that what is known of the question, or of facts joined before, allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.authz.polar import recursion
from penstock.authz.polar.compile import Slot, Writer
from penstock.authz.polar.conjunction import Conjunction, bind, expression
from penstock.authz.polar.graph import Graph, TooComplexError
from penstock.authz.polar.local_sql import Dialect, bound, values
from penstock.authz.polar.program import Atom, Program, Signature
from penstock.authz.polar.query import Query, Question, queries
from penstock.authz.polar.tables import Tables
from penstock.model.errors import InvalidRequestError

SQL_CHARACTERS_MAX: Final = 2_000_000
PUSHED_MAX: Final = 100
"""Ids with which a bound query is narrowed."""
COMBINATIONS_MAX: Final = 1_000
_MARKS: Final = re.compile(r"\?([0-9]+)|(penstocktable_[0-9]+)|\bNULL\b|\bAS INTEGER\)", re.ASCII)

Possible = Sequence[frozenset[str] | None]
"""The ids that each argument may have; None: any."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A query in the customer's database that gives facts.

    Args:
        constants: the ids of arguments; None: a column of the query.
    """

    predicate: str
    types: tuple[str, ...]
    constants: tuple[str | None, ...]
    query: str

    def may_have(self, possible: Possible) -> bool:
        """Whether its facts may have these ids."""
        return all(
            constant is None or ids is None or constant in ids
            for constant, ids in zip(self.constants, possible, strict=True)
        )

    def has(self, row: tuple[str, ...]) -> bool:
        """Whether a fact is one that the query is to give."""
        return all(
            constant is None or constant == id_
            for constant, id_ in zip(self.constants, row, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Bindings:
    """Data bindings: what lies in the customer's database, and in which dialect it is asked.

    Args:
        sql_types: of ids, by their type.
    """

    dialect: Dialect
    facts: tuple[Binding, ...] = ()
    sql_types: Mapping[str, str] = field(default_factory=dict)

    def of(self, signature: Signature) -> list[Binding]:
        """Give the queries of a signature's facts."""
        wanted = (signature.predicate, signature.types)
        return [each for each in self.facts if (each.predicate, each.types) == wanted]


class CentralFacts(Protocol):
    """Facts that are inlined."""

    def rows(self, signature: Signature, possible: Possible) -> list[tuple[str, ...]]:
        """Give those that may have these ids. Raises: PenstockError: they are too many."""
        ...


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """A statement, and the variable of each of its columns; without any it is a test."""

    sql: str
    columns: tuple[int, ...]


def plans(
    program: Program,
    graph: Graph,
    question: Question,
    bindings: Bindings,
    central: CentralFacts,
) -> list[LocalPlan]:
    """Write the statements whose union answers a question of at most one id for each variable.

    Raises:
        InvalidRequestError: it has no SQL, or too long a one.
    """
    found = []
    for query in queries(program, question):
        writer = _LocalWriter(program, graph, bindings, central, query, question)
        try:
            found.append(writer.local_plan())
        except TooComplexError as error:
            raise InvalidRequestError(
                "write",
                "local SQL",
                f"the policy asks for what one statement can't say: {error}",
                "ask without local data",
            ) from error
    return found


class _LocalWriter(Writer):
    """Writes one statement, with marks for what is only known to the dialect."""

    def __init__(
        self,
        program: Program,
        graph: Graph,
        bindings: Bindings,
        central: CentralFacts,
        query: Query,
        question: Question,
    ) -> None:
        super().__init__(
            program, graph, Tables(str, frozenset()), max(query.variable_count, len(query.types))
        )
        self._bindings = bindings
        self._central = central
        self._query = query
        self._question = question
        self._columns: dict[str, frozenset[str]] = {}
        """Ids that columns of central facts have."""
        self._tables: dict[str, str] = {}
        """Marks by the text that they stand for."""

    def local_plan(self) -> LocalPlan:
        """Write the statement."""
        constants = {
            number: constraint.ids[0]
            for number, constraint in enumerate(self._question.constraints.values())
            if constraint.ids is not None
        }
        plan = self.plan(self._query, constants)
        dialect = self._bindings.dialect
        tables = {mark: text for text, mark in self._tables.items()}

        def written(match: re.Match[str]) -> str:
            if match[1] is not None:
                return self._slot(plan.slots[int(match[1]) - 1])
            if match[2] is not None:
                return tables[match[2]]
            if match[0] == "NULL":
                return dialect.null
            return f"AS {dialect.integer})"

        # In one pass: what is put in is never read again.
        sql = _MARKS.sub(written, plan.sql)
        if len(sql) > SQL_CHARACTERS_MAX:
            detail = f"it has {len(sql):,} characters; {SQL_CHARACTERS_MAX:,} are allowed"
            raise InvalidRequestError("write", "local SQL", detail, "bind more facts to local data")
        return LocalPlan(sql, plan.columns)

    def alias(self, prefix: str = "t") -> str:
        """Give a name that no query of the customer's is likely to have."""
        return super().alias(f"penstock{prefix}")

    def union(self, name: str, plain: list[str], recursive: list[str]) -> str:
        """Write a recursive table; where it may be read once alone, its SELECTs share a copy."""
        several = list(dict.fromkeys(recursive))
        if not self._bindings.dialect.joins_recursion or len(several) < 2:
            return recursion.union([*plain, *recursive])
        again = self.alias("self")
        read = re.compile(rf"\b{name} AS ")
        shared = recursion.union([read.sub(f"{again} AS ", each) for each in several])
        return f"{recursion.union(plain)} UNION (WITH {again} AS (SELECT * FROM {name}) {shared})"  # noqa: S608

    def fact_alternatives(self, rest: Conjunction, atom: Atom) -> Iterator[Conjunction]:
        """Yield the ways in which an atom is a fact: central ones, and each query's."""
        texts = [expression(rest, term, self.parameters) for term in atom.terms]
        possible = [None if text is None else self._possible(text) for text in texts]
        signature = atom.signature
        local = self._bindings.of(signature)
        rows = [
            row
            for row in self._central.rows(signature, possible)
            if not any(each.has(row) for each in local)
        ]
        dialect = self._bindings.dialect
        if rows:
            found, names = self._joined(rest, atom, values(dialect, sorted(rows)))
            for place, name in enumerate(names):
                self._columns[name] = frozenset(row[place] for row in rows)
            yield found
        for binding in local:
            if binding.may_have(possible):
                wanted = [
                    (place, ids, self._bindings.sql_types[kind])
                    for place, (ids, kind) in enumerate(zip(possible, signature.types, strict=True))
                    if ids is not None
                    and len(ids) <= PUSHED_MAX
                    and binding.constants[place] is None
                    and kind in self._bindings.sql_types
                ]
                table = bound(dialect, binding.query, binding.constants, wanted)
                yield self._joined(rest, atom, table)[0]

    def _joined(self, rest: Conjunction, atom: Atom, table: str) -> tuple[Conjunction, list[str]]:
        mark = self._tables.setdefault(table, f"penstocktable_{len(self._tables)}")
        alias = self.alias()
        found = rest.joined(f"{mark} AS {alias}")
        names = [f"{alias}.a{place}" for place in range(len(atom.terms))]
        for term, name in zip(atom.terms, names, strict=True):
            found = bind(found, term, name, self.parameters)
        return found, names

    def _possible(self, text: str) -> frozenset[str] | None:
        if not text.startswith("?"):
            return self._columns.get(text)
        kind, what = list(self.parameters.slots)[int(text[1:]) - 1]
        return frozenset([str(what)]) if kind == "constant" else None

    def _slot(self, slot: Slot) -> str:
        dialect = self._bindings.dialect
        return dialect.now if slot.kind == "now" else dialect.literal(str(slot.what))
