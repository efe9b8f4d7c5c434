"""The graph of a policy's goals: what depends on what, and what is recursive.

A node is a predicate over types, with the constants that a question and rules fix. Constants keep
goals apart that have one predicate: that "member" of an organization depends on "admin" of it isn't
recursion. Strongly connected parts of the graph are the recursive ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.authz.polar.clause_index import ClauseIndex
from penstock.authz.polar.program import Atom, Clause, Program, Signature, Term

NODES_MAX: Final = 5_000


class TooComplexError(Exception):
    """A question has no statement of reasonable size; the tabled evaluator answers it."""


class Node(NamedTuple):
    """A predicate over types; of each argument the constant that it is, if any."""

    signature: Signature
    constants: tuple[str | None, ...]


class Graph:
    """The nodes that questions lead to, found as they are asked for."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._below: dict[Node, tuple[Node, ...]] = {}
        self._components: dict[Node, int] = {}
        self._component_count = 0
        self._index = ClauseIndex(program)

    def clauses(self, node: Node) -> Iterator[Clause]:
        """Yield the clauses whose heads have no other constants than a node's."""
        for clause in self._candidates(node):
            if _bindings(clause, node) is not None:
                yield clause

    def _candidates(self, node: Node) -> tuple[Clause, ...]:
        return self._index.candidates(node.signature, node.constants)

    def component(self, node: Node) -> int | None:
        """Give the number of a node's recursive part; None if it isn't recursive.

        Raises:
            TooComplexError: the graph has more than NODES_MAX nodes.
        """
        if node not in self._components:
            self._find(node)
        number = self._components[node]
        return number if number > 0 else None

    def non_linear(self) -> list[Clause]:
        """Give the rules that have two recursive conditions, of any question.

        Raises:
            TooComplexError: the graph has more than NODES_MAX nodes.
        """
        for signature in self._program.clauses:
            self.component(Node(signature, (None,) * len(signature.types)))
        found: dict[Clause, None] = {}
        for node, number in list(self._components.items()):
            for clause in self._program.of(node.signature) if number else ():
                bindings = _bindings(clause, node)
                if bindings is None:
                    continue
                below = [self._components.get(_node(atom, bindings)) for atom in clause.body]
                if below.count(number) > 1:
                    found[clause] = None
        return list(found)

    def _neighbours(self, node: Node) -> tuple[Node, ...]:
        found = self._below.get(node)
        if found is None:
            if len(self._below) >= NODES_MAX:
                raise TooComplexError(f"the policy's graph has more than {NODES_MAX:,} goals")
            nodes: dict[Node, None] = {}
            for clause in self._candidates(node):
                bindings = _bindings(clause, node)
                if bindings is not None:
                    nodes.update((_node(atom, bindings), None) for atom in clause.body)
            found = self._below[node] = tuple(nodes)
        return found

    def _find(self, root: Node) -> None:
        """Number the recursive parts that a node leads to (Tarjan's algorithm, without Python's
        recursion). A part that isn't recursive gets 0."""
        order: dict[Node, int] = {}
        low: dict[Node, int] = {}
        path: list[Node] = []
        on_path: set[Node] = set()
        work: list[tuple[Node, Iterator[Node]]] = []

        def enter(node: Node) -> None:
            order[node] = low[node] = len(order)
            path.append(node)
            on_path.add(node)
            work.append((node, iter(self._neighbours(node))))

        enter(root)
        while work:
            node, neighbours = work[-1]
            for neighbour in neighbours:
                if neighbour in self._components:
                    continue
                if neighbour not in order:
                    enter(neighbour)
                    break
                if neighbour in on_path:
                    low[node] = min(low[node], order[neighbour])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    self._close(node, path, on_path)

    def _close(self, node: Node, path: list[Node], on_path: set[Node]) -> None:
        members = []
        while True:
            member = path.pop()
            on_path.discard(member)
            members.append(member)
            if member == node:
                break
        is_recursive = len(members) > 1 or node in self._neighbours(node)
        if is_recursive:
            self._component_count += 1
        number = self._component_count if is_recursive else 0
        for member in members:
            self._components[member] = number


def _bindings(clause: Clause, node: Node) -> dict[int, str] | None:
    bindings: dict[int, str] = {}
    for term, constant in zip(clause.head.terms, node.constants, strict=True):
        if constant is None:
            continue
        if isinstance(term, int):
            if bindings.setdefault(term, constant) != constant:
                return None
        elif isinstance(term, str) and term != constant:
            return None
    return bindings


def _node(atom: Atom, bindings: dict[int, str]) -> Node:
    return Node(
        atom.signature,
        tuple(
            bindings.get(term) if isinstance(term, int) else term if isinstance(term, str) else None
            for term in atom.terms
        ),
    )


# --- The order of conditions

FULLY_BOUND: Final = 0.0
UNCONNECTED: Final = 100.0
"""Conditions that cost as much share no bound variable with what comes before."""


def cost(program: Program, atom: Atom, is_bound: Iterable[bool], *, is_recursive: bool) -> float:
    """Estimate how many rows a condition multiplies by, given which arguments are bound variables.

    A constant doesn't count as bound: few constants narrow anything down. From the first argument a
    relation leads to few values (a folder has one parent), from its last to many.
    """
    bound = [
        known or not isinstance(term, int) for known, term in zip(is_bound, atom.terms, strict=True)
    ]
    if all(bound):
        return FULLY_BOUND
    connected = [
        known and isinstance(term, int) for known, term in zip(bound, atom.terms, strict=True)
    ]
    has_rules = atom.signature in program.clauses
    if not any(connected):
        return UNCONNECTED + (20 if is_recursive else 10 if has_rules else 0)
    is_relation = atom.signature.predicate == "has_relation"
    if connected[0]:
        found = 1.0 if is_relation else 2.0
    elif connected[-1]:
        found = 4.0 if is_relation else 3.0
    else:
        found = 30.0
    return found + (6 if is_recursive else 1 if has_rules else 0)


def ordered(program: Program, body: tuple[Atom, ...], bound: frozenset[int]) -> tuple[Atom, ...]:
    """Order conditions so that each has as much bound as it can, cheapest first."""
    rest = list(body)
    known = set(bound)
    found: list[Atom] = []

    def price(atom: Atom) -> float:
        flags = [_is_known(term, known) for term in atom.terms]
        return cost(program, atom, flags, is_recursive=False)

    while rest:
        best = min(rest, key=price)
        rest.remove(best)
        known.update(best.variables)
        found.append(best)
    return tuple(found)


def _is_known(term: Term, known: set[int]) -> bool:
    return not isinstance(term, int) or term in known
