"""Nodes, groups and slots: the kernels that decode values column by column read and fill them.

A schema is a tree of nodes, a row of `NODE_COLUMNS` numbers each, the root first and the children
of a node one after the other. Each list or map has a group of its own for what it holds, and the
root's group is 0: nodes of a group have as many slots as the group has elements. The slot of a node
is `bases[node] + element` in two arrays:

* `valid`: NULL, VALUE, or HARD;
* `longs`: an integer; the bits of a double; days, microseconds; how many elements a list or map
  has; or where a text lies (`text_at`).

A slot that was never written is zero: null, an empty text, a list without elements. A value that
can't be decoded takes its slots back (`forget`), and is left to the careful decoder.
"""

from typing import Final

from penstock.kernels.arrays import wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, load_long, store, store_long

# Columns of a node.
KIND: Final = 0
FIRST: Final = 1
"""The first child."""
COUNT: Final = 2
"""How many children a struct has; how many bytes a fixed."""
GROUP: Final = 3
INNER: Final = 4
"""The group of what a list or map holds."""
IS_NULLABLE: Final = 5
IS_REQUIRED: Final = 6
"""In JSON 1 for a struct's field that has to be there."""
REQUIRED_COUNT: Final = 7
"""In JSON the number of a struct's fields that have to be there."""
NAME_AT: Final = 8
NAME_BYTES: Final = 9
"""-1: a name that JSON writes with escapes."""
DETAIL: Final = 10
"""An enum's count of symbols; the least number that a decimal has too few digits for; 1 where
instants finer than microseconds and numbers with a fraction are left."""
NULL_BRANCH: Final = 11
"""The number of null in an Avro union, or -1."""
VALUE_BRANCH: Final = 12
"""The number of the other branch of an Avro union; -1: it is not a union."""
NODE_COLUMNS: Final = 13

# Kinds of nodes, in an order that kernels compare by: those that hold others, those that are
# bytes, the others.
STRUCT: Final = 0
LIST: Final = 1
MAP: Final = 2
TEXT: Final = 3
BYTES: Final = 4
UUID: Final = 5
DECIMAL: Final = 6
FIXED: Final = 7
DECIMAL_FIXED: Final = 8
LONG: Final = 9
DOUBLE: Final = 10
FLOAT: Final = 11
BOOLEAN: Final = 12
INT: Final = 13
DATE: Final = 14
INSTANT: Final = 15
"""Microseconds; in Avro `timestamp-micros`."""
INSTANT_MS: Final = 16
TIME: Final = 17
TIME_MS: Final = 18
ENUM: Final = 19

# What a slot holds.
NULL: Final = 0
VALUE: Final = 1
HARD: Final = 2
"""A JSON number that no exact arithmetic of two doubles gives: its text."""

ESCAPED: Final = 1 << 31
TEXT_BYTES_MAX: Final = ESCAPED - 1

# A frame of the kernels' stack, one for each struct, list or map that is open.
FRAME_NODE: Final = 0
FRAME_SLOT: Final = 1
FRAME_NEXT: Final = 2
"""The child that is expected next; in Avro how many elements the block still has."""
FRAME_COUNT: Final = 3
"""Required fields that were there; elements so far."""
FRAME_SERIAL: Final = 4
FRAME_LONGS: Final = 5

UUID_BYTES: Final = 36
MICROSECONDS_MIN: Final = -62_135_596_800_000_000
MICROSECONDS_MAX: Final = 253_402_300_799_999_999
DAYS_MIN: Final = -719_162
DAYS_MAX: Final = 2_932_896
"""The years 1 to 9999, as Python's calendar."""
MAP_ENTRIES_MAX: Final = 32
"""Keys are compared each with each up to so many: of larger maps the careful way finds doubles."""


@kernel
def text_at(position: int, size: int, is_escaped: int) -> int:
    """A text as one number: 32 bits of position, one of whether it has escapes, 31 of bytes."""
    return position << 32 | is_escaped << 31 | size


@kernel
def forget(
    nodes: int,
    node_count: int,
    bases: int,
    longs: int,
    valid: int,
    before: int,
    counts: int,
    group_count: int,
) -> None:
    """Make the slots zero that were filled since the groups had `before` elements.

    Args:
        nodes, bases, longs, valid, before, counts: addresses of the arrays.
    """
    for node in range(node_count):
        group = load_long(nodes, node * NODE_COLUMNS + GROUP)
        base = load_long(bases, node)
        # The root's element is counted when it is whole.
        end = load_long(counts, group) + (1 if group == 0 else 0)
        for slot in range(load_long(before, group), end):
            store_long(longs, base + slot, wide(0))
            store(valid, base + slot, wide(0))
    for group in range(group_count):
        store_long(counts, group, load_long(before, group))


@kernel
def has_twice(address: int, longs: int, base: int, first: int, end: int) -> int:
    """Return 1 where two texts of slots [first, end) have the same bytes."""
    for slot in range(first, end):
        this = load_long(longs, base + slot)
        size = this & TEXT_BYTES_MAX
        for other_slot in range(first, slot):
            other = load_long(longs, base + other_slot)
            if other & TEXT_BYTES_MAX == size and _same(address, this >> 32, other >> 32, size):
                return 1
    return 0


@kernel
def is_uuid(address: int, at: int, size: int) -> int:
    """Return 1 for a UUID as Python writes it: lower case, with hyphens."""
    if size != UUID_BYTES:
        return 0
    for index in range(UUID_BYTES):
        found = load(address, at + index)
        is_hyphen = index == 8 or (index > 12 and index < 24 and (index - 13) % 5 == 0)
        if is_hyphen:
            if found != 45:
                return 0
        elif not (48 <= found <= 57 or 97 <= found <= 102):
            return 0
    return 1


@kernel
def utf8_end(address: int, at: int, end: int) -> int:
    """The position after one character of several bytes; -1: it is not UTF-8.

    Surrogates are not: RFC 3629, section 3.
    """
    first = load(address, at)
    if first < 0xC2 or first > 0xF4:
        return -1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > end:
        return -1
    second = load(address, at + 1)
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return -1
    for index in range(2, size):
        if load(address, at + index) & 0xC0 != 0x80:
            return -1
    return at + size


@kernel
def _same(address: int, one: int, other: int, size: int) -> bool:
    for index in range(size):  # noqa: SIM110 - numba compiles no generators
        if load(address, one + index) != load(address, other + index):
            return False
    return True
