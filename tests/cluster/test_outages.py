"""Groups of real client libraries when PostgreSQL is away: from all agents for longer than a
session, or from their coordinator alone. No committed offset is lost, and the groups go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.world import World
from penstock.kafka.errors import ErrorCode
from support.committing_member import SESSION_MS
from support.coordinated_groups import groups_of
from support.waiting_join import WaitingJoin

AWAY_S = SESSION_MS / 1000 + 4


def test_groups_go_on_after_postgres_was_away_for_longer_than_a_session(world: World) -> None:
    with groups_of(world) as groups:
        world.postgres.stop()
        try:
            time.sleep(AWAY_S)
        finally:
            world.start_postgres()
        took = groups.wait_further(time.monotonic())
        print(took)
        groups.check(world.agents.agents[0])


@pytest.fixture
def quick_world(tmp_path: Path) -> Iterator[World]:
    """One whose agents give others up as soon as by default."""
    with World(tmp_path) as world:
        yield world


def test_groups_go_on_elsewhere_while_their_coordinator_alone_is_cut_off(
    quick_world: World,
) -> None:
    with groups_of(quick_world) as groups, ExitStack() as stack:
        link = quick_world.links[quick_world.agents.agents.index(groups.coordinator)]
        join = WaitingJoin(groups.coordinator.address, next(groups.unused), stack)
        link.freeze()
        took = groups.wait_further(time.monotonic())
        print(took)
        assert join.error_code() == ErrorCode.NOT_COORDINATOR
        # It still is: the groups went on at another agent, which it can't know.
        link.heal()
        quick_world.heal()
        groups.check(quick_world.agents.agents[0])
