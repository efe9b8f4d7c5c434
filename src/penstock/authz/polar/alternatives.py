"""Rule bodies as alternatives: `or` and `in` are multiplied out, equal variables are one.

The types are still open here: a variable has a set of types, or none yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Diagnostic, Span
from penstock.authz.polar.types import Types

ALTERNATIVES_MAX: Final = 1_000
CONDITIONS_MAX: Final = 64

OpenTerm = int | syntax.Value | syntax.Now


class RefusedError(Exception):
    """A rule is refused."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(message, span)


@dataclass(frozen=True, slots=True)
class OpenAtom:
    """A condition on a predicate, with types still open."""

    predicate: str
    terms: tuple[OpenTerm, ...]
    span: Span

    def variables(self) -> Iterator[int]:
        """Yield its variables."""
        return (term for term in self.terms if isinstance(term, int))


@dataclass(frozen=True, slots=True)
class OpenComparison:
    """A condition on two values."""

    operator: str
    left: OpenTerm
    right: OpenTerm
    span: Span


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way in which a rule holds.

    Args:
        domains: of each variable, the types it may have; None: to be inferred.
        names: of each variable.
        is_implied: the rule isn't the policy's own.
    """

    head: OpenAtom
    body: tuple[OpenAtom, ...]
    negated: tuple[OpenAtom, ...]
    comparisons: tuple[OpenComparison, ...]
    domains: tuple[frozenset[str] | None, ...]
    names: tuple[str, ...]
    span: Span
    is_implied: bool = False


Condition = syntax.Call | syntax.Compare | syntax.Matches | syntax.Not | syntax.Truth


def alternatives(rule: syntax.Rule, types: Types, *, is_implied: bool = False) -> list[Alternative]:
    """Give the alternatives of a rule; those that can never hold are left out.

    Raises:
        RefusedError: the rule breaks a rule of the language.
    """
    found = []
    for conditions in _multiplied(rule.body) if rule.body is not None else [()]:
        if len(conditions) > CONDITIONS_MAX:
            raise RefusedError(
                f"{len(conditions)} conditions in one alternative: at most {CONDITIONS_MAX}",
                rule.span,
            )
        unifier = _Unifier(types)
        alternative = unifier.alternative(rule, conditions, is_implied=is_implied)
        if alternative is not None:
            _check_bound(alternative)
            found.append(alternative)
    return found


def _multiplied(part: syntax.Expression) -> list[tuple[Condition, ...]]:
    match part:
        case syntax.Or():
            found: list[tuple[Condition, ...]] = []
            for each in part.parts:
                found += _multiplied(each)
                _check_count(len(found), part.span)
            return found
        case syntax.And():
            product: list[tuple[Condition, ...]] = [()]
            for each in part.parts:
                factor = _multiplied(each)
                _check_count(len(product) * len(factor), part.span)
                product = [before + after for before in product for after in factor]
            return product
        case syntax.In():
            items = part.items.items
            _check_count(len(items), part.span)
            return [(syntax.Compare("=", part.term, item, part.span),) for item in items]
        case syntax.Not():
            return [(_negation(part),)]
        case _:
            return [(part,)]


def _check_count(count: int, span: Span) -> None:
    if count > ALTERNATIVES_MAX:
        raise RefusedError(
            f"{count:,} alternatives once `or` and `in` are multiplied out: at most "
            f"{ALTERNATIVES_MAX:,}; give a part of the rule a name of its own",
            span,
        )


def _negation(part: syntax.Not) -> Condition:
    inner: syntax.Expression = part
    is_negative = False
    while isinstance(inner, syntax.Not):
        inner = inner.part
        is_negative = not is_negative
    if isinstance(inner, syntax.Truth):
        return syntax.Truth(inner.value != is_negative, part.span)
    if not isinstance(inner, syntax.Call):
        hint = "; write != for not =" if isinstance(inner, syntax.Compare) else ""
        raise RefusedError(f"not takes one call of a stored fact{hint}", part.span)
    return syntax.Not(inner, part.span) if is_negative else inner


def _check_bound(alternative: Alternative) -> None:
    bound = {variable for atom in alternative.body for variable in atom.variables()}
    used = [
        *(
            (term, each.span)
            for each in alternative.comparisons
            for term in (each.left, each.right)
            if isinstance(term, int)
        ),
        *(
            (variable, atom.span)
            for atom in alternative.negated
            for variable in atom.variables()
            if not alternative.names[variable].startswith("_#")
        ),
    ]
    for variable, span in used:
        if variable not in bound:
            raise RefusedError(
                f"variable {shown_name(alternative.names[variable])} is unbound: a call that isn't "
                "negated has to bind it",
                span,
            )


@dataclass(slots=True)
class _Unifier:
    """Makes equal variables one, while it reads the conditions of one alternative."""

    types: Types
    _bindings: dict[str, syntax.Term] = field(default_factory=dict)
    _domains: dict[str, frozenset[str]] = field(default_factory=dict)
    _anonymous_count: int = 0

    def alternative(
        self, rule: syntax.Rule, conditions: tuple[Condition, ...], *, is_implied: bool
    ) -> Alternative | None:
        head = tuple(self._parameter(each) for each in rule.parameters)
        calls: list[tuple[syntax.Call, tuple[syntax.Term, ...], bool]] = []
        comparisons: list[tuple[str, syntax.Term, syntax.Term, Span]] = []
        for condition in conditions:
            match condition:
                case syntax.Truth():
                    if not condition.value:
                        return None
                case syntax.Call():
                    calls.append((condition, self._named(condition.arguments), False))
                case syntax.Not(syntax.Call() as call):
                    calls.append((call, self._named(call.arguments), True))
                case syntax.Matches():
                    if not self._match(condition):
                        return None
                case syntax.Compare("="):
                    if not self._unify(condition.left, condition.right, condition, comparisons):
                        return None
                case syntax.Compare():
                    left, right = self._named((condition.left, condition.right))
                    comparisons.append((condition.operator, left, right, condition.span))
                case _:
                    raise AssertionError(condition)
        return self._close(rule, head, calls, comparisons, is_implied=is_implied)

    # --- Reading

    def _parameter(self, parameter: syntax.Parameter) -> syntax.Term:
        (term,) = self._named((parameter.term,))
        if parameter.type is not None:
            assert isinstance(term, syntax.Variable)
            self._restrict(term, self._concrete(parameter.type))
        return term

    def _named(self, terms: tuple[syntax.Term, ...]) -> tuple[syntax.Term, ...]:
        return tuple(map(self._name_term, terms))

    def _name_term(self, term: syntax.Term) -> syntax.Term:
        match term:
            case syntax.Variable() if term.is_anonymous:
                self._anonymous_count += 1
                return syntax.Variable(f"_#{self._anonymous_count}", span=term.span)
            case syntax.Items():
                return syntax.Items(self._named(term.items), term.span)
            case syntax.Value() if not self.types.exists(term.type):
                raise RefusedError(self.types.unknown(term.type), term.span)
        return term

    def _concrete(self, name: syntax.Name) -> frozenset[str]:
        if not self.types.exists(name.text):
            raise RefusedError(self.types.unknown(name.text), name.span)
        return frozenset(self.types.concrete(name.text))

    def _restrict(self, term: syntax.Variable, domain: frozenset[str]) -> None:
        before = self._domains.get(term.name)
        self._domains[term.name] = domain if before is None else before & domain

    def _match(self, condition: syntax.Matches) -> bool:
        if condition.exact:
            raise RefusedError("matches! isn't supported: use matches", condition.span)
        domain = self._concrete(condition.type)
        (named,) = self._named((condition.term,))
        term = self._resolve(named)
        match term:
            case syntax.Variable():
                self._restrict(term, domain)
                return True
            case syntax.Value():
                return term.type in domain
            case syntax.Now():
                return "Integer" in domain
            case syntax.Items():
                raise RefusedError("a list has no type", condition.span)

    def _unify(
        self,
        left: syntax.Term,
        right: syntax.Term,
        condition: syntax.Compare,
        comparisons: list[tuple[str, syntax.Term, syntax.Term, Span]],
    ) -> bool:
        pairs = [self._named((left, right))]
        while pairs:
            one, other = map(self._resolve, pairs.pop())
            match one, other:
                case syntax.Items(), syntax.Items():
                    if len(one.items) != len(other.items):
                        return False
                    pairs += zip(one.items, other.items, strict=True)
                case (syntax.Items(), _) | (_, syntax.Items()):
                    raise RefusedError("a list is compared with a list", condition.span)
                case syntax.Variable(), _:
                    if not self._bind(one, other):
                        return False
                case _, syntax.Variable():
                    if not self._bind(other, one):
                        return False
                case syntax.Value(), syntax.Value():
                    if (one.type, one.id) != (other.type, other.id):
                        return False
                case syntax.Now(), syntax.Now():
                    pass
                case _:
                    comparisons.append(("=", one, other, condition.span))
        return True

    def _resolve(self, term: syntax.Term) -> syntax.Term:
        while isinstance(term, syntax.Variable) and term.name in self._bindings:
            term = self._bindings[term.name]
        return term

    def _bind(self, variable: syntax.Variable, term: syntax.Term) -> bool:
        if isinstance(term, syntax.Variable) and term.name == variable.name:
            return True
        self._bindings[variable.name] = term
        return True

    # --- Closing

    def _close(
        self,
        rule: syntax.Rule,
        head: tuple[syntax.Term, ...],
        calls: list[tuple[syntax.Call, tuple[syntax.Term, ...], bool]],
        comparisons: list[tuple[str, syntax.Term, syntax.Term, Span]],
        *,
        is_implied: bool,
    ) -> Alternative | None:
        domains: dict[str, frozenset[str]] = {}
        for name, domain in self._domains.items():
            term = self._resolve(syntax.Variable(name))
            if isinstance(term, syntax.Variable):
                domains[term.name] = domains.get(term.name, domain) & domain
            elif (term.type if isinstance(term, syntax.Value) else "Integer") not in domain:
                return None
        numbers: dict[str, int] = {}

        def close(term: syntax.Term, span: Span) -> OpenTerm:
            found = self._resolve(term)
            if isinstance(found, syntax.Items):
                raise RefusedError("a list can't be an argument", span)
            if isinstance(found, syntax.Variable):
                return numbers.setdefault(found.name, len(numbers))
            return found

        def atom(name: str, terms: tuple[syntax.Term, ...], span: Span) -> OpenAtom:
            return OpenAtom(name, tuple(close(term, span) for term in terms), span)

        closed_head = atom(rule.name.text, head, rule.span)
        body = [
            atom(each.name.text, terms, each.span) for each, terms, is_not in calls if not is_not
        ]
        negated = [
            atom(each.name.text, terms, each.span) for each, terms, is_not in calls if is_not
        ]
        compared = []
        for operator, left, right, span in comparisons:
            one, other = close(left, span), close(right, span)
            for value in (one, other) if operator not in ("=", "!=") else ():
                if isinstance(value, syntax.Value) and value.type != "Integer":
                    raise RefusedError(f"{operator} compares Integers, not a {value.type}", span)
            compared.append(OpenComparison(operator, one, other, span))
            for term in (left, right) if operator not in ("=", "!=") else ():
                found = self._resolve(term)
                if isinstance(found, syntax.Variable):
                    if "Integer" not in domains.get(found.name, ("Integer",)):
                        raise RefusedError(f"{operator} compares Integers alone", span)
                    domains[found.name] = frozenset(["Integer"])
        # A name that stands nowhere else is left out, but its types may have ruled it all out.
        if any(not domain for domain in domains.values()):
            return None
        return Alternative(
            closed_head,
            tuple(dict.fromkeys(body)),
            tuple(dict.fromkeys(negated)),
            tuple(compared),
            tuple(domains.get(name) for name in numbers),
            tuple(numbers),
            rule.span,
            is_implied,
        )


def shown_name(name: str) -> str:
    """Give a variable's name as the source has it."""
    return name.partition("#")[0]
