"""The syntax of a policy, as frozen values. Two are equal if they say the same in the same order:
where it stands in the source doesn't count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.authz.polar.errors import Span

NOWHERE: Final = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Name:
    """A name or a string, where only its characters count."""

    text: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


# --- Terms


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable; `_` is another one at each place. `type` stands only in a test's assertion."""

    name: str
    type: Name | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    @property
    def is_anonymous(self) -> bool:
        """Whether it is `_`."""
        return self.name == "_"


@dataclass(frozen=True, slots=True)
class Value:
    """A literal: strings, integers and booleans are values of the primitive types."""

    type: str
    id: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Now:
    """`@current_unix_time`."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of terms."""

    items: tuple[Term, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Term = Variable | Value | Now | Items

# --- Expressions


@dataclass(frozen=True, slots=True)
class Call:
    """A predicate with its arguments."""

    name: Name
    arguments: tuple[Term, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Truth:
    """`true` or `false`."""

    value: bool
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Compare:
    """`=`, `!=`, `<`, `<=`, `>` or `>=` between two terms."""

    operator: str
    left: Term
    right: Term
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class In:
    """A term is one of a list."""

    term: Term
    items: Items
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Matches:
    """A term is of a type; `exact` is `matches!`."""

    term: Term
    type: Name
    exact: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    """The part doesn't hold."""

    part: Expression
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold; there are two or more, and none is itself an And."""

    parts: tuple[Expression, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Or:
    """A part holds; there are two or more, and none is itself an Or."""

    parts: tuple[Expression, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Expression = Call | Truth | Compare | In | Matches | Not | And | Or

# --- Shorthand


@dataclass(frozen=True, slots=True)
class Step:
    """`X`, `X on Y` or `global X`; a `name` without quotes is `role` or `permission`."""

    text: Name
    is_name: bool = False
    on: Name | None = None
    is_global: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ShortAnd:
    """All parts hold."""

    parts: tuple[Shorthand, ...]


@dataclass(frozen=True, slots=True)
class ShortOr:
    """A part holds."""

    parts: tuple[Shorthand, ...]


Shorthand = Step | Call | ShortAnd | ShortOr


@dataclass(frozen=True, slots=True)
class ShorthandRule:
    """`head if body;` of a block."""

    head: Name
    is_name: bool
    body: Shorthand
    span: Span = field(default=NOWHERE, compare=False, repr=False)


# --- What stands at the top


@dataclass(frozen=True, slots=True)
class Names:
    """`roles = [...]` or `permissions = [...]`."""

    kind: str
    names: tuple[Name, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """One `name: Type` of `relations`."""

    name: Name
    type: Name


@dataclass(frozen=True, slots=True)
class Relations:
    """`relations = {...}`."""

    relations: tuple[Relation, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


BlockItem = Names | Relations | ShorthandRule


@dataclass(frozen=True, slots=True)
class Block:
    """`actor`, `resource` or `global`; a global block's name is "global"."""

    kind: str
    name: Name
    extends: tuple[Name, ...]
    items: tuple[BlockItem, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a rule: a variable with or without a type, or a value."""

    term: Variable | Value
    type: Name | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; without `if` its body is None, and it holds for all values of its parameters."""

    name: Name
    parameters: tuple[Parameter, ...]
    body: Expression | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RuleType:
    """`type f(...);`, which has no effect."""

    name: Name
    parameters: tuple[Parameter, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Declare:
    """`declare f(Type, ...);`."""

    name: Name
    types: tuple[Name, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class InlineQuery:
    """`?= expression;`."""

    body: Expression
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Fixture:
    """`test fixture NAME { facts }`."""

    name: Name
    facts: tuple[Call, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class UseFixture:
    """`fixture NAME;` of a test's setup."""

    name: Name
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Assertion:
    """`assert` or, if `expected` is false, `assert_not`."""

    expected: bool
    call: Call
    iff: Expression | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Test:
    """A test of the policy."""

    name: Name
    setup: tuple[Call | UseFixture, ...]
    assertions: tuple[Assertion, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Part = Block | Rule | RuleType | Declare | InlineQuery | Fixture | Test


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy."""

    parts: tuple[Part, ...]
