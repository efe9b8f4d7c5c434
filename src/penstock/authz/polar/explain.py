"""Explain why a question's answer is what it is.

Allowed: one derivation, the shallowest, in which no goal supports itself. Denied: up to ten sets of
at most two facts that would each allow it, each tried before it is given, and the conditions that
failed on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.authz.polar.graph import ordered
from penstock.authz.polar.lexer import escape
from penstock.authz.polar.program import (
    NOW,
    Atom,
    Clause,
    Comparison,
    Fact,
    Program,
    Signature,
    Term,
    Value,
)
from penstock.authz.polar.query import Query, Row
from penstock.authz.polar.tabled import FactSource, Known, MemoryFacts, Step, Tabled
from penstock.authz.polar.values import holds

GOALS_MAX: Final = 5_000
SETS_MAX: Final = 10
FACTS_MAX: Final = 2
FAILURES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Derivation:
    """A goal with what it follows from.

    Args:
        row: its ids; None: any value.
        clause: the rule; None for a stored or context fact.
        body: what the rule's conditions follow from.
    """

    signature: Signature
    row: Row
    clause: Clause | None = None
    body: tuple[Derivation, ...] = ()

    def as_json(self, program: Program) -> dict[str, object]:
        """Give the tree as data: goal, line of its rule, and its parts."""
        arguments = [
            {"type": kind, "id": id_}
            for kind, id_ in zip(self.signature.types, self.row, strict=True)
        ]
        found: dict[str, object] = {"predicate": self.signature.predicate, "args": arguments}
        if self.clause is None:
            return {**found, "fact": True}
        line = program.source.count("\n", 0, self.clause.span.start) + 1
        # The implied rule for `allow` stands on no line.
        is_implied = self.clause.span.end <= self.clause.span.start
        return {
            **found,
            "line": None if is_implied else line,
            "because": [each.as_json(program) for each in self.body],
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """A condition that failed where all others of its rule held."""

    text: str
    clause: Clause


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason why a query is answered as it is.

    Args:
        derivation: if it is allowed: of each call of the query.
        suggestions: if it isn't: sets of facts that would each allow it.
        failures: negations and comparisons that failed, with their values.
        is_complete: false if the budget of goals ended before all was tried.
    """

    derivation: tuple[Derivation, ...] | None
    suggestions: tuple[tuple[Fact, ...], ...] = ()
    failures: tuple[Failure, ...] = ()
    is_complete: bool = True


def explain(
    program: Program,
    facts: FactSource,
    query: Query,
    values: Mapping[int, str],
    *,
    now_s: int,
    goals: int = GOALS_MAX,
) -> Explanation:
    """Explain a query; its free variables may have any value."""
    facts = _Remembering(facts)
    derivation = derive(program, facts, query, values, now_s=now_s)
    if derivation is not None:
        return Explanation(derivation)
    return _Search(program, facts, query, values, now_s, goals).explanation()


# --- Allowed


def derive(
    program: Program,
    facts: FactSource,
    query: Query,
    values: Mapping[int, str],
    *,
    now_s: int,
) -> tuple[Derivation, ...] | None:
    """Give the shallowest derivation of a query; None if it has no answer."""
    steps: list[Step] = []
    Tabled(program, facts, now_s=now_s, record=steps.append).solve(query, values)
    heights = _heights(facts, steps)
    tops = [step for step in steps if step.clause.head.signature.predicate == ""]
    if not tops:
        return None
    best = min(tops, key=lambda step: max((heights[used] for used in step.used), default=0))
    by_head: dict[tuple[Signature, Row], list[Step]] = {}
    for step in steps:
        by_head.setdefault((step.clause.head.signature, step.answer), []).append(step)
    return tuple(_tree(used, heights, by_head) for used in best.used)


Goal = tuple[Signature, Row]


def _heights(facts: FactSource, steps: list[Step]) -> dict[Goal, int]:
    """Give the least height of each goal: 0 for a fact, else one more than its highest condition.

    Goals are settled in the order of their heights, so that what a goal follows from is always
    lower: nothing supports itself.
    """
    waiting: dict[Goal, list[int]] = {}
    missing = []
    queue: deque[Goal] = deque()
    heights: dict[Goal, int] = {}

    def settle(goal: Goal, height: int) -> None:
        if goal not in heights:
            heights[goal] = height
            queue.append(goal)

    for number, step in enumerate(steps):
        conditions = set(step.used)
        missing.append(len(conditions))
        for goal in conditions:
            waiting.setdefault(goal, []).append(number)
    for goal in waiting:
        if _is_fact(facts, goal):
            settle(goal, 0)
    for number, step in enumerate(steps):
        if not missing[number]:
            settle((step.clause.head.signature, step.answer), 1)
    while queue:
        goal = queue.popleft()
        for number in waiting.get(goal, ()):
            missing[number] -= 1
            if not missing[number]:
                step = steps[number]
                height = 1 + max(heights[used] for used in step.used)
                settle((step.clause.head.signature, step.answer), height)
    return heights


def _is_fact(facts: FactSource, goal: Goal) -> bool:
    signature, row = goal
    return None not in row and any(True for _ in facts.lookup(signature, row))


def _tree(
    goal: Goal, heights: Mapping[Goal, int], by_head: Mapping[Goal, list[Step]]
) -> Derivation:
    signature, row = goal
    if heights[goal] == 0:
        return Derivation(signature, row)

    def height(step: Step) -> int:
        return max((heights[used] for used in step.used), default=0)

    step = min(
        (step for step in by_head[goal] if all(used in heights for used in step.used)), key=height
    )
    body = tuple(_tree(used, heights, by_head) for used in step.used)
    return Derivation(signature, row, step.clause, body)


# --- Denied


@dataclass(frozen=True, slots=True)
class _Checks:
    """The comparisons and negations of a rule, by the variables of the search."""

    clause: Clause
    comparisons: tuple[Comparison, ...]
    negated: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class _Open:
    """A way to hold that still has conditions open, with the facts that it supposes."""

    pending: tuple[Atom, ...]
    checks: tuple[_Checks, ...]
    bindings: Known
    supposed: tuple[Fact, ...]


@dataclass(slots=True)
class _Search:
    """Looks for facts that would allow a query, few and near ones first."""

    program: Program
    facts: FactSource
    query: Query
    values: Mapping[int, str]
    now_s: int
    goals: int
    _failures: dict[Failure, None] = field(default_factory=dict)
    _found: dict[frozenset[Fact], None] = field(default_factory=dict)

    def explanation(self) -> Explanation:
        bindings = tuple(self.values.get(each) for each in range(self.query.variable_count))
        start = _Open(self.query.body, (), bindings, ())
        # One queue for each number of supposed facts: what needs fewer is tried first.
        queues: list[deque[_Open]] = [deque([start]), *(deque() for _ in range(FACTS_MAX))]
        is_complete = True
        tried: set[frozenset[Fact]] = set()
        while len(self._found) < SETS_MAX:
            queue = next((each for each in queues if each), None)
            if queue is None:
                break
            if self.goals <= 0:
                is_complete = False
                break
            state = queue.popleft()
            if not state.pending:
                supposed = frozenset(state.supposed)
                if self._passes(state) and supposed and supposed not in tried:
                    tried.add(supposed)
                    self._verify(supposed)
                continue
            self.goals -= 1
            for following in self._following(state):
                queues[len(following.supposed)].append(following)
        ordered_sets = (tuple(sorted(each)) for each in self._found)
        return Explanation(None, tuple(ordered_sets), tuple(self._failures), is_complete)

    def _verify(self, supposed: frozenset[Fact]) -> None:
        if any(other <= supposed for other in self._found):
            return
        facts = _Supposing(self.facts, supposed)
        if Tabled(self.program, facts, now_s=self.now_s).solve(self.query, self.values):
            self._found[supposed] = None

    def _following(self, state: _Open) -> Iterator[_Open]:
        known = frozenset(place for place, id_ in enumerate(state.bindings) if id_ is not None)
        atom, *_ = ordered(self.program, state.pending, known)
        rest = tuple(each for each in state.pending if each is not atom)
        ids = tuple(self._value(term, state.bindings) for term in atom.terms)
        for row in self.facts.lookup(atom.signature, ids):
            bindings = _bound(atom, row, state.bindings)
            if bindings is not None:
                yield _Open(rest, state.checks, bindings, state.supposed)
        for fact in state.supposed:
            if fact.signature == atom.signature:
                bindings = _bound(atom, fact.ids, state.bindings)
                if bindings is not None:
                    yield _Open(rest, state.checks, bindings, state.supposed)
        if (
            len(state.supposed) < FACTS_MAX
            and atom.signature in self.program.facts
            and None not in ids
        ):
            values = zip(atom.signature.types, ids, strict=True)
            fact = Fact(
                atom.signature.predicate, tuple(Value(kind, id_ or "") for kind, id_ in values)
            )
            if fact not in state.supposed:
                supposed = (*state.supposed, fact)
                yield _Open(rest, state.checks, state.bindings, supposed)
        for clause in self.program.of(atom.signature):
            following = self._inlined(state, atom, rest, ids, clause)
            if following is not None:
                yield following

    def _inlined(
        self, state: _Open, atom: Atom, rest: tuple[Atom, ...], ids: Known, clause: Clause
    ) -> _Open | None:
        base = len(state.bindings)

        # The head's variables become the goal's where both are open.
        renamed: dict[int, Term] = {}
        bindings = [*state.bindings, *(None for _ in clause.names)]
        for term, given, id_ in zip(clause.head.terms, atom.terms, ids, strict=True):
            own = bindings[base + term] if isinstance(term, int) else self._value(term, ())
            if isinstance(term, int):
                if own is not None and id_ is not None and own != id_:
                    return None
                if id_ is not None:
                    bindings[base + term] = id_
                elif own is not None and isinstance(given, int):
                    bindings[given] = own
                else:
                    renamed.setdefault(base + term, given)
            elif id_ is None and isinstance(given, int):
                bindings[given] = own
            elif own != id_:
                return None

        def placed(term: Term) -> Term:
            return renamed.get(base + term, base + term) if isinstance(term, int) else term

        def placed_atom(each: Atom) -> Atom:
            return Atom(each.signature, tuple(map(placed, each.terms)))

        checks = state.checks
        if clause.negated or clause.comparisons:
            compared = (
                each._replace(left=placed(each.left), right=placed(each.right))
                for each in clause.comparisons
            )
            negated = map(placed_atom, clause.negated)
            checks = (*checks, _Checks(clause, tuple(compared), tuple(negated)))
        pending = (*map(placed_atom, clause.body), *rest)
        return _Open(pending, checks, tuple(bindings), state.supposed)

    def _passes(self, state: _Open) -> bool:
        """Whether comparisons and negations hold; notes those that don't."""
        for checks in state.checks:
            for number, comparison in enumerate(checks.comparisons):
                sides = (comparison.left, comparison.right)
                left, right = (self._value(term, state.bindings) for term in sides)
                if left is None or right is None:
                    continue
                if not holds(comparison.operator, left, right):
                    written = checks.clause.comparisons[number]
                    self._note(_compared(checks.clause, written, left, right), checks.clause)
                    return False
            for atom in checks.negated:
                ids = tuple(self._value(term, state.bindings) for term in atom.terms)
                for row in self.facts.lookup(atom.signature, ids):
                    self._note(f"not {shown(atom.signature, row)}", checks.clause)
                    return False
        return True

    def _note(self, text: str, clause: Clause) -> None:
        if len(self._failures) < FAILURES_MAX:
            self._failures[Failure(text, clause)] = None

    def _value(self, term: Term, bindings: Known) -> str | None:
        if isinstance(term, int):
            return bindings[term]
        return str(self.now_s) if term is NOW else term


class _Remembering:
    """The facts, each question of which is asked once: a search asks few, many times."""

    def __init__(self, facts: FactSource) -> None:
        self._facts = facts
        self._found: dict[tuple[Signature, Known], Iterable[tuple[str, ...]]] = {}

    def lookup(self, signature: Signature, known: Known) -> Iterable[tuple[str, ...]]:
        """Give the facts of a signature that have the known ids."""
        found = self._found.get((signature, known))
        if found is None:
            found = self._found[signature, known] = tuple(self._facts.lookup(signature, known))
        return found


class _Supposing:
    """The facts, with some that are supposed."""

    def __init__(self, facts: FactSource, supposed: Iterable[Fact]) -> None:
        self._facts = facts
        self._supposed = MemoryFacts(supposed)

    def lookup(self, signature: Signature, known: Known) -> Iterable[tuple[str, ...]]:
        """Give the facts of a signature that have the known ids."""
        return [*self._facts.lookup(signature, known), *self._supposed.lookup(signature, known)]


def _bound(atom: Atom, row: Row, bindings: Known) -> Known | None:
    after = list(bindings)
    for term, id_ in zip(atom.terms, row, strict=True):
        if isinstance(term, int):
            if after[term] is not None and after[term] != id_:
                return None
            after[term] = id_
    return tuple(after)


def _compared(clause: Clause, comparison: Comparison, left: str, right: str) -> str:
    texts = []
    for term, id_ in ((comparison.left, left), (comparison.right, right)):
        name = clause.names[term] if isinstance(term, int) else term.value if term is NOW else ""
        texts.append(f"{name} ({id_})" if name else id_)
    return f"{texts[0]} {comparison.operator} {texts[1]}"


def shown(signature: Signature, row: Row) -> str:
    """Write a goal as Polar does."""
    pairs = zip(signature.types, row, strict=True)
    return f"{signature.predicate}({', '.join(_value_text(*pair) for pair in pairs)})"


def _value_text(kind: str, id_: str | None) -> str:
    if id_ is None:
        return "_"
    if kind == "String":
        return f'"{escape(id_)}"'
    return id_ if kind in ("Integer", "Boolean") else f'{kind}{{"{escape(id_)}"}}'
