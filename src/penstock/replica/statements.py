"""Writing many rows by few statements. Pure, but for the connection that it is given.

Each statement gives up the interpreter's lock and has to get it back, which takes milliseconds
while another thread computes: a commit of eighty single rows took 50 ms during an upload.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

_ROWS: Final = (64, 8, 1)
"""Rows of one statement: few texts, so that all of them stay prepared."""


def insert_rows(
    execute: Callable[[str, Sequence[Any]], object],
    head: str,
    rows: Sequence[Sequence[Any]],
    *,
    tail: str = "",
) -> None:
    """Insert rows, in order.

    Args:
        head: up to VALUES; `tail`: what follows, as ON CONFLICT.
        rows: of one width, at most 16 columns.
    """
    at, count = 0, len(rows)
    for size in _ROWS:
        while count - at >= size:
            text = _statement(head, len(rows[at]), size, tail)
            execute(text, list(chain.from_iterable(rows[at : at + size])))
            at += size


@cache
def _statement(head: str, columns: int, rows: int, tail: str) -> str:
    row = f"({','.join('?' * columns)})"
    return f"{head} VALUES {','.join([row] * rows)} {tail}"
