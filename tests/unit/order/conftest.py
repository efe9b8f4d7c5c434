"""One simulated journal and agents that order commands through it, as a fixture."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.async_tests import options_of, seed_of
from support.simulated.virtual_loop import VirtualLoop
from unit.state.worlds import World, opened_world


@pytest.fixture
async def world(
    virtual_loop: VirtualLoop, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    options = options_of(request)
    async with opened_world(virtual_loop, tmp_path, seed=seed_of(request), **options) as world:
        yield world
