"""Schemas as trees of nodes, for the kernels that decode values column by column. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.kernels import shapes

_WORD: Final = 8
_ESCAPED_IN_NAMES: Final = frozenset('"\\')


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A node of a schema.

    Args:
        kind: STRUCT, LIST, ... of `penstock.kernels.shapes`.
        name: of a struct's field.
        children: a struct's fields, a list's element, or a map's key and value.
        is_nullable: in JSON, whether it may be null.
        is_required: in JSON, whether its struct has to have it.
        detail: see `penstock.kernels.shapes.DETAIL`.
        size_bytes: of a fixed.
        symbols: of an enum.
        null_branch, value_branch: of an Avro union.
    """

    kind: int
    name: str = ""
    children: tuple["Shape", ...] = ()
    is_nullable: bool = False
    is_required: bool = False
    detail: int = 0
    size_bytes: int = 0
    symbols: tuple[str, ...] = ()
    null_branch: int = -1
    value_branch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """A tree of shapes as arrays. `shapes`: of each node; `firsts`: its first child's number;
    `groups`: of each node; `inners`: the group of what it holds, or -1; `depth`: of the tree."""

    shapes: list[Shape]
    firsts: list[int]
    groups: list[int]
    inners: list[int]
    group_count: int
    depth: int
    table: NDArray[Any]
    names: NDArray[Any]


def number_nodes(root: Shape) -> Nodes:
    """Number a tree's nodes, the root first, and the children of each one after the other."""
    found: list[Shape] = []
    firsts: list[int] = []
    groups: list[int] = []
    inners: list[int] = []
    group_count, depth, names = 1, 1, bytearray()
    table: list[list[int]] = []
    waiting = deque([(root, 0, 1)])
    numbered = 1
    while waiting:
        shape, group, level = waiting.popleft()
        depth = max(depth, level)
        inner = -1
        if shape.kind in {shapes.LIST, shapes.MAP}:
            inner = group_count
            group_count += 1
        name = shape.name.encode(errors="surrogatepass")
        is_plain = all(letter >= " " and letter not in _ESCAPED_IN_NAMES for letter in shape.name)
        found.append(shape)
        firsts.append(numbered)
        groups.append(group)
        inners.append(inner)
        row = [0] * shapes.NODE_COLUMNS
        row[shapes.KIND] = shape.kind
        row[shapes.FIRST] = numbered
        row[shapes.COUNT] = len(shape.children) or shape.size_bytes
        row[shapes.GROUP] = group
        row[shapes.INNER] = inner
        row[shapes.IS_NULLABLE] = shape.is_nullable
        row[shapes.IS_REQUIRED] = shape.is_required
        row[shapes.REQUIRED_COUNT] = sum(child.is_required for child in shape.children)
        row[shapes.NAME_AT] = len(names)
        row[shapes.NAME_BYTES] = len(name) if is_plain else -1
        row[shapes.DETAIL] = shape.detail
        row[shapes.NULL_BRANCH] = shape.null_branch
        row[shapes.VALUE_BRANCH] = shape.value_branch
        table.append(row)
        names += name
        within = group if inner < 0 else inner
        waiting.extend((child, within, level + 1) for child in shape.children)
        numbered += len(shape.children)
    return Nodes(
        shapes=found,
        firsts=firsts,
        groups=groups,
        inners=inners,
        group_count=group_count,
        depth=depth,
        table=np.array(table, dtype=np.int64),
        names=np.frombuffer(bytes(names) + bytes(_WORD), dtype=np.uint8),
    )
