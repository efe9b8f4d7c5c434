"""Joins that differ in one condition as one join: (C and a) or (C and b) is C and (a or b).

Rules for many roles give the same join once per role. Merged, its role is one of a list (IN), and
what the join leads to is looked up once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.authz.polar.conjunction import Conjunction

_DECLARED: Final = re.compile(r" AS ([a-z]+[0-9]+)\b|\b((?:penstock)?(?:calls|answers)[0-9]+) \(")
_NAME: Final = re.compile(r"\b[a-z]+[0-9]+\b")
_EQUALS: Final = re.compile(r"(\?[0-9]+) = ([a-z]+[0-9]+\.a[0-9]+)")

_Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Selected:
    """A join with what is selected of it."""

    outputs: tuple[str, ...]
    found: Conjunction


def merged(items: list[Selected]) -> list[Selected]:
    """Merge joins; the order of what is left is that of the first of each."""
    left = list(items)
    while True:
        shorter = _once(left)
        if len(shorter) == len(left):
            return shorter
        left = shorter


def _once(items: list[Selected]) -> list[Selected]:
    """Merge each join with those that have all but one condition in common."""
    kept: list[Selected | None] = []
    by_rest: dict[tuple[_Shape, _Shape, frozenset[frozenset[str]]], tuple[int, int]] = {}
    whole: set[tuple[_Shape, _Shape, frozenset[frozenset[str]]]] = set()
    for item in items:
        sources, outputs, conditions = _shape(item)
        everything = (sources, outputs, frozenset(conditions))
        if everything in whole:
            continue
        whole.add(everything)
        for place, own in enumerate(item.found.conditions):
            rest = (sources, outputs, frozenset([*conditions[:place], *conditions[place + 1 :]]))
            other = by_rest.get(rest)
            if other is None:
                continue
            number, other_place = other
            before = kept[number]
            if before is not None and _may_join(before, other_place, item, own):
                kept[number] = _joined(before, other_place, item, own)
                # Its conditions have changed: it is found again in the next pass.
                by_rest = {key: value for key, value in by_rest.items() if value[0] != number}
                break
        else:
            number = len(kept)
            kept.append(item)
            for place in range(len(conditions)):
                rest = (
                    sources,
                    outputs,
                    frozenset([*conditions[:place], *conditions[place + 1 :]]),
                )
                by_rest.setdefault(rest, (number, place))
    return [each for each in kept if each is not None]


def _may_join(before: Selected, place: int, item: Selected, own: tuple[str, ...]) -> bool:
    """Whether two conditions are better as one: both of one column, or neither of a column, since
    an index serves no alternatives of two columns.

    Looking up single facts stays one EXISTS for each: SQLite makes a table of every IN list, which
    costs more than three look-ups by the whole key (measured: 48 us against 25 us of a statement).
    """
    is_look_up = not item.outputs and len(item.found.sources) == 1
    columns = set()
    for each, condition in ((before, before.found.conditions[place]), (item, own)):
        names = _own_names(each.found)
        for text in condition:
            match = _EQUALS.fullmatch(text)
            if match is not None and is_look_up:
                return False
            if match is not None:
                columns.add(_renamed(match[2], names))
            elif text.startswith(("EXISTS (", "(")):
                columns.add("")
            else:
                return False
    return len(columns) == 1


def _joined(before: Selected, place: int, item: Selected, own: tuple[str, ...]) -> Selected:
    renamed = dict(zip(_own_names(item.found), _own_names(before.found), strict=True))
    known = {_canonical(text, _own_names(before.found)) for text in before.found.conditions[place]}
    more = tuple(
        _renamed(text, renamed)
        for text in own
        if _canonical(text, _own_names(item.found)) not in known
    )
    conditions = list(before.found.conditions)
    conditions[place] = (*conditions[place], *more)
    return replace(before, found=replace(before.found, conditions=tuple(conditions)))


def _shape(item: Selected) -> tuple[_Shape, _Shape, list[frozenset[str]]]:
    """Give a join with the names of its sources numbered, so that equal ones are equal."""
    names = _own_names(item.found)
    return (
        tuple(_canonical(source, names) for source in item.found.sources),
        tuple(_canonical(output, names) for output in item.outputs),
        [
            frozenset(_canonical(text, names) for text in condition)
            for condition in item.found.conditions
        ],
    )


def _own_names(found: Conjunction) -> dict[str, str]:
    aliases = (source.rpartition(" AS ")[2] for source in found.sources)
    return {alias: f"@{number}" for number, alias in enumerate(aliases)}


def _canonical(text: str, own: Mapping[str, str]) -> str:
    """Number the names that a text declares. Those from around it stay: they aren't its own."""
    names = dict(own)
    for match in _DECLARED.finditer(text):
        name = match[1] or match[2]
        names.setdefault(name, f"#{len(names)}")
    return _renamed(text, names)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: names.get(match[0], match[0]), text)


def condition_text(alternatives: tuple[str, ...]) -> str:
    """Write alternatives; those of one column as a list."""
    columns: dict[str, list[str]] = {}
    others = []
    for text in alternatives:
        match = _EQUALS.fullmatch(text)
        if match is None:
            others.append(text)
        else:
            columns.setdefault(match[2], []).append(match[1])
    texts = [
        f"{column} IN ({', '.join(values)})" if len(values) > 1 else f"{values[0]} = {column}"
        for column, values in columns.items()
    ]
    texts += others
    return texts[0] if len(texts) == 1 else f"({' OR '.join(texts)})"
