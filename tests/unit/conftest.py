"""Rigs as fixtures. They are imported on first use, since they import most of the product."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.testing.virtual_loop import VirtualLoop
from support.async_tests import seed_of

if TYPE_CHECKING:
    from support.cluster_face import World


@pytest.fixture
async def world(
    virtual_loop: VirtualLoop, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """Agents of a cluster with their Kafka faces, in virtual time."""
    from support.cluster_face import opened_world

    async with opened_world(virtual_loop, tmp_path, seed_of(request)) as world:
        yield world
