"""Conditions on the way to a SELECT: what is joined, what is known, what is still to be joined.

Variables are numbers that are unique in one statement. A known one has an expression: a column, or
a parameter. One that nothing binds is any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.authz.polar.program import Atom, Clause, Comparison, Moment, Term

TRUE: Final = "1 = 1"
FALSE: Final = "1 = 0"


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Conditions that hold together.

    Args:
        pending: atoms that aren't joined yet.
        negated: atoms to be negated once their variables are known.
        comparisons: likewise.
        sources: what stands in FROM, in the order in which it is joined.
        conditions: what stands in WHERE: all of these, of each one of the expressions.
        known: the expressions of variables.
        same: what variables that were unified stand for.
    """

    pending: tuple[Atom, ...] = ()
    negated: tuple[Atom, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    sources: tuple[str, ...] = ()
    conditions: tuple[tuple[str, ...], ...] = ()
    known: Mapping[int, str] = field(default_factory=dict)
    same: Mapping[int, Term] = field(default_factory=dict)

    def resolve(self, term: Term) -> Term:
        """Give what a term stands for: a constant, NOW, or a variable."""
        while isinstance(term, int) and term in self.same:
            term = self.same[term]
        return term

    def resolved(self, atom: Atom) -> Atom:
        """Give an atom with what its terms stand for."""
        return Atom(atom.signature, tuple(map(self.resolve, atom.terms)))

    def without(self, index: int) -> Conjunction:
        """Take one atom out of those that are pending."""
        return replace(self, pending=(*self.pending[:index], *self.pending[index + 1 :]))

    def where(self, alternatives: Iterable[str]) -> Conjunction:
        """Add a condition: one of some expressions."""
        condition = tuple(dict.fromkeys(alternatives))
        if TRUE in condition:
            return self
        return replace(self, conditions=(*self.conditions, condition))

    def joined(self, source: str) -> Conjunction:
        """Add a source to FROM."""
        return replace(self, sources=(*self.sources, source))


class Parameters:
    """The parameters of a statement, numbered as they are first needed.

    A slot is a variable of the question ("value"), a constant of the policy ("constant"), the time
    ("now"), or the context's facts of a signature ("context"). Constants are parameters, too, so
    that no text of a policy is ever part of a statement.
    """

    def __init__(self) -> None:
        self.slots: dict[tuple[str, object], int] = {}

    def expression(self, kind: str, what: object) -> str:
        """Give the expression of a slot."""
        return f"?{self.slots.setdefault((kind, what), len(self.slots) + 1)}"

    def constant(self, text: str) -> str:
        """Give the expression of a constant."""
        return self.expression("constant", text)

    def now(self) -> str:
        """Give the expression of the question's time."""
        return self.expression("now", None)


def expression(conjunction: Conjunction, term: Term, parameters: Parameters) -> str | None:
    """Give the expression of a term; None if nothing binds it."""
    found = conjunction.resolve(term)
    if isinstance(found, int):
        return conjunction.known.get(found)
    return parameters.now() if isinstance(found, Moment) else parameters.constant(found)


def unify(
    conjunction: Conjunction, one: Term, other: Term, parameters: Parameters
) -> Conjunction | None:
    """Make two terms equal; None if they can't be."""
    left, right = conjunction.resolve(one), conjunction.resolve(other)
    if left == right:
        return conjunction
    for this, that in ((left, right), (right, left)):
        if isinstance(this, int) and this not in conjunction.known:
            return replace(conjunction, same={**conjunction.same, this: that})
    if isinstance(left, str) and isinstance(right, str):
        return None
    texts = [expression(conjunction, term, parameters) for term in (left, right)]
    found = conjunction.where([f"{texts[0]} = {texts[1]}"])
    # What equals a constant is one from here on, which keeps other rules out.
    for this, that in ((left, right), (right, left)):
        if isinstance(this, int) and isinstance(that, str):
            return replace(found, same={**found.same, this: that})
    return found


def bind(conjunction: Conjunction, term: Term, text: str, parameters: Parameters) -> Conjunction:
    """Let a term be an expression: its own from here on, or compared with it."""
    found = conjunction.resolve(term)
    if isinstance(found, int) and found not in conjunction.known:
        return replace(conjunction, known={**conjunction.known, found: text})
    return conjunction.where([f"{expression(conjunction, found, parameters)} = {text}"])


def inline(
    conjunction: Conjunction, atom: Atom, clause: Clause, base: int, parameters: Parameters
) -> Conjunction | None:
    """Put a clause in the place of an atom that was taken out; None if its head doesn't match.

    Args:
        base: the number of the clause's first variable, none of which is in use.
    """

    def moved(term: Term) -> Term:
        return base + term if isinstance(term, int) else term

    def moved_atom(each: Atom) -> Atom:
        return Atom(each.signature, tuple(map(moved, each.terms)))

    found: Conjunction | None = conjunction
    for term, given in zip(clause.head.terms, atom.terms, strict=True):
        if found is not None:
            found = unify(found, moved(term), given, parameters)
    if found is None:
        return None
    return replace(
        found,
        pending=(*found.pending, *map(moved_atom, clause.body)),
        negated=(*found.negated, *map(moved_atom, clause.negated)),
        comparisons=(
            *found.comparisons,
            *(
                each._replace(left=moved(each.left), right=moved(each.right))
                for each in clause.comparisons
            ),
        ),
    )


def comparison_text(
    conjunction: Conjunction, comparison: Comparison, parameters: Parameters
) -> str | None:
    """Write a comparison; None if a variable of it isn't bound yet."""
    left = expression(conjunction, comparison.left, parameters)
    right = expression(conjunction, comparison.right, parameters)
    if left is None or right is None:
        return None
    if comparison.operator in ("=", "!="):
        return f"{left} {comparison.operator} {right}"
    return f"CAST({left} AS INTEGER) {comparison.operator} CAST({right} AS INTEGER)"
