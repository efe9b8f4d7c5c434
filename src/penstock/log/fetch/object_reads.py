"""Reads of objects by version, and objects whose versions say nothing.

Some S3-compatible stores name another version (ETag) of one object from answer to answer: behind
load balancers, or while they encode an object again. Pieces of such an object are never of one
version, so that nothing of a long run could be served (docs/decisions/0012, "Versions"). Where a
read of all of a run met several versions and the run's sum proves the bytes nevertheless, the
object is read as of a store that says no versions.
"""

import logging
from collections import OrderedDict
from typing import Final

from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore, Versioned, get_directly, get_versioned
from penstock.system.seldom import Seldom

logger = logging.getLogger(__name__)

CHANGES_MAX: Final = 8
"""After so many changes of version an object is looked at: each costs the blocks in memory, so that
a batch of several blocks may never be there whole."""
_OBJECTS_MAX: Final = 10_000


class ObjectReads:
    """Reads of a store, as readers of runs need them. Event loop only.

    Args:
        again_s: for how long the versions of an unsteady object are not compared.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, again_s: float) -> None:
        self._store = store
        self._clock = clock
        self._again_s = again_s
        self._until_s: OrderedDict[str, float] = OrderedDict()
        self._seen: OrderedDict[str, tuple[str | None, int]] = OrderedDict()
        """Per object the version of the last answer, and how often it has changed."""
        self._suspects: set[str] = set()
        self._seldom = Seldom(clock)

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        return self._compared(key, await get_versioned(self._store, key, start, end))

    async def get_directly(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.CachingStore`."""
        return self._compared(key, await get_directly(self._store, key, start, end))

    def unsteady(self, key: str) -> None:
        """All of a run was read in several versions of its object, and its sum is right."""
        self._until_s[key] = self._clock.monotonic_s() + self._again_s
        self._until_s.move_to_end(key)
        if len(self._until_s) > _OBJECTS_MAX:
            self._until_s.popitem(last=False)
        count = self._seldom.due("")
        if count:
            logger.warning(
                "the store names another version (ETag) of %s from answer to answer, and its bytes "
                "are right: its versions are not compared for %.0f s (%d such objects since the "
                "last line)",
                key,
                self._again_s,
                count,
            )

    def is_unsteady(self, key: str) -> bool:
        """Return whether an object's versions are not compared."""
        until_s = self._until_s.get(key)
        if until_s is None:
            return False
        if self._clock.monotonic_s() < until_s:
            return True
        del self._until_s[key]
        return False

    def is_suspect(self, key: str) -> bool:
        """Return whether an object changed so often that all of a run is to be read."""
        return bool(self._suspects) and key in self._suspects

    def looked_at(self, key: str) -> None:
        """An object is looked at: its changes count from here."""
        self._suspects.discard(key)
        self._seen.pop(key, None)

    def _compared(self, key: str, found: Versioned) -> Versioned:
        """Return the store's answer, without its version if that says nothing."""
        if self.is_unsteady(key):
            return Versioned(found.data, None)
        last, changes = self._seen.get(key, (found.version, 0))
        changes += last != found.version
        self._seen[key] = (found.version, changes)
        self._seen.move_to_end(key)
        if changes >= CHANGES_MAX:
            self._suspects.add(key)
        if len(self._seen) > _OBJECTS_MAX:
            self._suspects.discard(self._seen.popitem(last=False)[0])
        return found
