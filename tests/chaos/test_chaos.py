"""A short chaos run on real processes; `make chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.run import chaos
from chaos.tidying import CLIENTS_WARN, tidied  # noqa: F401 - a fixture
from chaos.world import seed_from_system
from peers.line_clients import franz_go

SECONDS = 75


@CLIENTS_WARN
@pytest.mark.usefixtures("tidied")
def test_nothing_is_lost_doubled_or_reordered_whatever_dies(tmp_path: Path) -> None:
    seed = seed_from_system()
    print(f"seed {seed}")
    report, crashed = chaos(tmp_path, seed=seed, seconds=SECONDS)
    print(report.text())
    assert report.ok, report.text()
    assert not crashed, crashed
    assert report.counts["client libraries"] == (3 if isinstance(franz_go(), str) else 4)


def test_a_fourth_client_library_takes_part() -> None:
    """The load has three libraries without it, which is no failure but is to be said."""
    found = franz_go()
    if isinstance(found, str):
        pytest.skip(f"the load had three client libraries: {found}")
    assert found.library == "franz-go"
