"""A part of a store: all keys that begin with a prefix, without it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from typing_extensions import Buffer

from penstock.ports.objects import ObjectInfo, ObjectStore


class Prefixed:
    """Decorates a store. `prefix` ends with a slash."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        assert prefix.endswith("/"), prefix
        self._store = store
        self._prefix = prefix

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        await self._store.put(self._prefix + key, parts, if_absent=if_absent)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return await self._store.get_range(self._prefix + key, start, end)

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._store.size(self._prefix + key)

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        await self._store.delete([self._prefix + key for key in keys])

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        last = self._prefix + after if after else ""
        async for info in self._store.list(self._prefix + prefix, after=last):
            yield replace(info, key=info.key.removeprefix(self._prefix))
