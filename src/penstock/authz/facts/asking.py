"""Questions asked of facts in SQLite: plans are made once for each shape of a question.

What has no plan of one statement goes to the tabled evaluator, which looks facts up in the same
tables. The connection is the caller's; nothing here writes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.authz.facts import schema
from penstock.authz.polar.compile import Plan, compile_query
from penstock.authz.polar.graph import Graph
from penstock.authz.polar.program import Fact, Program, Signature, Value
from penstock.authz.polar.query import Query, Question, Row, authorize, queries, rows, values_of
from penstock.authz.polar.tabled import STEPS_MAX, Known, MemoryFacts, Tabled
from penstock.authz.polar.tables import Tables

if TYPE_CHECKING:
    import sqlite3

PLANS_MAX: Final = 2_000
"""Plans that are kept, those used last. A question's shape may have any type and any bound
variables, so that clients decide how many there are."""

K = TypeVar("K")
V = TypeVar("V")

_Key = tuple[Query, tuple[tuple[int, str], ...], frozenset[Signature]]


@dataclass(frozen=True, slots=True)
class Check:
    """A question of actor, action and resource, of one shape: a statement for each way to type it;
    without a plan the query goes to the tabled evaluator."""

    query: Query
    plan: Plan
    constants: tuple[str | None, ...]
    places: tuple[tuple[int, int], ...]
    moments: tuple[int, ...]
    contexts: tuple[tuple[int, Signature], ...]

    def bindings(
        self, values: Sequence[str], now_s: int, context: Mapping[Signature, str]
    ) -> list[str | None]:
        """Give what the statement binds for actor, action and resource."""
        bindings = list(self.constants)
        for place, variable in self.places:
            bindings[place] = values[variable]
        for place in self.moments:
            bindings[place] = str(now_s)
        for place, signature in self.contexts:
            bindings[place] = context[signature]
        return bindings


class Plans:
    """A program's plans, by the shape of questions; they hold no facts and no connection. Any
    thread."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._lock = threading.Lock()
        self._graph = Graph(program)
        self._plans: OrderedDict[_Key, Plan] = OrderedDict()
        self._queries: OrderedDict[object, list[Query]] = OrderedDict()
        self._checks: OrderedDict[object, tuple[Check, ...]] = OrderedDict()
        self._constants = _string_constants(program)

    def queries(self, program: Program, question: Question) -> list[Query]:
        """Type a question; those of one shape have the same queries."""
        assert program is self.program
        shape = tuple(
            (name, each.type, each.ids is not None and len(each.ids) == 1)
            for name, each in question.constraints.items()
        )
        return self._kept(
            self._queries, (question.calls, shape), lambda: queries(program, question)
        )

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

        def compiled() -> Plan:
            tables = Tables(schema.table, self.program.facts, context)
            return compile_query(self.program, self._graph, query, dict(constants), tables)

        return self._kept(self._plans, (query, constants, context), compiled)

    def checks(
        self, actor: Value, action: str, resource: Value, context: frozenset[Signature]
    ) -> tuple[Check, ...]:
        """Give the statements that say whether an actor may do an action to a resource."""
        known = action if action in self._constants else None
        key = (actor.type, known, resource.type, context)

        def made() -> tuple[Check, ...]:
            question = authorize(actor, action, resource)
            values = values_of(question)
            typed = self.queries(self.program, question)
            return tuple(_check(query, self.plan(query, values, context)) for query in typed)

        return self._kept(self._checks, key, made)

    def _kept(self, cache: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
        """Give what is kept under a key, or make it; what wasn't used for longest goes."""
        with self._lock:
            found = cache.get(key)
            if found is not None:
                cache.move_to_end(key)
                return found
        # Without the lock: a question of a thread may take long to type, and others go on.
        made = make()
        with self._lock:
            cache[key] = made
            if len(cache) > PLANS_MAX:
                cache.popitem(last=False)
        return made


class Asking:
    """Answers questions of one moment from stored facts and a question's context.

    Args:
        connection: has the tables of all signatures that the program accepts.
        context: facts that hold for these questions alone.
        now_s: the questions' time, in seconds.
        steps: how many facts and answers the tabled evaluator may join.
    """

    def __init__(
        self,
        plans: Plans,
        connection: sqlite3.Connection,
        *,
        now_s: int,
        context: Iterable[Fact] = (),
        steps: int = STEPS_MAX,
    ) -> None:
        self._steps = steps
        self._plans = plans
        self._connection = connection
        self._now_s = now_s
        self._context_facts = tuple(context)
        self._context: dict[Signature, str] = _as_json(self._context_facts)
        self._signatures = frozenset(self._context)
        self._tabled: Tabled | None = None

    def authorize(self, actor: Value, action: str, resource: Value) -> bool:
        """Whether an actor may do an action to a resource."""
        values = (actor.id, action, resource.id)
        for check in self._plans.checks(actor, action, resource, self._signatures):
            if check.plan.sql:
                bindings = check.bindings(values, self._now_s, self._context)
                if self._connection.execute(check.plan.sql, bindings).fetchone() is not None:
                    return True
            elif self._by_tables().solve(check.query, dict(enumerate(values))):
                return True
        return False

    def rows(self, question: Question) -> list[dict[str, str | None]]:
        """Answer a question as `evaluate_query` does."""
        return rows(self._plans.program, self, question, self._plans.queries)

    def ids(self, question: Question) -> list[str | None]:
        """Give the ids of a question's one free variable, sorted; None first, if any value will do.

        A long list is the same as `rows` without a mapping for each of its rows.
        """
        (column,) = (
            number for number, each in enumerate(question.constraints.values()) if each.ids is None
        )
        values = values_of(question)
        found = {
            row[column]
            for query in self._plans.queries(self._plans.program, question)
            for row in self.solve(query, values)
        }
        known = sorted(id_ for id_ in found if id_ is not None)
        return [None, *known] if None in found else list(known)

    def solve(self, query: Query, values: Mapping[int, str]) -> set[Row]:
        """Give the rows of a query, whose bound variables have these values."""
        plan = self._plans.plan(query, values, self._signatures)
        if not plan.sql:
            return self._by_tables().solve(query, values)
        size = query.variable_count
        check = _check(query, plan)
        given = [values.get(variable, "") for variable in range(size)]
        bindings = check.bindings(given, self._now_s, self._context)
        found = self._connection.execute(plan.sql, bindings)
        if not plan.columns:
            known = tuple(values[variable] for variable in query.outputs)
            return {known} if found.fetchone() is not None else set()
        if plan.columns == query.outputs:
            return set(found)
        places = {variable: place for place, variable in enumerate(plan.columns)}
        return {
            tuple(
                row[places[variable]] if variable in places else values[variable]
                for variable in query.outputs
            )
            for row in found
        }

    @property
    def program(self) -> Program:
        """The policy that is asked."""
        return self._plans.program

    def facts(self) -> StoredFacts:
        """Give the facts, stored and of the context."""
        return StoredFacts(self._connection, self._plans.program.facts, self._context_facts)

    def stored(self, sql: str, values: Sequence[str]) -> Iterable[tuple[Any, ...]]:
        """Give the rows of a statement of `schema` over the stored facts alone."""
        return self._connection.execute(sql, values)

    def _by_tables(self) -> Tabled:
        if self._tabled is None:
            stored = self.facts()
            program, now_s = self._plans.program, self._now_s
            self._tabled = Tabled(program, stored, now_s=now_s, steps=self._steps)
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


def _check(query: Query, plan: Plan) -> Check:
    slots = list(enumerate(plan.slots))
    return Check(
        query,
        plan,
        tuple(str(what) if kind == "constant" else None for kind, what in plan.slots),
        tuple((place, what) for place, (_, what) in slots if isinstance(what, int)),
        tuple(place for place, (kind, _) in slots if kind == "now"),
        tuple((place, what) for place, (_, what) in slots if isinstance(what, Signature)),
    )


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
