"""Asks a second time what takes unusually long, and takes the answer that comes first.

A store's slowest answers are a hundred times slower than its usual ones, and hardly ever two in a
row. What stands behind one (a flush whose order waits, a reader) shouldn't wait for it.
Source: Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import ConflictError
from penstock.objects.once import holds, size_of
from penstock.ports.objects import (
    ObjectInfo,
    ObjectStore,
    SignedMethod,
    Versioned,
    get_versioned,
    sign_through,
)

T = TypeVar("T")

GET_AFTER_S: Final = 0.5
PUT_AFTER_S: Final = 1.0
_BYTES_PER_S: Final = 16 << 20
"""A payload's own time, on top."""
_SAVED_MAX: Final = 10.0


class Hedged:
    """Decorates a store. Reads and puts may be asked twice: a put of the same bytes changes
    nothing, wherever it stands between others, and of two conditional ones that which meets the
    other's object has succeeded, too. The slower one of two puts may still take effect after the
    call has returned, even after a delete of that key, as one that timed out may: what lies there
    then is named by nothing, and deleted again as an orphan.

    Args:
        get_after_s, put_after_s: how long the first has.
        share: of all such calls at most so many are asked twice, in the long run: when the store is
            slow for everybody, twice as much would make it slower.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        get_after_s: float = GET_AFTER_S,
        put_after_s: float = PUT_AFTER_S,
        share: float = 0.05,
    ) -> None:
        self._store = store
        self._get_after_s = get_after_s
        self._put_after_s = put_after_s
        self._share = share
        self._saved = _SAVED_MAX
        self.hedge_count = 0

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port. If the first of two conditional puts fails since the key exists, the second
        may have put it."""
        tries = 0

        async def put() -> None:
            nonlocal tries
            tries += 1
            try:
                await self._store.put(key, parts, if_absent=if_absent)
            except ConflictError:
                if tries == 1 or not await holds(self._store, key, parts):
                    raise

        await self._first_of(put, self._put_after_s + size_of(parts) / _BYTES_PER_S)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        return await self._first_of(
            lambda: get_versioned(self._store, key, start, end),
            self._get_after_s + (end - start) / _BYTES_PER_S,
        )

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`."""
        return await sign_through(self._store, method, keys, seconds)

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._first_of(lambda: self._store.size(key), self._get_after_s)

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        await self._store.delete(keys)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        return self._store.list(prefix, after=after)

    async def _first_of(self, call: Callable[[], Awaitable[T]], after_s: float) -> T:
        self._saved = min(self._saved + self._share, _SAVED_MAX)
        loop = asyncio.get_running_loop()
        calls: set[asyncio.Task[T]] = {loop.create_task(_run(call))}
        try:
            done, pending = await asyncio.wait(calls, timeout=after_s)
            if not done and self._saved >= 1:
                self._saved -= 1
                self.hedge_count += 1
                second = loop.create_task(_run(call))
                calls.add(second)
                pending.add(second)
            while True:
                # An error of one decides nothing while the other may still succeed.
                good = [ended for ended in done if ended.exception() is None]
                if good or (done and not pending):
                    return (good or list(done))[0].result()
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for left in calls:
                left.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


def _run(call: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
    async def run() -> T:
        return await call()

    return run()
