"""Questions asked of facts in SQLite: plans are made once for each shape of a question.

What has no plan of one statement goes to the tabled evaluator, which looks facts up in the same
tables. The connection is the caller's; nothing here writes.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.authz.facts import schema
from penstock.authz.polar.compile import Plan, compile_query
from penstock.authz.polar.graph import Graph
from penstock.authz.polar.program import Fact, Program, Signature
from penstock.authz.polar.query import Query, Row
from penstock.authz.polar.tabled import Known, MemoryFacts, Tabled
from penstock.authz.polar.tables import Tables

if TYPE_CHECKING:
    import sqlite3

PLANS_MAX: Final = 2_000
"""Plans that are kept, those used last. A question's shape may have any type and any bound
variables, so that clients decide how many there are."""

_Key = tuple[Query, tuple[tuple[int, str], ...], frozenset[Signature]]


class Plans:
    """A program's plans, by the shape of questions; they hold no facts and no connection."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._graph = Graph(program)
        self._plans: OrderedDict[_Key, Plan] = OrderedDict()
        self._constants = _string_constants(program)

    def plan(self, query: Query, values: Mapping[int, str], context: frozenset[Signature]) -> Plan:
        """Give the plan of a query.

        Values that are strings of the policy ("read") are part of the shape: rules about others
        are left out of the statement.
        """
        constants = tuple(
            (variable, values[variable])
            for variable, kind in zip(query.outputs, query.types, strict=True)
            if kind == "String" and values.get(variable) in self._constants
        )
        key = (query, constants, context)
        plan = self._plans.get(key)
        if plan is None:
            tables = Tables(schema.table, self.program.facts, context)
            plan = compile_query(self.program, self._graph, query, dict(constants), tables)
            self._plans[key] = plan
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return plan


class Asking:
    """Answers queries of one moment from stored facts and a question's context.

    Args:
        connection: has the tables of all signatures that the program accepts.
        context: facts that hold for these questions alone.
        now_s: the questions' time, in seconds.
    """

    def __init__(
        self,
        plans: Plans,
        connection: sqlite3.Connection,
        *,
        now_s: int,
        context: Iterable[Fact] = (),
    ) -> None:
        self._plans = plans
        self._connection = connection
        self._now_s = now_s
        self._context_facts = tuple(context)
        self._context: dict[Signature, str] = _as_json(self._context_facts)
        self._signatures = frozenset(self._context)
        self._tabled: Tabled | None = None

    def solve(self, query: Query, values: Mapping[int, str]) -> set[Row]:
        """Give the rows of a query, whose bound variables have these values."""
        plan = self._plans.plan(query, values, self._signatures)
        if not plan.sql:
            return self._by_tables().solve(query, values)
        found = self._connection.execute(plan.sql, self._bindings(plan, values))
        if not plan.columns:
            known = tuple(values[variable] for variable in query.outputs)
            return {known} if found.fetchone() is not None else set()
        places = {variable: place for place, variable in enumerate(plan.columns)}
        return {
            tuple(
                row[places[variable]] if variable in places else values[variable]
                for variable in query.outputs
            )
            for row in found
        }

    def _bindings(self, plan: Plan, values: Mapping[int, str]) -> list[str]:
        bindings = []
        for kind, what in plan.slots:
            if kind == "value":
                bindings.append(values[what])  # type: ignore[index]
            elif kind == "constant":
                bindings.append(what)  # type: ignore[arg-type]
            elif kind == "now":
                bindings.append(str(self._now_s))
            else:
                bindings.append(self._context[what])  # type: ignore[index]
        return bindings

    def _by_tables(self) -> Tabled:
        if self._tabled is None:
            stored = StoredFacts(self._connection, self._plans.program.facts, self._context_facts)
            self._tabled = Tabled(self._plans.program, stored, now_s=self._now_s)
        return self._tabled


class StoredFacts:
    """Looks facts up in SQLite, and among those of a question's context."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        stored: frozenset[Signature],
        context: Iterable[Fact] = (),
    ) -> None:
        self._connection = connection
        self._stored = stored
        self._context = MemoryFacts(context)

    def lookup(self, signature: Signature, known: Known) -> Iterable[tuple[str, ...]]:
        """Give the facts of a signature that have the known ids."""
        found: list[tuple[str, ...]] = []
        if signature in self._stored:
            bound = [place for place, id_ in enumerate(known) if id_ is not None]
            sql = schema.select(signature, bound)
            found = self._connection.execute(sql, [known[place] for place in bound]).fetchall()
            if not signature.types:
                found = [() for _ in found]
        found += self._context.lookup(signature, known)
        return found


def _as_json(context: Iterable[Fact]) -> dict[Signature, str]:
    rows: dict[Signature, list[tuple[str, ...]]] = {}
    for fact in context:
        rows.setdefault(fact.signature, []).append(fact.ids)
    return {signature: json.dumps(each) for signature, each in rows.items()}


def _string_constants(program: Program) -> frozenset[str]:
    """Give the strings of the rules, with which a question's strings are compared."""
    found: set[str] = set()
    for clauses in program.clauses.values():
        for clause in clauses:
            for atom in (clause.head, *clause.body):
                found.update(
                    term
                    for term, kind in zip(atom.terms, atom.signature.types, strict=True)
                    if isinstance(term, str) and kind == "String"
                )
    return frozenset(found)
