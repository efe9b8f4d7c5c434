"""Queries to SQL over fact tables: a plan is one statement, or the reason why there is none.

A goal whose arguments are all known becomes conditions (EXISTS ... OR ...), where SQLite stops at
the first row. One that has to find values is multiplied out into joins, whose order is pinned
(CROSS JOIN) from what is bound. What is recursive is a recursive CTE (`recursion`). Context facts
come in as one JSON parameter per signature.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from penstock.authz.polar import recursion
from penstock.authz.polar.conjunction import (
    FALSE,
    TRUE,
    Conjunction,
    Parameters,
    bind,
    comparison_text,
    expression,
    inline,
)
from penstock.authz.polar.graph import UNCONNECTED, Graph, Node, TooComplexError, cost
from penstock.authz.polar.merging import Selected, condition_text, merged
from penstock.authz.polar.program import Atom, Clause, Program, Signature
from penstock.authz.polar.query import Query
from penstock.authz.polar.tables import Tables

BRANCHES_MAX: Final = 1_000
"""Ways to join that are tried for one statement."""
DEPTH_MAX: Final = 50
"""Goals in one another."""
PARENTHESES_MAX: Final = 14
"""Parentheses in one another. SQLite's parser has a stack of 100 symbols; the most costly form (a
recursive CTE in a condition) takes about 20 for 4 parentheses (tried with SQLite 3.40)."""
SELECTS_MAX: Final = 200
TERMS_MAX: Final = 400
"""Alternatives of one condition: SQLite's expressions are at most 1,000 deep."""
SQL_CHARACTERS_MAX: Final = 200_000
SOURCES_MAX: Final = 30
"""SQLite joins 64 tables at most, and plans long before that."""


class Slot(NamedTuple):
    """A parameter: a "value" of the question, a "constant", the time "now", or the "context"."""

    kind: str
    what: object


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to answer a query.

    Args:
        sql: the statement; empty if there is none, and the tabled evaluator answers.
        slots: its parameters, in order.
        columns: the free outputs, one for each column; an answer has the bound ones' values.
        reason: why there is no statement.
    """

    sql: str
    slots: tuple[Slot, ...] = ()
    columns: tuple[int, ...] = ()
    reason: str = ""


def compile_query(
    program: Program,
    graph: Graph,
    query: Query,
    constants: Mapping[int, str],
    tables: Tables,
) -> Plan:
    """Write the plan of a query.

    Args:
        graph: the program's.
        constants: values of bound variables that the plan is for; other rules are left out.
        tables: of stored facts, and which signatures the question's context has.
    """
    writer = Writer(program, graph, tables, query.variable_count)
    try:
        return writer.plan(query, constants)
    except TooComplexError as error:
        return Plan("", reason=str(error))


class Writer:
    """Writes one statement."""

    def __init__(self, program: Program, graph: Graph, tables: Tables, variable_count: int) -> None:
        self.program = program
        self.graph = graph
        self.tables = tables
        self.parameters = Parameters()
        self._variable_count = variable_count
        self._alias_count = 0
        self._branches = BRANCHES_MAX
        self._joins: dict[str, Selected] = {}

    def plan(self, query: Query, constants: Mapping[int, str]) -> Plan:
        """Write a query's plan."""
        start = Conjunction(
            pending=query.body,
            known={
                variable: self.parameters.expression("value", variable)
                for variable in sorted(query.bound)
                if variable not in constants
            },
            same=dict(constants),
        )
        free = tuple(dict.fromkeys(each for each in query.outputs if each not in query.bound))
        if free:
            sql = self._select(start, free)
        else:
            terms = self.any_of(self.solutions(start, depth=0))
            sql = f"SELECT 1 WHERE {' OR '.join(terms)}" if terms else f"SELECT 1 WHERE {FALSE}"
        if len(sql) > SQL_CHARACTERS_MAX:
            raise TooComplexError(f"its statement has {len(sql):,} characters")
        if _nesting(sql) > PARENTHESES_MAX:
            raise TooComplexError("its conditions lie too deep in one another")
        sql, slots = self._numbered(sql)
        return Plan(sql, slots, free)

    def _numbered(self, sql: str) -> tuple[str, tuple[Slot, ...]]:
        """Number the parameters that the statement uses; drafts of it may have used more."""
        slots = list(self.parameters.slots)
        used: dict[str, int] = {}
        text = re.sub(r"\?(\d+)", lambda match: f"?{used.setdefault(match[1], len(used) + 1)}", sql)
        return text, tuple(Slot(*slots[int(number) - 1]) for number in used)

    def _select(self, start: Conjunction, free: Sequence[int]) -> str:
        items = []
        for found in self.solutions(start, depth=0):
            outputs = (expression(found, each, self.parameters) or "NULL" for each in free)
            items.append(Selected(tuple(outputs), found))
        selects = {self.select(each.outputs, each.found): None for each in merged(items)}
        if not selects:
            return f"SELECT {', '.join('NULL' for _ in free)} WHERE {FALSE}"
        if len(selects) > SELECTS_MAX:
            raise TooComplexError(f"its statement has {len(selects)} parts")
        # UNION also makes the rows of a single SELECT unique.
        return (
            " UNION ".join(selects)
            if len(selects) > 1
            else next(iter(selects)).replace("SELECT ", "SELECT DISTINCT ", 1)
        )

    # --- Texts

    def select(self, outputs: Iterable[str], found: Conjunction) -> str:
        """Write a SELECT of a conjunction that has nothing pending."""
        text = f"SELECT {', '.join(outputs)}"
        if len(found.sources) > SOURCES_MAX:
            raise TooComplexError(f"it joins {len(found.sources)} tables")
        if found.sources:
            text += f" FROM {' CROSS JOIN '.join(found.sources)}"
        if found.conditions:
            text += f" WHERE {_all_of(found.conditions)}"
        return text

    def any_of(self, found: Iterable[Conjunction]) -> list[str]:
        """Write conjunctions as expressions of which one has to hold; [TRUE] if one always does."""
        terms: dict[str, None] = {}
        items = []
        for each in found:
            if not each.sources and not each.conditions:
                return [TRUE]
            if each.sources:
                items.append(Selected((), each))
            elif len(each.conditions) > 1:
                terms[f"({_all_of(each.conditions)})"] = None
            else:
                # Joins of goals beneath are merged with those of this one.
                for text in each.conditions[0]:
                    if text in self._joins:
                        items.append(self._joins[text])
                    else:
                        terms[text] = None
        for item in merged(items):
            text = f"EXISTS ({self.select(['1'], item.found)})"
            self._joins[text] = item
            terms[text] = None
        if len(terms) > TERMS_MAX:
            raise TooComplexError(f"a condition has {len(terms)} alternatives")
        return list(terms)

    def union(self, name: str, plain: list[str], recursive: list[str]) -> str:  # noqa: ARG002
        """Write what a recursive table has: SELECTs without it, and those from it."""
        return recursion.union([*plain, *recursive])

    def alias(self, prefix: str = "t") -> str:
        """Give a name that the statement doesn't have yet."""
        self._alias_count += 1
        return f"{prefix}{self._alias_count}"

    def fresh(self, count: int) -> int:
        """Give the first of as many variables that aren't in use."""
        first = self._variable_count
        self._variable_count += count
        return first

    def node(self, conjunction: Conjunction, atom: Atom) -> Node:
        """Give the node of an atom, by the constants that are known here."""
        terms = map(conjunction.resolve, atom.terms)
        return Node(atom.signature, tuple(t if isinstance(t, str) else None for t in terms))

    # --- Joining

    def solutions(
        self, start: Conjunction, *, depth: int, connected: bool = False
    ) -> Iterator[Conjunction]:
        """Yield the ways in which a conjunction is joined.

        Args:
            depth: goals around it.
            connected: stop at what shares no bound variable; it stays pending.
        """
        if depth > DEPTH_MAX:
            raise TooComplexError(f"goals lie more than {DEPTH_MAX} deep")
        stack = [start]
        while stack:
            found = stack.pop()
            self._branches -= 1
            if self._branches < 0:
                raise TooComplexError(f"it has more than {BRANCHES_MAX:,} ways to join")
            index = self._cheapest(found)
            if index is None or (
                connected and self._cost(found, found.pending[index]) >= UNCONNECTED
            ):
                yield self._closed(found, is_final=not connected)
                continue
            atom = found.pending[index]
            rest = found.without(index)
            texts = [expression(rest, term, self.parameters) for term in atom.terms]
            known = [text for text in texts if text is not None]
            if len(known) == len(texts):
                terms = self.conditions(rest.resolved(atom), known, depth=depth + 1)
                if terms:
                    stack.append(rest.where(terms))
            elif self.graph.component(self.node(rest, atom)) is not None:
                joined = recursion.join(self, rest, rest.resolved(atom), depth=depth)
                if joined is not None:
                    stack.append(joined)
            else:
                stack.extend(reversed(list(self.alternatives(rest, atom))))

    def alternatives(self, rest: Conjunction, atom: Atom) -> Iterator[Conjunction]:
        """Yield the ways in which an atom holds: facts, and each rule in its place."""
        yield from self.fact_alternatives(rest, atom)
        for clause in self.graph.clauses(self.node(rest, atom)):
            found = self.inlined(rest, atom, clause)
            if found is not None:
                yield found

    def inlined(self, rest: Conjunction, atom: Atom, clause: Clause) -> Conjunction | None:
        """Put a clause in the place of an atom."""
        base = self.fresh(len(clause.names))
        return inline(rest, atom, clause, base, self.parameters)

    def fact_alternatives(self, rest: Conjunction, atom: Atom) -> Iterator[Conjunction]:
        """Yield the ways in which an atom is a fact."""
        for source, names in self._sources(atom.signature):
            found = rest.joined(source)
            for term, name in zip(atom.terms, names, strict=True):
                found = bind(found, term, name, self.parameters)
            yield found

    def _sources(self, signature: Signature) -> Iterator[tuple[str, list[str]]]:
        """Yield what has a signature's facts: an entry of FROM, and the texts of its columns."""
        if self.tables.is_stored(signature):
            alias = self.alias()
            names = [f"{alias}.a{place}" for place in range(len(signature.types))]
            yield f"{self.tables.table(signature)} AS {alias}", names
        if signature in self.tables.context:
            alias = self.alias("j")
            slot = self.parameters.expression("context", signature)
            yield (
                f"json_each({slot}) AS {alias}",
                [f"json_extract({alias}.value, '$[{p}]')" for p in range(len(signature.types))],
            )

    def conditions(self, atom: Atom, texts: list[str], *, depth: int) -> list[str]:
        """Write a goal whose arguments are all known: expressions of which one has to hold."""
        base = self.fresh(len(texts))
        start = Conjunction(
            known={base + place: text for place, text in enumerate(texts)},
            same={},
        )
        terms = tuple(
            term if isinstance(term, str) else base + place for place, term in enumerate(atom.terms)
        )
        goal = Atom(atom.signature, terms)
        node = self.node(start, goal)
        if self.graph.component(node) is not None:
            return recursion.exists(self, goal, node, texts, depth=depth)
        return self.any_of(self._all_ways(start, goal, depth=depth))

    def _all_ways(self, start: Conjunction, goal: Atom, *, depth: int) -> Iterator[Conjunction]:
        for each in self.alternatives(start, goal):
            yield from self.solutions(each, depth=depth)

    def _cheapest(self, found: Conjunction) -> int | None:
        if not found.pending:
            return None
        return min(
            range(len(found.pending)), key=lambda index: self._cost(found, found.pending[index])
        )

    def _cost(self, found: Conjunction, atom: Atom) -> float:
        resolved = found.resolved(atom)
        flags = [not isinstance(term, int) or term in found.known for term in resolved.terms]
        is_recursive = self.graph.component(self.node(found, atom)) is not None
        return cost(self.program, resolved, flags, is_recursive=is_recursive)

    def _closed(self, found: Conjunction, *, is_final: bool) -> Conjunction:
        """Write comparisons and negations whose variables are bound."""
        comparisons, negated = [], []
        for comparison in found.comparisons:
            text = comparison_text(found, comparison, self.parameters)
            if text is None:
                comparisons.append(comparison)
            else:
                found = found.where([text])
        for atom in found.negated:
            texts = [expression(found, term, self.parameters) for term in atom.terms]
            if is_final or all(text is not None for text in texts):
                for condition in self._absent(found, atom):
                    found = found.where([condition])
            else:
                negated.append(atom)
        if is_final and comparisons:
            raise TooComplexError("a compared variable is bound by nothing here")
        return replace(found, comparisons=tuple(comparisons), negated=tuple(negated))

    def _absent(self, found: Conjunction, atom: Atom) -> Iterator[str]:
        """Yield conditions that no stored and no context fact matches."""
        bare = Conjunction(known=found.known, same=found.same)
        for each in self.fact_alternatives(bare, atom):
            yield f"NOT EXISTS ({self.select(['1'], each)})"


def _nesting(sql: str) -> int:
    """Count parentheses in one another; no literal of a statement has one."""
    steps = ((mark == "(") - (mark == ")") for mark in re.findall(r"[()]", sql))
    return max(itertools.accumulate(steps), default=0)


def _all_of(conditions: Iterable[tuple[str, ...]]) -> str:
    return " AND ".join(map(condition_text, conditions))
