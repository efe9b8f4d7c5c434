"""Gives every call a deadline: a connection that hangs is an error that can be tried again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import RetryableError
from penstock.ports.objects import (
    ObjectInfo,
    ObjectStore,
    SignedMethod,
    Versioned,
    get_versioned,
    sign_through,
)

T = TypeVar("T")

BYTES_PER_S_MIN: Final = 1 << 20
"""A payload is allowed so much longer."""


class Timed:
    """Decorates a store: a call that takes longer is cancelled, and a `RetryableError`.

    Whether it was carried out is unknown then, as when a reply is lost.

    Args:
        seconds: for the call; payloads have more, by `BYTES_PER_S_MIN`. For a listing it is the
            time until its next object.
    """

    def __init__(self, store: ObjectStore, *, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        await self._within(
            "put", key, self._store.put(key, parts, if_absent=if_absent), bytes_count=size_bytes
        )

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        return await self._within(
            "read", key, get_versioned(self._store, key, start, end), bytes_count=end - start
        )

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`."""
        subject = keys[0] if keys else "nothing"
        return await self._within("sign", subject, sign_through(self._store, method, keys, seconds))

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._within("look up", key, self._store.size(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        await self._within("delete", keys[0] if keys else "nothing", self._store.delete(keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        objects = aiter(self._store.list(prefix, after=after))
        while True:
            try:
                yield await self._within("list", prefix, anext(objects))
            except StopAsyncIteration:
                return

    async def _within(
        self, operation: str, subject: str, call: Awaitable[T], *, bytes_count: int = 0
    ) -> T:
        seconds = self._seconds + bytes_count / BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError as error:
            raise RetryableError(operation, subject, f"no answer within {seconds:.3g} s") from error
