"""Faults that are drawn together may be of one thing, in either order."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from chaos.nemesis import FAULTS
from chaos.world import World
from support.postgres import running_postgres


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
