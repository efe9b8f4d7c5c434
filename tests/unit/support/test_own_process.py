"""A function in a process of its own passes or fails there as it would here."""

from __future__ import annotations

import math
import operator

import pytest

from support.own_process import in_own_process


def test_a_function_that_returns_passes() -> None:
    in_own_process(math.sqrt, 4)


def test_a_function_that_raises_fails_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="truediv ended with status 1"):
        in_own_process(operator.truediv, 1, 0)
    assert "ZeroDivisionError" in capfd.readouterr().err
