"""Faults that are drawn together may be of one thing, in either order."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from chaos.nemesis import FAULTS
from chaos.world import SKEW_MS, World
from support.postgres import running_postgres
from support.server import ServerProcess


def test_postgres_is_stopped_and_killed_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, agents=0)
    both = [fault for fault in FAULTS if fault.name in ("stop PostgreSQL", "kill PostgreSQL")]
    with running_postgres() as world.postgres:
        for pair in itertools.permutations(both, 2):
            ends = [fault.begin(world, random.Random(1)) for fault in pair]
            assert not world.postgres.running
            for end in ends:
                end()
            assert world.postgres.sql("SELECT 1") == "1"


def test_a_wrong_clock_keeps_no_other_fault_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start waits for PostgreSQL for a minute: longer than producers wait."""

    def start(_: ServerProcess) -> float:
        raise AssertionError("a fault waited for an agent")

    both = [
        fault
        for fault in FAULTS
        if fault.name in ("kill PostgreSQL", "an agent's clock is an hour off")
    ]
    with World(tmp_path, agents=1) as world:
        server = world.agents.agents[0].server
        for pair in itertools.permutations(both, 2):
            with monkeypatch.context() as patch:
                patch.setattr(ServerProcess, "start", start)
                ends = [fault.begin(world, random.Random(1)) for fault in pair]
                assert server.running()
                for end in ends:
                    end()
            assert world.postgres.running
            world.keep_alive()
            assert server.running()
            assert SKEW_MS not in server.environment
