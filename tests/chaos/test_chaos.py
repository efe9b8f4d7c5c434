"""A short chaos run on real processes; `make chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.short import checked_chaos
from chaos.world import seed_from_system
from peers.line_clients import franz_go
from support.own_process import in_own_process

SECONDS = 75


def test_nothing_is_lost_doubled_or_reordered_whatever_dies(tmp_path: Path) -> None:
    seed = seed_from_system()
    print(f"seed {seed}")
    in_own_process(checked_chaos, tmp_path, seed, SECONDS)


def test_a_fourth_client_library_takes_part() -> None:
    """The load has three libraries without it, which is no failure but is to be said."""
    found = franz_go()
    if isinstance(found, str):
        pytest.skip(f"the load had three client libraries: {found}")
    assert found.library == "franz-go"
