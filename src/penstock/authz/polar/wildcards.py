"""Find arguments of predicates that may be "any": a rule's parameter that no condition binds.

"Any" comes from heads alone, so it is known without facts. A variable that may be any value can't
be compared or negated, and can't stand twice in a head: such a policy is refused here, which lets
evaluators treat "any" as a value that equals every other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from penstock.authz.polar.alternatives import RefusedError
from penstock.authz.polar.program import ANY, VALUE, Atom, Clause, Shape, Signature, Term

SHAPES_MAX: Final = 1_000
STEPS_MAX: Final = 2_000_000


def shapes(
    clauses: Mapping[Signature, tuple[Clause, ...]], facts: frozenset[Signature]
) -> dict[Signature, frozenset[Shape]]:
    """Find the shapes of answers with an "any", or VALUE alone, of each signature.

    Raises:
        RefusedError: a variable may be any value where that has no meaning, or there are too many.
    """
    found: dict[Signature, dict[Shape, None]] = defaultdict(dict)
    for signature in facts:
        found[signature][(VALUE,) * len(signature.types)] = None
    users: dict[Signature, list[Clause]] = defaultdict(list)
    for each in clauses.values():
        for clause in each:
            for signature in {atom.signature for atom in clause.body}:
                users[signature].append(clause)
    queue = {id(clause): clause for each in clauses.values() for clause in each}
    steps = STEPS_MAX
    while queue:
        clause = queue.pop(next(iter(queue)))
        states: dict[Shape, None] = {_unseen(clause): None}
        for atom in clause.body:
            states, steps = _joined(states, atom, found[atom.signature], steps)
            if len(states) > SHAPES_MAX or steps < 0:
                raise RefusedError(
                    f"more than {SHAPES_MAX:,} ways in which the variables may be any value",
                    clause.span,
                )
        new = {_head_shape(clause, state) for state in states}
        own = found[clause.head.signature]
        if new <= own.keys():
            continue
        own.update(dict.fromkeys(new))
        if len(own) > SHAPES_MAX:
            raise RefusedError(
                f"more than {SHAPES_MAX:,} shapes of answers of {clause.head.signature}",
                clause.span,
            )
        queue.update((id(user), user) for user in users[clause.head.signature])
    return {signature: frozenset(each) for signature, each in found.items()}


def _unseen(clause: Clause) -> Shape:
    return (ANY,) * len(clause.names)


def _joined(
    states: dict[Shape, None], atom: Atom, shapes_of: dict[Shape, None], steps: int
) -> tuple[dict[Shape, None], int]:
    joined: dict[Shape, None] = {}
    for state in states:
        for shape in shapes_of:
            steps -= 1
            after = _bind(state, atom.terms, shape)
            if after is not None:
                joined[after] = None
    return joined, steps


def _bind(state: Shape, terms: tuple[Term, ...], shape: Shape) -> Shape | None:
    after = list(state)
    for term, kind in zip(terms, shape, strict=True):
        if not isinstance(term, int):
            if isinstance(term, str) and isinstance(kind, str) and term != kind:
                return None
            continue
        before = after[term]
        if before is ANY:
            after[term] = kind
        elif isinstance(before, str) and isinstance(kind, str) and before != kind:
            return None
        elif before is VALUE and isinstance(kind, str):
            after[term] = kind
    return tuple(after)


def _head_shape(clause: Clause, state: Shape) -> Shape:
    checked = [
        *(term for each in clause.comparisons for term in (each.left, each.right)),
        *(
            variable
            for atom in clause.negated
            for variable in atom.variables
            if any(variable in positive.variables for positive in clause.body)
        ),
    ]
    for term in checked:
        if isinstance(term, int) and state[term] is ANY:
            raise RefusedError(
                f"variable {clause.names[term]} may stand for any value, which can't be compared "
                "or negated",
                clause.span,
            )
    variables = list(clause.head.variables)
    for variable in variables:
        if variables.count(variable) > 1 and state[variable] is ANY:
            raise RefusedError(
                f"variable {clause.names[variable]} may stand for any value, and stands twice in "
                "the head",
                clause.span,
            )
    shape = tuple(
        state[term] if isinstance(term, int) else term if isinstance(term, str) else VALUE
        for term in clause.head.terms
    )
    # Constants matter next to an "any" alone, where they keep rules for one role apart.
    return shape if ANY in shape else (VALUE,) * len(shape)
