"""What a restored cluster has of its parent's bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from support.simulated.link import SimulatedLink
from support.simulated.store import SimulatedBucket, SimulatedStore

if TYPE_CHECKING:
    from sim.world import World

PARENT_URL = "s3://parent"


class InheritedStore(SimulatedStore):
    """The bucket of the cluster that this one was restored from. Only that one writes there, and
    what its agents asked for before they were gone may still take effect."""

    def __init__(self, world: World, bucket: SimulatedBucket, link: SimulatedLink) -> None:
        super().__init__(bucket, link)
        self._world = world

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port. A broken promise."""
        self._world.history.violate("inherited-changed", f"put {key}")

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port. A broken promise."""
        self._world.history.violate("inherited-changed", f"delete {', '.join(keys)}")
