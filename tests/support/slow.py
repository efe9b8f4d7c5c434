"""Cases that `make check` leaves out and `make test` has: the marker `slow` of pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(is_kept: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """The same cases, marked `slow` but for some.

    Args:
        is_kept: of a case's values, whether `make check` has it.
        cases: tuples of values, or single values.
    """
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=[] if is_kept(*values) else [pytest.mark.slow]))
    return found
