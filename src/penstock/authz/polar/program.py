"""A checked policy, as evaluators take it: clauses over concrete types.

Each clause has one concrete type per variable, so that its values are ids alone. A variable is its
number, a constant its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Span
from penstock.authz.polar.types import Types

FACT_ARGUMENTS_MAX: Final = 5


class Moment(Enum):
    """The type of NOW."""

    NOW = "@current_unix_time"


NOW: Final = Moment.NOW
"""The moment of the question, an Integer."""

Term = int | str | Moment


class Value(NamedTuple):
    """A value of a fact or a question."""

    type: str
    id: str


class Fact(NamedTuple):
    """A fact: stored, or of one question's context."""

    predicate: str
    arguments: tuple[Value, ...]

    @property
    def signature(self) -> Signature:
        """The predicate with the types of the arguments."""
        return Signature(self.predicate, tuple(each.type for each in self.arguments))

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the arguments."""
        return tuple(each.id for each in self.arguments)


class Signature(NamedTuple):
    """A predicate over concrete types."""

    predicate: str
    types: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.predicate}({', '.join(self.types)})"


class Atom(NamedTuple):
    """A condition on a predicate."""

    signature: Signature
    terms: tuple[Term, ...]

    @property
    def variables(self) -> Iterator[int]:
        """The variables, in order, with repetitions."""
        return (term for term in self.terms if isinstance(term, int))


class Comparison(NamedTuple):
    """A condition on two values; `is_numeric` compares them as Integers, else as texts."""

    operator: str
    left: Term
    right: Term
    is_numeric: bool


@dataclass(frozen=True, slots=True)
class Clause:
    """A rule of one alternative and of concrete types.

    Args:
        head: what holds; a variable of it that no body atom has is any value.
        body: conditions on predicates.
        negated: atoms that no stored or context fact may match; their variables that no body atom
            has stand for any value.
        comparisons: conditions on values that the body binds.
        names: of the variables, by number.
        span: of the rule in the source.
    """

    head: Atom
    body: tuple[Atom, ...]
    negated: tuple[Atom, ...]
    comparisons: tuple[Comparison, ...]
    names: tuple[str, ...]
    span: Span


Pattern = tuple[tuple[str, str | None], ...]
"""The types of a predicate's arguments, each with the id that it has to be, if any."""


class Bound(Enum):
    """An argument is any value, or some value."""

    ANY = "any"
    VALUE = "value"


ANY: Final = Bound.ANY
VALUE: Final = Bound.VALUE

Shape = tuple[Bound | str, ...]
"""Each argument is any value, some value, or a constant."""


@dataclass(frozen=True, slots=True)
class Program:
    """A checked policy.

    Args:
        source: the policy.
        types: its types.
        clauses: by the signature of their heads.
        facts: the signatures of facts that the policy accepts.
        patterns: what may hold, by predicate: what a variable's type is inferred from.
        shapes: of the answers of each signature (`wildcards`).
        metadata: roles, permissions and relations by type, and "global", as the API gives them.
        tests: its tests.
        fixtures: facts by the name of their fixture.
        queries: the predicates, without arguments, that its `?=` lines ask.
    """

    source: str
    types: Types
    clauses: Mapping[Signature, tuple[Clause, ...]]
    facts: frozenset[Signature]
    patterns: Mapping[str, Mapping[Pattern, None]]
    shapes: Mapping[Signature, frozenset[Shape]]
    metadata: Mapping[str, Mapping[str, object]]
    tests: tuple[syntax.Test, ...]
    fixtures: Mapping[str, tuple[syntax.Call, ...]]
    queries: Mapping[str, Span]

    def of(self, signature: Signature) -> tuple[Clause, ...]:
        """Give the clauses of a signature."""
        return self.clauses.get(signature, ())
