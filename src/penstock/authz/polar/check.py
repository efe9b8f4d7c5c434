"""A policy's checks: from source to a `Program`, or all that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.authz.polar import shorthand, syntax, wildcards
from penstock.authz.polar.alternatives import Alternative, RefusedError, alternatives
from penstock.authz.polar.errors import Diagnostic, PolicyError, Span
from penstock.authz.polar.parser import parse
from penstock.authz.polar.program import Atom, Clause, Program, Signature
from penstock.authz.polar.types import Types, collect, fact_patterns, metadata
from penstock.authz.polar.typing import Typer

DIAGNOSTICS_MAX: Final = 50
SIGNATURES_MAX: Final = 20_000

_IMPLIED: Final = """
allow(actor: Actor, action: String, resource: Resource) if has_permission(actor, action, resource);
"""


def check(source: str) -> Program:
    """Check a policy.

    Raises:
        PolicyError: with everything that was found, up to DIAGNOSTICS_MAX.
    """
    policy = parse(source)
    types, wrong = collect(policy)
    if wrong:
        # What follows would report the same types again.
        raise PolicyError(source, wrong[:DIAGNOSTICS_MAX])
    found = list(_alternatives(policy, types, wrong))
    declared = list(_declared(policy, types, wrong))
    tests = [part for part in policy.parts if isinstance(part, syntax.Test)]
    fixtures = _fixtures(policy, types, wrong)
    for test in tests:
        _check_test(test, fixtures, types, wrong)
    typer = Typer(declared)
    try:
        typer.run(found)
        wrong += typer.wrong
        clauses = {signature: tuple(each) for signature, each in typer.clauses.items()}
        facts = frozenset(typer.facts)
        if not wrong:
            _check_negations(clauses, wrong)
        shapes = wildcards.shapes(clauses, facts) if not wrong else {}
    except RefusedError as error:
        wrong.append(error.diagnostic)
    if wrong:
        unique = {(each.message, each.span): each for each in wrong}
        raise PolicyError(source, list(unique.values())[:DIAGNOSTICS_MAX])
    return Program(
        source=source,
        types=types,
        clauses=clauses,
        facts=facts,
        patterns=typer.patterns,
        shapes=shapes,
        metadata=metadata(types),
        tests=tuple(tests),
        fixtures=fixtures,
        queries=_queries(policy),
    )


def _alternatives(
    policy: syntax.Policy, types: Types, wrong: list[Diagnostic]
) -> Iterator[Alternative]:
    has_allow = False
    for part in policy.parts:
        if isinstance(part, syntax.Block):
            rules = list(shorthand.expand(part, types, wrong))
        elif isinstance(part, syntax.Rule):
            rules = [part]
            has_allow |= part.name.text == "allow"
        elif isinstance(part, syntax.InlineQuery):
            rules = [syntax.Rule(syntax.Name(_query_name(part)), (), part.body, part.span)]
        else:
            continue
        for rule in rules:
            try:
                yield from alternatives(rule, types)
            except RefusedError as error:
                wrong.append(error.diagnostic)
    if not has_allow:
        (implied,) = parse(_IMPLIED).parts
        assert isinstance(implied, syntax.Rule)
        # Its place is in no source.
        implied = replace(implied, span=syntax.NOWHERE)
        yield from alternatives(implied, types, is_implied=True)


def _queries(policy: syntax.Policy) -> dict[str, Span]:
    queries = (part for part in policy.parts if isinstance(part, syntax.InlineQuery))
    return {_query_name(query): query.span for query in queries}


def _query_name(query: syntax.InlineQuery) -> str:
    """Name the predicate of an inline query as no source can."""
    return f"?={query.span.start}"


def _declared(
    policy: syntax.Policy, types: Types, wrong: list[Diagnostic]
) -> Iterator[tuple[str, tuple[tuple[str, str | None], ...]]]:
    seen = set()
    for predicate, pattern in fact_patterns(types):
        seen.add((predicate, pattern))
        if len(seen) > SIGNATURES_MAX:
            message = f"blocks declare more than {SIGNATURES_MAX:,} kinds of facts"
            wrong.append(Diagnostic(message, policy.parts[0].span))
            return
        yield predicate, pattern
    for part in policy.parts:
        if not isinstance(part, syntax.Declare):
            continue
        products: list[tuple[tuple[str, str | None], ...]] = [()]
        for name in part.types:
            if not types.exists(name.text):
                wrong.append(Diagnostic(types.unknown(name.text), name.span))
            concrete = types.concrete(name.text)
            if len(products) * len(concrete) > SIGNATURES_MAX:
                message = f"declares more than {SIGNATURES_MAX:,} kinds of facts"
                wrong.append(Diagnostic(message, part.span))
                break
            products = [(*before, (kind, None)) for before in products for kind in concrete]
        else:
            yield from ((part.name.text, pattern) for pattern in products)


def _check_negations(clauses: dict[Signature, tuple[Clause, ...]], wrong: list[Diagnostic]) -> None:
    """A negated fact must not be what a rule defines: its answer would depend on the order."""
    for each in clauses.values():
        for clause in each:
            wrong += (
                Diagnostic(
                    f"not can't be applied to {atom.signature.predicate}: rules define it, and not "
                    "takes a stored fact",
                    clause.span,
                )
                for atom in clause.negated
                if any(_may_match(atom, other.head) for other in clauses.get(atom.signature, ()))
            )


def _may_match(one: Atom, other: Atom) -> bool:
    return not any(
        isinstance(left, str) and isinstance(right, str) and left != right
        for left, right in zip(one.terms, other.terms, strict=True)
    )


def _fixtures(
    policy: syntax.Policy, types: Types, wrong: list[Diagnostic]
) -> dict[str, tuple[syntax.Call, ...]]:
    fixtures: dict[str, tuple[syntax.Call, ...]] = {}
    for part in policy.parts:
        if isinstance(part, syntax.Fixture):
            if part.name.text in fixtures:
                wrong.append(Diagnostic(f"duplicate fixture {part.name.text}", part.name.span))
            fixtures[part.name.text] = part.facts
            for fact in part.facts:
                _check_terms(fact, types, wrong)
    return fixtures


def _check_test(
    test: syntax.Test,
    fixtures: dict[str, tuple[syntax.Call, ...]],
    types: Types,
    wrong: list[Diagnostic],
) -> None:
    for item in test.setup:
        if isinstance(item, syntax.Call):
            _check_terms(item, types, wrong)
        elif item.name.text not in fixtures:
            wrong.append(Diagnostic(f"unknown fixture {item.name.text[:100]}", item.name.span))
    for assertion in test.assertions:
        _check_terms(assertion.call, types, wrong)
        variables = [
            each
            for each in assertion.call.arguments
            if isinstance(each, syntax.Variable) and not each.is_anonymous
        ]
        if len({each.name for each in variables}) > 1:
            message = "an assertion has at most one variable"
            wrong.append(Diagnostic(message, assertion.call.span))
        if assertion.iff is not None and not variables:
            message = "iff needs a variable: assert allow(..., action: String, ...) iff ..."
            wrong.append(Diagnostic(message, assertion.span))
        elif assertion.iff is not None and not _is_list_of_values(assertion.iff, variables[0].name):
            message = "iff is followed by =, in, or, true or false about the assertion's variable"
            wrong.append(Diagnostic(message, assertion.iff.span))


def _is_list_of_values(part: syntax.Expression, name: str) -> bool:
    match part:
        case syntax.Truth():
            return True
        case syntax.Or():
            return all(_is_list_of_values(each, name) for each in part.parts)
        case syntax.In():
            values: tuple[syntax.Term, ...] = part.items.items
            return _is_named(part.term, name) and all(
                isinstance(each, syntax.Value) for each in values
            )
        case syntax.Compare("="):
            sides = (part.left, part.right)
            return any(_is_named(each, name) for each in sides) and any(
                isinstance(each, syntax.Value) for each in sides
            )
        case _:
            return False


def _is_named(term: syntax.Term, name: str) -> bool:
    return isinstance(term, syntax.Variable) and term.name == name


def _check_terms(call: syntax.Call, types: Types, wrong: list[Diagnostic]) -> None:
    for term in call.arguments:
        if isinstance(term, syntax.Value) and not types.exists(term.type):
            wrong.append(Diagnostic(types.unknown(term.type), term.span))
        if isinstance(term, syntax.Variable) and term.type and not types.exists(term.type.text):
            wrong.append(Diagnostic(types.unknown(term.type.text), term.type.span))
