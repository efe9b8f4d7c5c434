"""Alternatives to clauses over concrete types: a clause for each way to type the variables.

A variable with types of its own (from the head, `matches`, a comparison) takes each of them. Any
other is inferred from what may hold: heads of rules, declarations, and conditions whose variables
have types of their own.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.authz.polar import syntax
from penstock.authz.polar.alternatives import (
    Alternative,
    OpenAtom,
    OpenTerm,
    RefusedError,
    shown_name,
)
from penstock.authz.polar.errors import Diagnostic
from penstock.authz.polar.program import (
    FACT_ARGUMENTS_MAX,
    NOW,
    Atom,
    Clause,
    Comparison,
    Pattern,
    Signature,
    Term,
)

CLAUSES_MAX: Final = 20_000
STEPS_MAX: Final = 2_000_000

Patterns = Mapping[str, Mapping[Pattern, None]]


class Typer:
    """Gathers the clauses of a policy, and which facts it accepts."""

    def __init__(self, declared: Iterable[tuple[str, Pattern]]) -> None:
        self.patterns: dict[str, dict[Pattern, None]] = defaultdict(dict)
        self.clauses: dict[Signature, dict[Clause, None]] = defaultdict(dict)
        self.facts: set[Signature] = set()
        self.wrong: list[Diagnostic] = []
        self._clause_count = 0
        self._steps = STEPS_MAX
        self._waiting: dict[str, list[Alternative]] = defaultdict(list)
        self._open: list[tuple[Alternative, tuple[str, ...]]] = []
        for predicate, pattern in declared:
            self.patterns[predicate][pattern] = None
            self._accept(Signature(predicate, tuple(kind for kind, _ in pattern)))

    def run(self, alternatives: Sequence[Alternative]) -> None:
        """Type all alternatives of a policy.

        Raises:
            RefusedError: there are too many clauses, or too many ways to try.
        """
        later = []
        for alternative in alternatives:
            if _is_inferred(alternative):
                later.append(alternative)
                for atom in alternative.body:
                    self._waiting[atom.predicate].append(alternative)
            else:
                self._take(alternative, _products(alternative.domains), is_whole=True)
        closed = {each.head.predicate for each in alternatives} | {
            predicate for predicate, patterns in self.patterns.items() if patterns
        }
        seen: dict[int, set[tuple[str, ...]]] = {id(each): set() for each in later}
        queue = dict.fromkeys(map(id, later))
        by_id = {id(each): each for each in later}
        while queue:
            alternative = by_id[next(iter(queue))]
            del queue[id(alternative)]
            known = seen[id(alternative)]
            possible = ways(alternative, self.patterns, self._step, lambda name: name not in closed)
            new = [each for each in possible if each not in known]
            known.update(new)
            for predicate in self._take(alternative, new, is_whole=False):
                queue.update(dict.fromkeys(id(each) for each in self._waiting[predicate]))
        for alternative in later:
            if not seen[id(alternative)] and not alternative.is_implied:
                self._say_untyped(alternative)
        self._finish()

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise RefusedError(
                f"typing the policy takes more than {STEPS_MAX:,} steps: give variables types",
                syntax.NOWHERE,
            )

    def _say_untyped(self, alternative: Alternative) -> None:
        names = [
            shown_name(name)
            for name, domain in zip(alternative.names, alternative.domains, strict=True)
            if domain is None
        ]
        self.wrong.append(
            Diagnostic(
                f"variable {names[0]} has no type: give it one by `matches`, in the head, or by "
                "`declare`",
                alternative.span,
            )
        )

    # --- Clauses

    def _take(
        self, alternative: Alternative, ways: Iterable[tuple[str, ...]], *, is_whole: bool
    ) -> set[str]:
        """Add clauses; gives the predicates of which something new may hold."""
        changed = set()
        for types in ways:
            self._clause_count += 1
            if self._clause_count > CLAUSES_MAX:
                raise RefusedError(
                    f"more than {CLAUSES_MAX:,} rules, once each is written for every type",
                    alternative.span,
                )
            self._open.append((alternative, types))
            head = _pattern(alternative.head, types)
            if head not in self.patterns[alternative.head.predicate]:
                self.patterns[alternative.head.predicate][head] = None
                changed.add(alternative.head.predicate)
            for atom in (*alternative.body, *alternative.negated):
                if any(types[variable] == "" for variable in atom.variables()):
                    continue
                pattern = tuple((kind, None) for kind, _ in _pattern(atom, types))
                if not alternative.is_implied:
                    self._accept(Signature(atom.predicate, tuple(kind for kind, _ in pattern)))
                if is_whole and pattern not in self.patterns[atom.predicate]:
                    self.patterns[atom.predicate][pattern] = None
                    changed.add(atom.predicate)
        return changed

    def _accept(self, signature: Signature) -> None:
        if len(signature.types) <= FACT_ARGUMENTS_MAX:
            self.facts.add(signature)

    def _finish(self) -> None:
        for alternative, types in self._open:
            try:
                clause = make_clause(alternative, types, self.patterns)
            except RefusedError as error:
                self.wrong.append(error.diagnostic)
                continue
            for atom in clause.negated:
                self._accept(atom.signature)
            self.clauses[clause.head.signature][clause] = None


def ways(
    alternative: Alternative,
    patterns: Patterns,
    step: Callable[[], None],
    is_open: Callable[[str], bool] = lambda _: False,
) -> Iterator[tuple[str, ...]]:
    """Yield the ways to type an alternative by what may hold now.

    Args:
        step: counts what is tried.
        is_open: whether a predicate is of facts that nothing but such conditions declares: it
            types no variable.
    """
    size = len(alternative.domains)
    inferring = [
        atom
        for atom in alternative.body
        if alternative.is_implied
        or (
            any(alternative.domains[variable] is None for variable in atom.variables())
            and not is_open(atom.predicate)
        )
    ]
    by_atom = {v for atom in inferring for v in atom.variables()}
    rest = [
        variable
        for variable in range(size)
        if variable not in by_atom and alternative.domains[variable] is not None
    ]
    found: dict[tuple[str, ...], None] = {}
    types: list[str | None] = [None] * size

    def extend(index: int) -> None:
        if index == len(inferring):
            if all(types[v] is not None for v in by_atom):
                close()
            return
        atom = inferring[index]
        for pattern in patterns.get(atom.predicate, ()):
            step()
            bound = _match(atom, pattern, types, alternative.domains)
            if bound is None:
                continue
            extend(index + 1)
            for variable in bound:
                types[variable] = None

    def close() -> None:
        unknown = [v for v in range(size) if v not in by_atom and v not in rest]
        negated = {v for atom in alternative.negated for v in atom.variables()}
        if any(variable not in negated for variable in unknown):
            return
        for chosen in itertools.product(*(sorted(alternative.domains[v] or ()) for v in rest)):
            step()
            full = list(types)
            for variable, kind in zip(rest, chosen, strict=True):
                full[variable] = kind
            # What stands only in a negation is typed there, once all else is known.
            found[tuple(kind or "" for kind in full)] = None

    extend(0)
    yield from found


def _is_inferred(alternative: Alternative) -> bool:
    if alternative.is_implied:
        return True
    in_negation_alone = {v for atom in alternative.negated for v in atom.variables()}
    in_negation_alone -= {v for atom in alternative.body for v in atom.variables()}
    return any(
        domain is None and variable not in in_negation_alone
        for variable, domain in enumerate(alternative.domains)
    )


def _products(domains: tuple[frozenset[str] | None, ...]) -> Iterator[tuple[str, ...]]:
    return itertools.product(
        *(sorted(domain) if domain is not None else [""] for domain in domains)
    )


def _match(
    atom: OpenAtom,
    pattern: Pattern,
    types: list[str | None],
    domains: tuple[frozenset[str] | None, ...],
) -> list[int] | None:
    """Type an atom's variables by a pattern; gives those that had no type, or None."""
    if len(pattern) != len(atom.terms):
        return None
    bound: list[int] = []
    for term, (kind, id_) in zip(atom.terms, pattern, strict=True):
        if isinstance(term, int):
            domain = domains[term]
            if types[term] is None and (domain is None or kind in domain):
                types[term] = kind
                bound.append(term)
                continue
            if types[term] == kind:
                continue
        elif _type_of(term) == kind and (
            id_ is None or not isinstance(term, syntax.Value) or term.id == id_
        ):
            continue
        for variable in bound:
            types[variable] = None
        return None
    return bound


def _type_of(term: OpenTerm) -> str:
    return term.type if isinstance(term, syntax.Value) else "Integer"


def _pattern(atom: OpenAtom, types: tuple[str, ...]) -> Pattern:
    return tuple(
        (types[term], None)
        if isinstance(term, int)
        else (_type_of(term), term.id if isinstance(term, syntax.Value) else None)
        for term in atom.terms
    )


def make_clause(alternative: Alternative, types: tuple[str, ...], patterns: Patterns) -> Clause:
    """Write an alternative for one way to type it.

    Raises:
        RefusedError: a negation's variable has no type.
    """
    negated: dict[Atom, None] = {}
    for atom in alternative.negated:
        negated.update(dict.fromkeys(_negations(alternative, atom, types, patterns)))
    comparisons = []
    for each in alternative.comparisons:
        kinds = [
            types[term] if isinstance(term, int) else _type_of(term)
            for term in (each.left, each.right)
        ]
        if each.operator == "!=" and kinds[0] != kinds[1]:
            continue  # values of two types always differ
        is_numeric = kinds[0] == "Integer"
        comparisons.append(
            Comparison(each.operator, _term(each.left), _term(each.right), is_numeric)
        )
    return Clause(
        _atom(alternative.head, types),
        tuple(_atom(atom, types) for atom in alternative.body),
        tuple(negated),
        tuple(comparisons),
        tuple(map(shown_name, alternative.names)),
        alternative.span,
    )


def _negations(
    alternative: Alternative, atom: OpenAtom, types: tuple[str, ...], patterns: Patterns
) -> Iterator[Atom]:
    """Yield a negated atom, for each type that its `_` may have: none of them may match."""
    if all(types[variable] for variable in atom.variables()):
        yield _atom(atom, types)
        return
    found = False
    for pattern in patterns.get(atom.predicate, ()):
        known: list[str | None] = [kind or None for kind in types]
        if _match(atom, pattern, known, alternative.domains) is not None:
            found = True
            yield _atom(atom, tuple(kind or "" for kind in known))
    if not found:
        raise RefusedError(f"variable _ has no type: declare {atom.predicate}", atom.span)


def _atom(atom: OpenAtom, types: tuple[str, ...]) -> Atom:
    kinds = tuple(types[term] if isinstance(term, int) else _type_of(term) for term in atom.terms)
    return Atom(Signature(atom.predicate, kinds), tuple(map(_term, atom.terms)))


def _term(term: OpenTerm) -> Term:
    if isinstance(term, int):
        return term
    return term.id if isinstance(term, syntax.Value) else NOW
