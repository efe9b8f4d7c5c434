"""Questions: conjunctions of calls over variables, their typed queries, and rows of answers.

An answer binds each variable of the question to an id, or to None: any value of its type. Every
derivation is an answer with its most general bindings; one that a wider answer covers stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.authz.polar import syntax
from penstock.authz.polar.alternatives import Alternative, OpenAtom
from penstock.authz.polar.program import Atom, Program, Signature, Value
from penstock.authz.polar.typing import ways
from penstock.model.errors import InvalidRequestError

QUERIES_MAX: Final = 1_000
"""A question whose variables may have more types at once is refused."""
STEPS_MAX: Final = 200_000

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A variable is of a type (None: any that the calls give it), and one of `ids` unless they are
    None."""

    type: str | None
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """All calls have to hold; each row of the answer binds each variable of `constraints`."""

    calls: tuple[tuple[str, tuple[str, ...]], ...]
    constraints: Mapping[str, Constraint]


@dataclass(frozen=True, slots=True)
class Query:
    """A question for one way to type its variables.

    Args:
        body: the calls.
        outputs: the variable of each column of a row.
        types: of the columns.
        bound: variables that have a value when the query is asked.
        variable_count: variables are numbered below it.
    """

    body: tuple[Atom, ...]
    outputs: tuple[int, ...]
    types: tuple[str, ...]
    bound: frozenset[int]
    variable_count: int


class Evaluator(Protocol):
    """Answers queries from a program and facts."""

    def solve(self, query: Query, values: Mapping[int, str]) -> set[Row]:
        """Give the rows of a query, whose bound variables have these values."""
        ...


def authorize(actor: Value, action: str, resource: Value) -> Question:
    """Ask whether an actor may do an action to a resource."""
    return _allow(
        Constraint(actor.type, (actor.id,)),
        Constraint("String", (action,)),
        Constraint(resource.type, (resource.id,)),
    )


def list_resources(actor: Value, action: str, resource_type: str) -> Question:
    """Ask to which resources of a type an actor may do an action."""
    return _allow(
        Constraint(actor.type, (actor.id,)),
        Constraint("String", (action,)),
        Constraint(resource_type),
    )


def actions(actor: Value, resource: Value) -> Question:
    """Ask what an actor may do to a resource."""
    return _allow(
        Constraint(actor.type, (actor.id,)),
        Constraint("String"),
        Constraint(resource.type, (resource.id,)),
    )


def _allow(actor: Constraint, action: Constraint, resource: Constraint) -> Question:
    names = ("actor", "action", "resource")
    return Question((("allow", names),), dict(zip(names, (actor, action, resource), strict=True)))


def queries(program: Program, question: Question) -> list[Query]:
    """Type a question: its answer is the union of these queries' answers.

    Raises:
        InvalidRequestError: there are more than QUERIES_MAX.
    """
    numbers = {name: number for number, name in enumerate(question.constraints)}
    atoms = [
        OpenAtom(
            predicate,
            tuple(numbers.setdefault(name, len(numbers)) for name in names),
            syntax.NOWHERE,
        )
        for predicate, names in question.calls
    ]
    domains: list[frozenset[str] | None] = [None] * len(numbers)
    for name, constraint in question.constraints.items():
        if constraint.type is not None:
            domains[numbers[name]] = frozenset(program.types.concrete(constraint.type))
    alternative = Alternative(
        OpenAtom("", tuple(range(len(question.constraints))), syntax.NOWHERE),
        tuple(atoms),
        (),
        (),
        tuple(domains),
        tuple(numbers),
        syntax.NOWHERE,
        is_implied=True,
    )
    steps = iter(range(STEPS_MAX))

    def step() -> None:
        if next(steps, None) is None:
            raise _too_many()

    outputs = tuple(range(len(question.constraints)))
    bound = frozenset(
        numbers[name]
        for name, constraint in question.constraints.items()
        if constraint.ids is not None and len(constraint.ids) == 1
    )
    found = []
    for types in ways(alternative, program.patterns, step):
        body = tuple(
            Atom(
                Signature(atom.predicate, tuple(types[variable] for variable in atom.variables())),
                tuple(atom.variables()),
            )
            for atom in atoms
        )
        kinds = tuple(types[variable] for variable in outputs)
        found.append(Query(body, outputs, kinds, bound, len(numbers)))
        if len(found) > QUERIES_MAX:
            raise _too_many()
    return found


def values_of(question: Question) -> dict[int, str]:
    """Give the values of the bound variables, by their numbers."""
    return {
        number: constraint.ids[0]
        for number, constraint in enumerate(question.constraints.values())
        if constraint.ids is not None and len(constraint.ids) == 1
    }


Typing = Callable[[Program, Question], list[Query]]
"""Types a question: `queries`, or what remembers its results."""


def solve(
    program: Program, evaluator: Evaluator, question: Question, typing: Typing = queries
) -> set[tuple[Value, ...]]:
    """Answer a question: rows of values, whose id is "" for any value."""
    return {
        tuple(Value(kind, id_ or "") for kind, id_ in zip(query.types, row, strict=True))
        for query, row in _solved(program, evaluator, question, typing)
    }


def rows(
    program: Program, evaluator: Evaluator, question: Question, typing: Typing = queries
) -> list[dict[str, str | None]]:
    """Answer a question as `evaluate_query` does: unique rows in a stable order."""
    found = {row for _, row in _solved(program, evaluator, question, typing)}
    names = tuple(question.constraints)
    has_any = any(None in row for row in found)
    ordered = sorted(found, key=_order) if has_any else sorted(found)
    return [dict(zip(names, row, strict=True)) for row in ordered]


def _solved(
    program: Program, evaluator: Evaluator, question: Question, typing: Typing
) -> Iterator[tuple[Query, Row]]:
    if any(each.ids == () for each in question.constraints.values()):
        return
    values = values_of(question)
    for query in typing(program, question):
        for row in narrow(question, evaluator.solve(query, values)):
            yield query, row


def narrow(question: Question, found: Iterable[Row]) -> Iterator[Row]:
    """Keep the rows whose ids a question allows; "any" becomes each of the allowed ids."""
    lists = [
        (column, frozenset(constraint.ids))
        for column, constraint in enumerate(question.constraints.values())
        if constraint.ids is not None and len(constraint.ids) > 1
    ]
    if not lists:
        yield from found
        return
    for row in found:
        widened = [row]
        for column, ids in lists:
            widened = [
                (*each[:column], id_, *each[column + 1 :])
                for each in widened
                for id_ in (ids if each[column] is None else ids & {each[column]})
            ]
        yield from widened


def _order(row: Row) -> tuple[tuple[bool, str], ...]:
    return tuple((id_ is not None, id_ or "") for id_ in row)


def _too_many() -> InvalidRequestError:
    return InvalidRequestError(
        "ask", "question", "its variables may have too many types at once", "give narrower types"
    )
