"""Finds the clauses that a goal's constants leave, among the hundreds of one signature."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.authz.polar.program import Clause, Program, Signature


class ClauseIndex:
    """A program's clauses by signature and the first constant of a goal: a type with hundreds of
    roles has as many clauses of one signature."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._found: dict[tuple[Signature, int], dict[str | None, tuple[Clause, ...]]] = {}

    def candidates(
        self, signature: Signature, constants: Sequence[str | None]
    ) -> tuple[Clause, ...]:
        """Give the clauses whose heads have a goal's first constant there, or a variable."""
        place = next((p for p, each in enumerate(constants) if each is not None), None)
        clauses = self._program.of(signature)
        if place is None or len(clauses) < 2:
            return clauses
        index = self._found.get((signature, place))
        if index is None:
            index = self._found[signature, place] = _index(clauses, place)
        return index.get(constants[place], index[None])


def _index(clauses: tuple[Clause, ...], place: int) -> dict[str | None, tuple[Clause, ...]]:
    by_constant: dict[str, list[Clause]] = {}
    others = []
    for clause in clauses:
        term = clause.head.terms[place]
        if isinstance(term, str):
            by_constant.setdefault(term, []).append(clause)
        else:
            others.append(clause)
    rest = tuple(others)
    return {None: rest, **{text: (*each, *rest) for text, each in by_constant.items()}}
