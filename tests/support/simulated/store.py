"""A bucket in virtual time, and an agent's client of it with an agent's share of bad luck.

A put or delete may take effect long after its caller gave up, or twice; a listing may lag behind,
as eventually consistent ones do (new keys missing, deleted ones still there). Reads after a put
that returned never fail for that: S3 and its peers promise as much.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from penstock.model.errors import ConflictError, CorruptDataError, NotFoundError, RetryableError
from penstock.ports.objects import ObjectInfo, Versioned
from support.simulated.link import SimulatedLink
from support.simulated.virtual_loop import START_MS, VirtualLoop


@dataclass(slots=True)
class _Object:
    data: bytes
    written_s: float
    version: int


class SimulatedBucket:
    """The store that all agents share. `list_lag_s`: how far listings may lag."""

    def __init__(self, loop: VirtualLoop, *, list_lag_s: float = 0.0) -> None:
        self._loop = loop
        self.list_lag_s = list_lag_s
        self.objects: dict[str, _Object] = {}
        self._gone: dict[str, tuple[_Object, float]] = {}
        self._versions = itertools.count(1)
        self.away = False
        """Nothing is served: every call fails."""
        self.on_put: Callable[[str], None] = lambda _key: None
        self.on_delete: Callable[[str], None] = lambda _key: None
        """Called with each key before it goes, for checkers."""

    def next_version(self) -> int:
        """Make the version of an object that is put, whatever its bytes; the ETag."""
        return next(self._versions)

    async def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """See the port."""
        self._check("put", key)
        if if_absent and key in self.objects:
            raise ConflictError("put", key, "it exists")
        self.on_put(key)
        self.objects[key] = _Object(data, self._loop.time(), self.next_version())

    async def get_range(self, key: str, start: int, end: int) -> Versioned:
        """See the port."""
        found = self._find("read", key)
        if len(found.data) < end:
            raise CorruptDataError("read", key, f"{len(found.data)} bytes, wanted up to {end}")
        return Versioned(found.data[start:end], str(found.version))

    async def size(self, key: str) -> int:
        """See the port."""
        return len(self._find("look up", key).data)

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        for key in keys:
            self._check("delete", key)
            found = self.objects.get(key)
            if found is not None:
                self.on_delete(key)
                del self.objects[key]
                self._gone[key] = (found, self._loop.time())

    async def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """Return what a listing gives now."""
        self._check("list", prefix)
        seen_s = self._loop.time() - self.list_lag_s
        gone = {key: value for key, (value, gone_s) in self._gone.items() if gone_s > seen_s}
        there = {key: value for key, value in self.objects.items() if value.written_s <= seen_s}
        found = {
            key: value
            for key, value in (gone | there).items()
            if key.startswith(prefix) and key > after
        }
        return [
            ObjectInfo(
                key=key,
                size_bytes=len(value.data),
                modified_ms=START_MS + int(value.written_s * 1000),
            )
            for key, value in sorted(found.items())
        ]

    def _find(self, operation: str, key: str) -> _Object:
        self._check(operation, key)
        found = self.objects.get(key)
        if found is None:
            raise NotFoundError(operation, key, "no such object")
        return found

    def _check(self, operation: str, key: str) -> None:
        if self.away:
            raise RetryableError(operation, key, "the store is away")


class SimulatedStore:
    """Implements `penstock.ports.objects.ObjectStore` for one agent."""

    def __init__(self, bucket: SimulatedBucket, link: SimulatedLink) -> None:
        self._bucket = bucket
        self._link = link

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        # Taken now: the caller may use its buffers for something else once it has given up.
        data = b"".join(parts)
        await self._link.call("put", key, lambda: self._bucket.put(key, data, if_absent=if_absent))

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        return await self._link.call("read", key, lambda: self._bucket.get_range(key, start, end))

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._link.call("look up", key, lambda: self._bucket.size(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        names = list(keys)
        await self._link.call("delete", ", ".join(names), lambda: self._bucket.delete(names))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        for info in await self._link.call("list", prefix, lambda: self._bucket.list(prefix, after)):
            yield info
