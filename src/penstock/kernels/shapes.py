"""Nodes, groups and slots: the kernels that decode values column by column read and fill them.

A schema is a tree of nodes, a row of `NODE_COLUMNS` numbers each, the root first and the children
of a node one after the other. Each list or map has a group of its own for what it holds, and the
root's group is 0: nodes of a group have as many slots as the group has elements. The slot of a node
is `bases[node] + element` in two arrays:

* `valid`: NULL, VALUE, or HARD;
* `longs`: an integer; the bits of a double; days, microseconds; how many elements a list or map
  has; or where a text lies (`text_at`).

A slot that was never written is zero: null, an empty text, a list without elements. A value that
can't be decoded takes its slots back (`slots.forget`), and is left to the careful decoder.

Only numbers are here: schemas are read where none is decoded, and numba takes a second to load.
"""

from typing import Final

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
