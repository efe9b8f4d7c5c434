"""The types of a policy: blocks, what they extend, and what they declare."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Diagnostic

PRIMITIVES: Final = ("String", "Integer", "Boolean")
ABSTRACT: Final = ("Actor", "Resource")
GLOBAL: Final = "global"
TYPES_MAX: Final = 500
NAMES_MAX: Final = 100_000
"""Roles, permissions and relations, counted for each type that has or inherits them."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The names that a type declares, or inherits."""

    roles: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    relations: Mapping[str, str] = field(default_factory=dict)

    def kind(self, name: str) -> str | None:
        """Give the predicate that a name picks."""
        if name in self.roles:
            return "has_role"
        if name in self.permissions:
            return "has_permission"
        return "has_relation" if name in self.relations else None


@dataclass(frozen=True)
class Types:
    """All types: `parents` has what each block's type extends, nearest first; `kinds` whether it
    is an "actor" or a "resource"; `declared` what it declares itself, GLOBAL's too."""

    kinds: Mapping[str, str]
    parents: Mapping[str, tuple[str, ...]]
    declared: Mapping[str, Declared]

    @cached_property
    def _concrete(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {name: [] for name in (*ABSTRACT, *self.kinds)}
        for name in sorted(self.kinds):
            for above in self.above(name):
                found[above].append(name)
            found["Resource"].append(name)
            if self.kinds[name] == "actor":
                found["Actor"].append(name)
        return {name: tuple(below) for name, below in found.items()}

    def above(self, name: str) -> list[str]:
        """Give a type and all that it extends, nearest first."""
        seen = {name: None}
        queue = [name]
        for each in queue:
            for parent in self.parents[each]:
                if parent not in seen:
                    seen[parent] = None
                    queue.append(parent)
        return list(seen)

    def exists(self, name: str) -> bool:
        """Whether rules may name it."""
        return name in PRIMITIVES or name in self._concrete

    def concrete(self, name: str) -> tuple[str, ...]:
        """Give the types of the values of a type; empty for an unknown one."""
        return (name,) if name in PRIMITIVES else self._concrete.get(name, ())

    @cached_property
    def whole(self) -> Mapping[str, Declared]:
        """The names of each type, with those that it inherits."""
        return {name: self._inherited(name) for name in self.kinds} | {
            GLOBAL: self.declared.get(GLOBAL, Declared())
        }

    def _inherited(self, name: str) -> Declared:
        each = [self.declared[above] for above in self.above(name)]
        relations: dict[str, str] = {}
        for declared in each:
            for relation, kind in declared.relations.items():
                relations.setdefault(relation, kind)
        return Declared(
            tuple(dict.fromkeys(role for one in each for role in one.roles)),
            tuple(dict.fromkeys(permission for one in each for permission in one.permissions)),
            relations,
        )

    def unknown(self, name: str) -> str:
        """Say that a type doesn't exist, and which one may be meant."""
        near = difflib.get_close_matches(name[:100], [*PRIMITIVES, *self._concrete], n=1)
        hint = f"did you mean {near[0]}?" if near else f"declare it: resource {name[:100]} {{}}"
        return f"unknown type {name[:100]}: {hint}"


def collect(policy: syntax.Policy) -> tuple[Types, list[Diagnostic]]:
    """Read the blocks; what is wrong with them is left out of the types."""
    wrong: list[Diagnostic] = []
    if sum(isinstance(part, syntax.Block) for part in policy.parts) > TYPES_MAX:
        span = next(part.span for part in policy.parts if isinstance(part, syntax.Block))
        return Types({}, {}, {}), [Diagnostic(f"more than {TYPES_MAX} blocks", span)]
    blocks: dict[str, syntax.Block] = {}
    for part in policy.parts:
        if not isinstance(part, syntax.Block):
            continue
        name = part.name.text
        if name in PRIMITIVES or name in ABSTRACT:
            wrong.append(Diagnostic(f"{name} is a type of the language", part.name.span))
        elif name in blocks:
            wrong.append(Diagnostic(f"duplicate block {name}", part.name.span))
        else:
            blocks[name] = part
    named = {name: block for name, block in blocks.items() if block.kind != GLOBAL}
    kinds = {name: block.kind for name, block in named.items()}
    parents: dict[str, tuple[str, ...]] = {}
    # First without `extends`, so that a message can name the nearest type.
    flat = Types(kinds, dict.fromkeys(kinds, ()), {})
    for name, block in named.items():
        above = []
        for parent in block.extends:
            if parent.text in ABSTRACT:
                continue
            if parent.text in kinds:
                above.append(parent.text)
            else:
                wrong.append(Diagnostic(flat.unknown(parent.text), parent.span))
        parents[name] = tuple(above)
    for name in _cyclic(parents):
        wrong.append(Diagnostic(f"cyclic extends: {name} extends itself", named[name].name.span))
        parents[name] = ()
    _inherit_kinds(kinds, parents)
    declared = {name: _declared(block, flat, wrong) for name, block in blocks.items()}
    types = Types(kinds, parents, declared)
    counts = {
        name: len(each.roles) + len(each.permissions) + len(each.relations)
        for name, each in declared.items()
    }
    if sum(counts[above] for name in kinds for above in types.above(name)) > NAMES_MAX:
        span = policy.parts[0].span
        wrong.append(Diagnostic(f"blocks declare and inherit more than {NAMES_MAX:,} names", span))
        types = Types(kinds, dict.fromkeys(kinds, ()), declared)
    return types, wrong


def _inherit_kinds(kinds: dict[str, str], parents: Mapping[str, tuple[str, ...]]) -> None:
    """A type that extends an actor is an actor, too."""
    for name in list(kinds):
        if any(kinds[above] == "actor" for above in Types(kinds, parents, {}).above(name)):
            kinds[name] = "actor"


def _cyclic(parents: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Give the types that reach themselves, by taking away those that don't, again and again."""
    waiting = {name: set(above) for name, above in parents.items()}
    below: dict[str, list[str]] = {name: [] for name in parents}
    for name, above in waiting.items():
        for parent in above:
            below[parent].append(name)
    free = [name for name, above in waiting.items() if not above]
    for name in free:
        for child in below[name]:
            waiting[child].discard(name)
            if not waiting[child]:
                free.append(child)
    return sorted(name for name, above in waiting.items() if above)


def _declared(block: syntax.Block, types: Types, wrong: list[Diagnostic]) -> Declared:
    names: dict[str, list[str]] = {"roles": [], "permissions": []}
    relations: dict[str, str] = {}
    seen: set[str] = set()

    def is_new(name: syntax.Name) -> bool:
        if name.text in seen:
            wrong.append(Diagnostic(f'duplicate declaration "{name.text[:100]}"', name.span))
            return False
        seen.add(name.text)
        return True

    for item in block.items:
        match item:
            case syntax.Names():
                names[item.kind] += [name.text for name in item.names if is_new(name)]
            case syntax.Relations() if block.kind == GLOBAL:
                wrong.append(Diagnostic("the global block has no relations", item.span))
            case syntax.Relations():
                for relation in item.relations:
                    if not types.exists(relation.type.text):
                        wrong.append(
                            Diagnostic(types.unknown(relation.type.text), relation.type.span)
                        )
                    elif is_new(relation.name):
                        relations[relation.name.text] = relation.type.text
            case syntax.ShorthandRule():
                pass
    return Declared(tuple(names["roles"]), tuple(names["permissions"]), relations)


def metadata(types: Types) -> dict[str, dict[str, object]]:
    """Roles, permissions and relations of each type and of "global", sorted by name."""
    found: dict[str, dict[str, object]] = {}
    for name in sorted([*types.kinds, GLOBAL]):
        declared = types.whole[name]
        found[name] = {
            "roles": sorted(declared.roles),
            "permissions": sorted(declared.permissions),
            "relations": dict(sorted(declared.relations.items())),
        }
    return found


def fact_patterns(types: Types) -> Iterator[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """Yield what the blocks declare as facts: predicate, and per argument its type and id."""
    actors = types.concrete("Actor")
    for name, declared in types.whole.items():
        tail: tuple[tuple[str, str | None], ...] = () if name == GLOBAL else ((name, None),)
        for predicate, names in (
            ("has_role", declared.roles),
            ("has_permission", declared.permissions),
        ):
            for actor in actors if names else ():
                yield predicate, ((actor, None), ("String", None), *tail)
        for relation, kind in declared.relations.items():
            for below in types.concrete(kind):
                yield "has_relation", ((name, None), ("String", relation), (below, None))
