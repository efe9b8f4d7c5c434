from collections.abc import AsyncIterator

import pytest

from support.simulated.virtual_loop import VirtualLoop
from unit.replica.followers import Following, followed


@pytest.fixture
async def rig(virtual_loop: VirtualLoop) -> AsyncIterator[Following]:
    async with followed(virtual_loop) as rig:
        yield rig
