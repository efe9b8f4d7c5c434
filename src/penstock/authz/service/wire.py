"""Bodies of calls and answers, as Oso Cloud's SDKs send and expect them. Pure."""

from typing import Any, Final

import msgspec

from penstock.authz.polar.program import Fact, Program, Value
from penstock.authz.polar.query import Constraint, Question
from penstock.authz.polar.values import check_fact, check_value
from penstock.model.errors import InvalidRequestError

ARGUMENTS_MAX: Final = 10
PREDICATE_BYTES_MAX: Final = 384
CONTEXT_FACTS_MAX: Final = 1_000
CHANGES_MAX: Final = 100_000
CALLS_MAX: Final = 100


class LimitError(InvalidRequestError):
    """A call has more of something than is allowed: 413."""


class ValueIn(msgspec.Struct, frozen=True):
    """A value."""

    type: str
    id: str


class FactIn(msgspec.Struct, frozen=True):
    """A fact."""

    predicate: str
    args: list[ValueIn]


class PatternValue(msgspec.Struct, frozen=True):
    """A value of a pattern: None matches any."""

    type: str | None = None
    id: str | None = None


class PatternIn(msgspec.Struct, frozen=True):
    """A pattern of facts."""

    predicate: str
    args: list[PatternValue]


class ChangesIn(msgspec.Struct, frozen=True):
    """A part of a batch: inserts or deletes."""

    inserts: list[FactIn] | None = None
    deletes: list[PatternIn] | None = None


class PolicyIn(msgspec.Struct, frozen=True):
    """A policy."""

    src: str
    filename: str | None = None


class AuthorizeIn(msgspec.Struct, frozen=True):
    """Ask whether an actor may do an action to a resource."""

    actor_type: str
    actor_id: str
    action: str
    resource_type: str
    resource_id: str
    context_facts: list[FactIn] = []


class ListIn(msgspec.Struct, frozen=True):
    """Ask to which resources of a type an actor may do an action."""

    actor_type: str
    actor_id: str
    action: str
    resource_type: str
    context_facts: list[FactIn] = []
    page_size: int | None = None
    page_token: str | None = None


class ActionsIn(msgspec.Struct, frozen=True):
    """Ask what an actor may do to a resource."""

    actor_type: str
    actor_id: str
    resource_type: str
    resource_id: str
    context_facts: list[FactIn] = []


class ConstraintIn(msgspec.Struct, frozen=True):
    """A variable's type, and the ids that it may have."""

    type: str | None = None
    ids: list[str] | None = None


class EvaluateIn(msgspec.Struct, frozen=True):
    """A question of the query builder."""

    predicate: tuple[str, list[str]]
    calls: list[tuple[str, list[str]]] = []
    constraints: dict[str, ConstraintIn] = {}
    context_facts: list[FactIn] = []


class ResourcesIn(msgspec.Struct, frozen=True):
    """Ask to which of these resources an actor may do an action."""

    actor_type: str
    actor_id: str
    action: str
    resources: list[ValueIn]
    context_facts: list[FactIn] = []


class BulkIn(msgspec.Struct, frozen=True):
    """The older form of a batch."""

    delete: list[PatternIn] = []
    tell: list[FactIn] = []


class QueryIn(msgspec.Struct, frozen=True):
    """The older form of a question: a pattern."""

    fact: PatternIn
    context_facts: list[FactIn] = []


class ExpectIn(msgspec.Struct, frozen=True):
    """A client's own code has decided this for a request."""

    request_id: str
    expected: bool


def value(kind: str, id_: str) -> Value:
    """Check a value. Raises: InvalidRequestError."""
    found = Value(kind, id_)
    check_value(found)
    return found


def context(program: Program, facts: list[FactIn]) -> tuple[Fact, ...]:
    """Check context facts against a policy. Raises: InvalidRequestError."""
    if not facts:
        return ()
    if len(facts) > CONTEXT_FACTS_MAX:
        detail = f"{len(facts):,} context facts; {CONTEXT_FACTS_MAX:,} are allowed"
        raise LimitError("check", "context facts", detail)
    found = tuple(map(fact, facts))
    for each in found:
        check_fact(program, each)
    return found


def fact(given: FactIn) -> Fact:
    """Give a fact, whose values are checked. Raises: InvalidRequestError."""
    _check_predicate(given.predicate, len(given.args))
    return Fact(given.predicate, tuple(value(each.type, each.id) for each in given.args))


def check_pattern(given: PatternIn) -> None:
    """Check a pattern. Raises: InvalidRequestError."""
    _check_predicate(given.predicate, len(given.args))
    for each in given.args:
        if each.id is not None:
            if each.type is None:
                raise InvalidRequestError("check", "value", "an id has a type")
            value(each.type, each.id)
        elif each.type is not None and not each.type:
            raise InvalidRequestError("check", "value", "a type must not be empty")


def question(given: EvaluateIn) -> Question:
    """Give the question of a query builder's call. Raises: InvalidRequestError."""
    calls = (given.predicate, *given.calls)
    if len(calls) > CALLS_MAX:
        raise LimitError("check", "query", f"{len(calls):,} calls; {CALLS_MAX} are allowed")
    for name, variables in calls:
        _check_predicate(name, len(variables))
    constraints = {}
    for name, constraint in given.constraints.items():
        for id_ in constraint.ids or ():
            value(constraint.type or "String", id_)
        ids = None if constraint.ids is None else tuple(dict.fromkeys(constraint.ids))
        constraints[name] = Constraint(constraint.type, ids)
    return Question(tuple((name, tuple(args)) for name, args in calls), constraints)


def fact_out(predicate: str, types: tuple[str, ...], ids: tuple[Any, ...]) -> dict[str, object]:
    """Give a fact as JSON; an id of None is any value."""
    args = [{"type": kind, "id": id_} for kind, id_ in zip(types, ids, strict=True)]
    return {"predicate": predicate, "args": args}


def _check_predicate(name: str, count: int) -> None:
    if not name:
        raise InvalidRequestError("check", "fact", "a predicate must not be empty")
    if len(name.encode("utf-8", "surrogatepass")) > PREDICATE_BYTES_MAX:
        detail = f"a predicate has at most {PREDICATE_BYTES_MAX} bytes"
        raise InvalidRequestError("check", "fact", detail)
    if count > ARGUMENTS_MAX:
        detail = f"{name[:100]} has {count} arguments; {ARGUMENTS_MAX} are allowed"
        raise InvalidRequestError("check", "fact", detail)
