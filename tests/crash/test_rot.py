"""What is stored rots at random: no wrong record, no silent gap, nothing that hangs."""

from __future__ import annotations

import time

import pytest

from rot.campaign import run_cases

CASES = 60


@pytest.mark.parametrize("part", [0, 1])
def test_whatever_rots_is_named_and_nothing_wrong_is_read(part: int) -> None:
    """New seeds in each run; a failure names its own. `tests/rot/campaign.py` runs more."""
    first = time.time_ns() % 1_000_000_000
    outcomes, failed = run_cases(range(first + part * CASES, first + (part + 1) * CASES))
    assert not failed, "\n".join(failed)
    assert sum(outcomes.values()) == CASES
    assert outcomes["damaged"], "the cases do damage"
