"""The tabled evaluator: top-down from a question, each goal answered once (SLG resolution).

It takes recursion of any form, and looks at no fact that the question doesn't lead to. A goal is a
signature with the ids that are known; its table has the answers so far and the rules that wait for
more. Each pair of a waiting rule and an answer is joined once, so that cycles end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.authz.polar.clause_index import ClauseIndex
from penstock.authz.polar.graph import ordered
from penstock.authz.polar.program import NOW, Atom, Clause, Fact, Program, Signature, Term
from penstock.authz.polar.query import Query, Row
from penstock.authz.polar.syntax import NOWHERE
from penstock.authz.polar.values import holds
from penstock.model.errors import OverloadedError

STEPS_MAX: Final = 1_000_000

Known = tuple[str | None, ...]
"""Ids that are known of a goal's arguments or a rule's variables; None: open, or any value."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rule that held: its answer, and the facts and answers that its conditions were."""

    clause: Clause
    answer: Row
    used: tuple[tuple[Signature, Row], ...]


class FactSource(Protocol):
    """Finds facts, stored and of the question's context."""

    def lookup(self, signature: Signature, known: Known) -> Iterable[tuple[str, ...]]:
        """Give the facts of a signature that have the known ids; none of an unknown one."""
        ...


class MemoryFacts:
    """Facts in memory, with an index for each set of arguments that was asked for."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._facts: dict[Signature, set[tuple[str, ...]]] = defaultdict(set)
        for fact in facts:
            self._facts[fact.signature].add(fact.ids)
        self._indexes: dict[
            tuple[Signature, tuple[int, ...]], dict[tuple[str, ...], list[tuple[str, ...]]]
        ] = {}

    def lookup(self, signature: Signature, known: Known) -> Iterable[tuple[str, ...]]:
        """Give the facts of a signature that have the known ids."""
        if signature not in self._facts:
            return ()
        positions = tuple(place for place, id_ in enumerate(known) if id_ is not None)
        index = self._indexes.get((signature, positions))
        if index is None:
            index = defaultdict(list)
            for row in self._facts[signature]:
                index[tuple(row[place] for place in positions)].append(row)
            self._indexes[signature, positions] = index
        return index.get(tuple(id_ for id_ in known if id_ is not None), ())


@dataclass(slots=True)
class _Table:
    """A goal's answers, in the order in which they were found, and who waits for them."""

    answers: dict[Row, None] = field(default_factory=dict)
    waiting: list[_State] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _State:
    """A rule that holds as far as its first `index` conditions."""

    clause: Clause
    body: tuple[Atom, ...]
    index: int
    bindings: Known
    table: _Table
    used: tuple[tuple[Signature, Row], ...] = ()


class Tabled:
    """Answers queries from facts at one moment.

    Args:
        now_s: the question's time, in seconds.
        steps: how many facts and answers may be joined.
        record: is called with each rule that held.
    """

    def __init__(
        self,
        program: Program,
        facts: FactSource,
        *,
        now_s: int,
        steps: int = STEPS_MAX,
        record: Callable[[Step], object] | None = None,
    ) -> None:
        self._record = record
        self._program = program
        self._index = ClauseIndex(program)
        self._facts = facts
        self._now = str(now_s)
        self._steps = steps
        self._tables: dict[tuple[Signature, Known], _Table] = {}
        self._agenda: deque[_State] = deque()

    def solve(self, query: Query, values: Mapping[int, str]) -> set[Row]:
        """Give the rows of a query, whose bound variables have these values."""
        outputs = tuple(query.outputs)
        head = Atom(Signature("", query.types), outputs)
        names = ("",) * query.variable_count
        clause = Clause(head, query.body, (), (), names, NOWHERE)
        table = _Table()
        bindings = tuple(values.get(variable) for variable in range(query.variable_count))
        self._begin(clause, bindings, table)
        self._run()
        return set(table.answers)

    def _begin(self, clause: Clause, bindings: Known, table: _Table) -> None:
        bound = frozenset(place for place, id_ in enumerate(bindings) if id_ is not None)
        body = ordered(self._program, clause.body, bound)
        self._agenda.append(_State(clause, body, 0, bindings, table))

    def _run(self) -> None:
        while self._agenda:
            state = self._agenda.pop()
            if state.index == len(state.body):
                self._conclude(state)
                continue
            atom = state.body[state.index]
            known = tuple(self._value(term, state.bindings) for term in atom.terms)
            for row in self._facts.lookup(atom.signature, known):
                self._resume(state, row)
            if atom.signature in self._program.clauses:
                self._call(state, atom.signature, known)

    def _call(self, state: _State, signature: Signature, known: Known) -> None:
        table = self._tables.get((signature, known))
        if table is not None:
            table.waiting.append(state)
            for answer in list(table.answers):
                self._resume(state, answer)
            return
        table = self._tables[signature, known] = _Table(waiting=[state])
        for clause in self._index.candidates(signature, _strings(signature, known)):
            bindings = self._join(clause.head, known, (None,) * len(clause.names))
            if bindings is not None:
                self._begin(clause, bindings, table)

    def _resume(self, state: _State, row: Row) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise OverloadedError("evaluate", "policy", "it takes too many steps")
        bindings = self._join(state.body[state.index], row, state.bindings)
        if bindings is not None:
            used = state.used
            if self._record is not None:
                used = (*used, (state.body[state.index].signature, row))
            following = _State(
                state.clause, state.body, state.index + 1, bindings, state.table, used
            )
            self._agenda.append(following)

    def _conclude(self, state: _State) -> None:
        clause, bindings = state.clause, state.bindings
        for comparison in clause.comparisons:
            left = self._value(comparison.left, bindings)
            right = self._value(comparison.right, bindings)
            assert left is not None and right is not None  # noqa: PT018 - checked: wildcards.py
            if not holds(comparison.operator, left, right):
                return
        for atom in clause.negated:
            known = tuple(self._value(term, bindings) for term in atom.terms)
            # An open variable that stands twice has to be the same value in both places.
            for row in self._facts.lookup(atom.signature, known):
                if self._join(atom, row, bindings) is not None:
                    return
        answer = tuple(self._value(term, bindings) for term in clause.head.terms)
        if self._record is not None:
            self._record(Step(clause, answer, state.used))
        if answer in state.table.answers:
            return
        state.table.answers[answer] = None
        for waiting in list(state.table.waiting):
            self._resume(waiting, answer)

    def _join(self, atom: Atom, row: Row, before: Known) -> Known | None:
        after = list(before)
        for term, id_ in zip(atom.terms, row, strict=True):
            if id_ is None:
                continue
            known = self._value(term, after)
            if known is None:
                assert isinstance(term, int)
                after[term] = id_
            elif known != id_:
                return None
        return tuple(after)

    def _value(self, term: Term, bindings: Known | list[str | None]) -> str | None:
        if isinstance(term, int):
            return bindings[term]
        return self._now if term is NOW else term


def _strings(signature: Signature, known: Known) -> Known:
    """Leave the strings of a goal: constants of heads are mostly names of roles and permissions."""
    pairs = zip(signature.types, known, strict=True)
    return tuple(id_ if kind == "String" else None for kind, id_ in pairs)
