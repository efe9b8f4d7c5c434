"""Rigs as fixtures. They are imported on first use, since they import most of the product."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.async_tests import options_of, seed_of
from support.simulated.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from support.cluster_face import World
    from support.cluster_rig import Cluster
    from support.log_rig import Rig


@pytest.fixture
async def world(
    virtual_loop: VirtualLoop, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """Agents of a cluster with their Kafka faces, in virtual time."""
    from support.cluster_face import opened_world

    async with opened_world(virtual_loop, tmp_path, seed_of(request)) as world:
        yield world


@pytest.fixture
async def cluster(
    virtual_loop: VirtualLoop, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    """Logs of agents over one simulated journal, in virtual time; the test starts the agents."""
    from support.cluster_rig import opened_cluster

    async with opened_cluster(virtual_loop, tmp_path, seed_of(request)) as cluster:
        yield cluster


@pytest.fixture
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """One start of a server's log part in `tmp_path`, on real threads and files.

    `@pytest.mark.options(...)` sets its limits, and `drain` as `opened_rig` does.
    """
    from support.log_rig import opened_rig

    async with opened_rig(tmp_path, **options_of(request)) as rig:
        yield rig
