"""An agent may end for its replica where that was wrong at the position that was compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.model.errors import CorruptDataError
from penstock.replica.difference import Difference, write_difference
from sim.parts import DATABASE
from sim.world import World


class _Agent(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.fixture
def world() -> Any:
    world: Any = World.__new__(World)
    world.counts = Counter()
    world.history = SimpleNamespace(count=lambda what: world.counts.update([what]))
    world.differing = None
    world.right_from = {}
    world.violated = lambda error: world.counts.update([error.kind])
    world.journal = SimpleNamespace(first=1)
    return world


@pytest.mark.parametrize(
    ("compared", "expected"),
    [(113, "agent ended: its replica differs"), (119, "agent-died")],
)
def test_a_comparison_may_end_after_the_damage_has_gone(
    tmp_path: Path, world: Any, compared: int, expected: str
) -> None:
    agent = _Agent(folder=tmp_path)
    write_difference(tmp_path / DATABASE, Difference(count=1, position=compared, tables=["t"]))
    world.right_from[agent] = 118
    world.ended(agent, CorruptDataError("compare state", "agent", "it differs"))
    assert world.counts == {expected: 1}


def test_an_agent_whose_replica_was_never_damaged_may_not_end(tmp_path: Path, world: Any) -> None:
    agent = _Agent(folder=tmp_path)
    write_difference(tmp_path / DATABASE, Difference(count=1, position=113, tables=["t"]))
    world.ended(agent, CorruptDataError("compare state", "agent", "it differs"))
    assert world.counts == {"agent-died": 1}
