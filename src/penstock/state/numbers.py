"""Bounds of numbers in commands. A command comes from outside: a number that SQLite can't hold
must be refused by apply, not raise in it, or every replica would stop at that entry."""

from collections.abc import Iterable
from typing import Final

INT64_MAX: Final = (1 << 63) - 1
INT32_MAX: Final = (1 << 31) - 1


def is_number(value: int, least: int = 0, most: int = INT64_MAX) -> bool:
    """Whether a number is within [least, most]."""
    return least <= value <= most


def are_int64(values: Iterable[int]) -> bool:
    """Whether SQLite can hold all of them."""
    return all(-INT64_MAX - 1 <= value <= INT64_MAX for value in values)
