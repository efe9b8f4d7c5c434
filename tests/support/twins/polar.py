"""The naive evaluator: derive all that follows from the facts, then look. It is the oracle that
the other evaluators have to equal, so it is as plain as it can be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.authz.polar.program import NOW, Atom, Clause, Fact, Program, Signature, Term
from penstock.authz.polar.query import Query, Row
from penstock.authz.polar.values import holds
from penstock.model.errors import OverloadedError

STEPS_MAX: Final = 1_000_000

Bindings = tuple[str | None, ...]
"""Each variable's id, or None for not bound yet and for any value, which join alike."""


class Naive:
    """Answers queries from all that follows from the facts at one moment.

    Args:
        facts: stored ones and those of the question's context.
        now_s: the question's time, in seconds.
        steps: how many pairs of bindings and tuples may be joined.
    """

    def __init__(
        self, program: Program, facts: Iterable[Fact], *, now_s: int, steps: int = STEPS_MAX
    ) -> None:
        self._facts: dict[Signature, set[Row]] = defaultdict(set)
        self._now = str(now_s)
        self._steps = steps
        for fact in facts:
            self._facts[fact.signature].add(fact.ids)
        self._all: dict[Signature, set[Row]] = defaultdict(set)
        for signature, tuples in self._facts.items():
            self._all[signature] |= tuples
        self._derive(program)

    def solve(self, query: Query, values: Mapping[int, str]) -> set[Row]:
        """Give the rows of a query, whose bound variables have these values."""
        start = tuple(values.get(variable) for variable in range(query.variable_count))
        return {
            tuple(bindings[variable] for variable in query.outputs)
            for bindings in self._joined(query.body, start)
        }

    def _derive(self, program: Program) -> None:
        clauses = [clause for each in program.clauses.values() for clause in each]
        is_changed = True
        while is_changed:
            is_changed = False
            for clause in clauses:
                new = set(self._heads(clause)) - self._all[clause.head.signature]
                if new:
                    self._all[clause.head.signature] |= new
                    is_changed = True

    def _heads(self, clause: Clause) -> Iterator[Row]:
        start: Bindings = (None,) * len(clause.names)
        for bindings in self._joined(clause.body, start):
            if self._passes(clause, bindings):
                yield tuple(self._value(term, bindings) for term in clause.head.terms)

    def _joined(self, body: tuple[Atom, ...], start: Bindings) -> set[Bindings]:
        found = {start}
        for atom in body:
            tuples = self._all.get(atom.signature, ())
            found = {
                after
                for before in found
                for row in tuples
                if (after := self._bind(atom, row, before)) is not None
            }
        return found

    def _bind(self, atom: Atom, row: Row, before: Bindings) -> Bindings | None:
        self._steps -= 1
        if self._steps < 0:
            raise OverloadedError("evaluate", "policy", "it takes too many steps")
        after = list(before)
        for term, id_ in zip(atom.terms, row, strict=True):
            known = self._value(term, after)
            if id_ is not None and known is not None and id_ != known:
                return None
            if isinstance(term, int) and known is None:
                after[term] = id_
        return tuple(after)

    def _passes(self, clause: Clause, bindings: Bindings) -> bool:
        for comparison in clause.comparisons:
            left = self._value(comparison.left, bindings)
            right = self._value(comparison.right, bindings)
            assert left is not None and right is not None
            if not holds(comparison.operator, left, right):
                return False
        return not any(
            self._bind(atom, row, bindings) is not None
            for atom in clause.negated
            for row in self._facts.get(atom.signature, ())
        )

    def _value(self, term: Term, bindings: Bindings | list[str | None]) -> str | None:
        if isinstance(term, int):
            return bindings[term]
        return self._now if term is NOW else term
