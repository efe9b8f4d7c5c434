"""Recursive goals as recursive CTEs, seeded from what is bound.

Two forms, for a recursive part of the graph in which no rule has two conditions of the part:

- `exists`: all arguments are known. The CTE has the *calls* that the goal leads to (the goal
  itself, then what each recursive rule needs next); the goal holds if a call holds without
  recursion.
- `join`: values are to be found. One CTE has the calls with what is bound in each, another the
  *answers*, made from the bottom up within those calls. Where every call has the same bound
  values (the actor of "which folders may alice read"), the first CTE is left out, and its row is
  parameters.

A tag column says which goal of the part a row is of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from penstock.authz.polar.conjunction import FALSE, Conjunction, Parameters, bind, expression
from penstock.authz.polar.graph import Graph, Node, TooComplexError
from penstock.authz.polar.parser import PARAMETERS_MAX
from penstock.authz.polar.program import ANY, Atom, Clause, Program, Term

TAGS_MAX: Final = 100
SELECTS_MAX: Final = 200
"""SELECTs of one CTE: SQLite takes 500."""


class Joiner(Protocol):
    """The part of the compiler that writes what isn't recursive."""

    program: Program
    graph: Graph
    parameters: Parameters

    def select(self, outputs: list[str], found: Conjunction) -> str:
        """Write a SELECT."""
        ...

    def any_of(self, found: Iterator[Conjunction]) -> list[str]:
        """Write alternatives as expressions."""
        ...

    def union(self, name: str, plain: list[str], recursive: list[str]) -> str:
        """Write what a recursive table has."""
        ...

    def alias(self, prefix: str = "t") -> str:
        """Name something new."""
        ...

    def fresh(self, count: int) -> int:
        """Number new variables."""
        ...

    def node(self, conjunction: Conjunction, atom: Atom) -> Node:
        """Give an atom's node."""
        ...

    def solutions(
        self, start: Conjunction, *, depth: int, connected: bool = False
    ) -> Iterator[Conjunction]:
        """Join what is pending."""
        ...

    def inlined(self, rest: Conjunction, atom: Atom, clause: Clause) -> Conjunction | None:
        """Put a clause in an atom's place."""
        ...

    def fact_alternatives(self, rest: Conjunction, atom: Atom) -> Iterator[Conjunction]:
        """Join an atom as a fact."""
        ...


class _OpenCallError(Exception):
    """A rule calls its part with a variable that only the call itself binds."""


def exists(joiner: Joiner, goal: Atom, node: Node, texts: list[str], *, depth: int) -> list[str]:
    """Write a recursive goal whose arguments are all known, as one expression."""
    try:
        return [f"EXISTS ({_Calls(joiner, node, depth).text(texts)})"]
    except _OpenCallError:
        base = joiner.fresh(len(texts))
        start = Conjunction(known={base + place: text for place, text in enumerate(texts)})
        terms = tuple(
            constant if constant is not None else base + place
            for place, constant in enumerate(node.constants)
        )
        found = join(joiner, start, Atom(goal.signature, terms), depth=depth)
        return joiner.any_of(iter([found] if found is not None else []))


def join(joiner: Joiner, rest: Conjunction, atom: Atom, *, depth: int) -> Conjunction | None:
    """Join a recursive atom; None if it has no answers.

    SQLite has no lateral joins: where a column of what was joined before is bound, the CTE is
    seeded by the same joins once more, and its answers are compared with the column.
    """
    node = joiner.node(rest, atom)
    places = _places(node)
    seeds: dict[int, str] = {}
    for place in places:
        text = expression(rest, atom.terms[place], joiner.parameters)
        if text is not None:
            seeds[place] = text
    before: Conjunction | None = None
    if any(_is_local(rest, text) for text in seeds.values()):
        if any(source.startswith(_CTES) for source in rest.sources):
            # A recursive table can't be read in a subquery.
            seeds = {place: text for place, text in seeds.items() if not _is_local(rest, text)}
        else:
            before = rest
    text = _Answers(joiner, node, seeds, before, depth + 1).text()
    if text is None:
        return None
    alias = joiner.alias("r")
    found = rest.joined(f"({text}) AS {alias}")
    for column, place in enumerate(places):
        if place not in seeds or before is not None:
            found = bind(found, atom.terms[place], f"{alias}.a{column}", joiner.parameters)
    return found


_CTES: Final = ("calls", "answers", "penstockcalls", "penstockanswers")


def _is_local(found: Conjunction, text: str) -> bool:
    """Whether an expression is about what the conjunction itself joins, not what is around it."""
    aliases = (source.rpartition(" AS ")[2] for source in found.sources)
    return any(re.search(rf"\b{alias}\.", text) for alias in aliases)


def _places(node: Node) -> list[int]:
    """Give the arguments that aren't constants: the columns of a row."""
    return [place for place, constant in enumerate(node.constants) if constant is None]


def _padded(texts: list[str], width: int) -> list[str]:
    return [*texts, *["NULL"] * (width - len(texts))]


def _goal(joiner: Joiner, node: Node) -> Atom:
    """Give a node as an atom of new variables."""
    base = joiner.fresh(len(node.constants))
    terms: list[Term] = [
        constant if constant is not None else base + place
        for place, constant in enumerate(node.constants)
    ]
    return Atom(node.signature, tuple(terms))


def _take_recursive(
    joiner: Joiner, found: Conjunction, component: int
) -> tuple[Conjunction, Atom | None]:
    """Take the condition of the part out of a rule's conditions."""
    indexes = [
        index
        for index, atom in enumerate(found.pending)
        if joiner.graph.component(joiner.node(found, atom)) == component
    ]
    if len(indexes) > 1:
        raise TooComplexError("a rule has two recursive conditions")
    if not indexes:
        return found, None
    return found.without(indexes[0]), found.pending[indexes[0]]


@dataclass(slots=True)
class _Calls:
    """Writes the calls that a goal of known arguments leads to."""

    joiner: Joiner
    node: Node
    depth: int
    _tags: dict[Node, int] = field(default_factory=dict)
    _steps: list[str] = field(default_factory=list)
    _holds: list[str] = field(default_factory=list)
    _width: int = 0

    def text(self, texts: list[str]) -> str:
        component = self.joiner.graph.component(self.node)
        assert component is not None
        self._tags[self.node] = 0
        queue = [self.node]
        name, alias = self.joiner.alias("calls"), self.joiner.alias("c")
        rows: list[tuple[int, list[str], Conjunction]] = []
        for node in queue:
            self._add(node, component, alias, rows)
            queue += list(self._tags)[len(queue) :]
        self._width = max(1, *(len(_places(node)) for node in self._tags))
        seeds = [texts[place] for place in _places(self.node)]
        seed = f"SELECT {', '.join(_padded(['0', *seeds], self._width + 1))}"
        selects = []
        for tag, outputs, found in rows:
            padded = _padded([str(tag), *outputs], self._width + 1)
            here = replace(found, sources=(f"{name} AS {alias}", *found.sources))
            selects.append(self.joiner.select(padded, here))
        columns = ", ".join(["tag", *(f"b{place}" for place in range(self._width))])
        text = f"WITH RECURSIVE {name} ({columns}) AS ({self.joiner.union(name, [seed], selects)})"
        holds = " OR ".join(self._holds) or FALSE
        return f"{text} SELECT 1 FROM {name} AS {alias} WHERE {holds}"  # noqa: S608

    def _add(
        self,
        node: Node,
        component: int,
        alias: str,
        rows: list[tuple[int, list[str], Conjunction]],
    ) -> None:
        joiner = self.joiner
        goal = _goal(joiner, node)
        known = {
            goal.terms[place]: f"{alias}.b{column}" for column, place in enumerate(_places(node))
        }
        start = Conjunction(
            known={term: text for term, text in known.items() if isinstance(term, int)}
        )
        tagged = f"{alias}.tag = {self._tags[node]}"
        plain = list(joiner.fact_alternatives(start, goal))
        for clause in joiner.graph.clauses(node):
            found = joiner.inlined(start, goal, clause)
            if found is None:
                continue
            rest, call = _take_recursive(joiner, found, component)
            if call is None:
                plain += joiner.solutions(found, depth=self.depth + 1)
                continue
            called = joiner.node(rest, call)
            tag = self._tags.setdefault(called, len(self._tags))
            if len(self._tags) > TAGS_MAX:
                raise TooComplexError("a recursive part has too many goals")
            rows += (
                (tag, self._arguments(called, call, each), each.where([tagged]))
                for each in joiner.solutions(rest, depth=self.depth + 1)
            )
        terms = joiner.any_of(iter(plain))
        if terms:
            self._holds.append(f"({tagged} AND ({' OR '.join(terms)}))")

    def _arguments(self, called: Node, call: Atom, found: Conjunction) -> list[str]:
        texts = []
        for place in _places(called):
            text = expression(found, call.terms[place], self.joiner.parameters)
            if text is None:
                raise _OpenCallError
            texts.append(text)
        return texts


Adorned = tuple[Node, tuple[int, ...]]
"""A node, and which of its places are bound when it is called."""


@dataclass(slots=True)
class _Answers:
    """Writes the answers of a goal, with the values of its seeds."""

    joiner: Joiner
    node: Node
    seeds: dict[int, str]
    before: Conjunction | None
    depth: int
    _tags: dict[Adorned, int] = field(default_factory=dict)

    def text(self) -> str | None:
        component = self.joiner.graph.component(self.node)
        assert component is not None
        bound = tuple(sorted(self.seeds))
        values = [self.seeds[place] for place in bound]
        # First as if calls differed; if none does, again with the seeds in their place.
        calls = self._written(
            component, [f"b{column}" for column in range(PARAMETERS_MAX)], is_called=True
        )
        if calls is not None:
            return self._assembled(values, calls)
        answers = self._written(component, values, is_called=False)
        assert answers is not None
        return self._assembled(values, answers)

    def _assembled(self, values: list[str], parts: _Parts) -> str | None:
        if not parts.plain:
            return None
        width = max(1, *(len(_places(node)) for node, _ in self._tags))
        bound_width = max(len(bound) for _, bound in self._tags)
        names = ", ".join(["tag", *(f"a{column}" for column in range(width))])
        ctes = []
        if parts.calls is not None:
            called = ", ".join(["tag", *(f"b{column}" for column in range(bound_width))])
            seeded = self.before or Conjunction()
            seed = self.joiner.select(_padded(["0", *values], bound_width + 1), seeded)
            selects = [
                self.joiner.select(_padded(outputs, bound_width + 1), found)
                for outputs, found in parts.calls
            ]
            union = self.joiner.union(parts.calls_name, [seed], selects)
            ctes.append(f"{parts.calls_name} ({called}) AS ({union})")
        plain, recursive = (
            [self.joiner.select(_padded(outputs, width + 1), found) for outputs, found in selected]
            for selected in (parts.plain, parts.recursive)
        )
        ctes.append(
            f"{parts.name} ({names}) AS ({self.joiner.union(parts.name, plain, recursive)})"
        )
        alias = self.joiner.alias("s")
        places = _places(self.node)
        columns = ", ".join(f"{alias}.a{column} AS a{column}" for column in range(len(places)))
        conditions = [f"{alias}.tag = 0"]
        if self.before is None:
            conditions += [
                f"{alias}.a{places.index(place)} = {text}" for place, text in self.seeds.items()
            ]
        return (
            f"WITH RECURSIVE {', '.join(ctes)} SELECT {columns or '1'} FROM {parts.name} AS {alias}"  # noqa: S608
            f" WHERE {' AND '.join(conditions)}"
        )

    def _written(self, component: int, calls: list[str], *, is_called: bool) -> _Parts | None:
        """Write all goals that the calls lead to; None if `is_called` and no call differs."""
        parts = _Parts(
            self.joiner.alias("answers"),
            self.joiner.alias("calls"),
            [] if is_called else None,
        )
        self._tags = {(self.node, tuple(sorted(self.seeds))): 0}
        differs = False
        queue = list(self._tags)
        for adorned in queue:
            differs |= self._add(adorned, component, calls, parts)
            queue += list(self._tags)[len(queue) :]
            if len(self._tags) > TAGS_MAX:
                raise TooComplexError("a recursive part has too many goals")
        return parts if differs or not is_called or self.before is not None else None

    def _add(self, adorned: Adorned, component: int, calls: list[str], parts: _Parts) -> bool:
        joiner = self.joiner
        node, bound = adorned
        _check_no_any(joiner, node, bound)
        tag = self._tags[adorned]
        goal = _goal(joiner, node)
        call = joiner.alias("m")
        start = Conjunction()
        if parts.calls is not None:
            calls = [f"{call}.{text}" for text in calls]
            start = start.joined(f"{parts.calls_name} AS {call}").where([f"{call}.tag = {tag}"])
        for column, place in enumerate(bound):
            start = bind(start, goal.terms[place], calls[column], joiner.parameters)
        for found in joiner.fact_alternatives(start, goal):
            parts.plain.append(([str(tag), *self._outputs(node, goal, found)], found))
        differs = False
        for clause in joiner.graph.clauses(node):
            inlined = joiner.inlined(start, goal, clause)
            if inlined is None:
                continue
            rest, recursive = _take_recursive(joiner, inlined, component)
            if recursive is None:
                for found in joiner.solutions(inlined, depth=self.depth):
                    parts.plain.append(([str(tag), *self._outputs(node, goal, found)], found))
                continue
            beneath: dict[Adorned, None] = {}
            for found in joiner.solutions(rest, depth=self.depth, connected=True):
                called, texts = self._call(recursive, rest, found)
                beneath[called] = None
                number = self._tags.setdefault(called, len(self._tags))
                differs |= texts != calls[: len(bound)]
                if parts.calls is not None:
                    parts.calls.append(([str(number), *texts], found))
            for called in beneath:
                self._add_recursive(adorned, goal, clause, called, component, calls, parts)
        return differs

    def _call(
        self, recursive: Atom, rest: Conjunction, found: Conjunction
    ) -> tuple[Adorned, list[str]]:
        node = self.joiner.node(rest, recursive)
        bound, texts = [], []
        for place in _places(node):
            text = expression(found, recursive.terms[place], self.joiner.parameters)
            if text is not None:
                bound.append(place)
                texts.append(text)
        return (node, tuple(bound)), texts

    def _add_recursive(
        self,
        adorned: Adorned,
        goal: Atom,
        clause: Clause,
        called: Adorned,
        component: int,
        calls: list[str],
        parts: _Parts,
    ) -> None:
        """Write a rule from an answer beneath to its own: the answer is joined first."""
        joiner = self.joiner
        node, bound = adorned
        answer = joiner.alias("n")
        start = Conjunction().joined(f"{parts.name} AS {answer}")
        start = start.where([f"{answer}.tag = {self._tags[called]}"])
        inlined = joiner.inlined(start, goal, clause)
        assert inlined is not None
        rest, recursive = _take_recursive(joiner, inlined, component)
        assert recursive is not None
        for column, place in enumerate(_places(called[0])):
            text = f"{answer}.a{column}"
            rest = bind(rest, recursive.terms[place], text, joiner.parameters)
        if parts.calls is not None and bound:
            call = joiner.alias("m")
            calls = [f"{call}.{text.partition('.')[2]}" for text in calls]
            rest = rest.joined(f"{parts.calls_name} AS {call}")
            rest = rest.where([f"{call}.tag = {self._tags[adorned]}"])
        for column, place in enumerate(bound):
            rest = bind(rest, goal.terms[place], calls[column], joiner.parameters)
        for found in joiner.solutions(rest, depth=self.depth):
            outputs = [str(self._tags[adorned]), *self._outputs(node, goal, found)]
            parts.recursive.append((outputs, found))

    def _outputs(self, node: Node, goal: Atom, found: Conjunction) -> list[str]:
        texts = []
        for place in _places(node):
            text = expression(found, goal.terms[place], self.joiner.parameters)
            if text is None:
                raise TooComplexError("a recursive goal may hold for any value")
            texts.append(text)
        return texts


@dataclass(slots=True)
class _Parts:
    """The SELECTs of a part: of its calls (None: they all have the seeds), and of its answers,
    those that don't need another answer first."""

    name: str
    calls_name: str
    calls: list[tuple[list[str], Conjunction]] | None
    plain: list[tuple[list[str], Conjunction]] = field(default_factory=list)
    recursive: list[tuple[list[str], Conjunction]] = field(default_factory=list)


def union(selects: list[str]) -> str:
    """Write the UNION of SELECTs."""
    unique = list(dict.fromkeys(selects))
    if len(unique) > SELECTS_MAX:
        raise TooComplexError(f"a recursive part has {len(unique)} ways to go on")
    return " UNION ".join(unique)


def _check_no_any(joiner: Joiner, node: Node, bound: tuple[int, ...]) -> None:
    """An answer with "any" where a value is to be found would need a tag of its own."""
    for shape in joiner.program.shapes.get(node.signature, ()):
        if any(
            constant is not None and isinstance(kind, str) and kind != constant
            for constant, kind in zip(node.constants, shape, strict=True)
        ):
            continue
        if any(shape[place] is ANY for place in _places(node) if place not in bound):
            raise TooComplexError("a recursive goal may hold for any value")
