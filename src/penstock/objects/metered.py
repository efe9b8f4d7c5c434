"""Reports every call: what it was, how it ended, how long it took, how many bytes it moved."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from typing_extensions import Buffer

from penstock.ports.clock import Clock
from penstock.ports.objects import (
    ObjectInfo,
    ObjectStore,
    SignedMethod,
    Versioned,
    get_versioned,
    sign_through,
)


class StoreMeter(Protocol):
    """Takes measurements; called on the event loop, so it must not block."""

    def measured(self, *, operation: str, outcome: str, seconds: float, bytes_count: int) -> None:
        """One call ended.

        Args:
            operation: put, get, size, delete or list.
            outcome: "ok", or the name of the error's class.
            seconds: from call to end.
            bytes_count: of the payload; 0 where there is none or it failed.
        """
        ...


class Metered:
    """Decorates a store with a meter."""

    def __init__(self, store: ObjectStore, *, clock: Clock, meter: StoreMeter) -> None:
        self._store = store
        self._clock = clock
        self._meter = meter

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        with self._measure("put") as measure:
            await self._store.put(key, parts, if_absent=if_absent)
            measure.bytes_count = sum(memoryview(part).nbytes for part in parts)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        with self._measure("get") as measure:
            found = await get_versioned(self._store, key, start, end)
            measure.bytes_count = end - start
            return found

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`."""
        return await sign_through(self._store, method, keys, seconds)

    async def size(self, key: str) -> int:
        """See the port."""
        with self._measure("size"):
            return await self._store.size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        with self._measure("delete"):
            await self._store.delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port. Its seconds include what the caller does between two objects."""
        with self._measure("list"):
            async for info in self._store.list(prefix, after=after):
                yield info

    def _measure(self, operation: str) -> "_Measure":
        return _Measure(operation, self._clock, self._meter)


class _Measure:
    """One call's measurement; a plain context manager, which costs less than a generator's."""

    __slots__ = ("_clock", "_meter", "_operation", "_started_s", "bytes_count")

    def __init__(self, operation: str, clock: Clock, meter: StoreMeter) -> None:
        self._operation = operation
        self._clock = clock
        self._meter = meter
        self._started_s = clock.monotonic_s()
        self.bytes_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._meter.measured(
            operation=self._operation,
            outcome="ok" if kind is None else kind.__name__,
            seconds=self._clock.monotonic_s() - self._started_s,
            bytes_count=self.bytes_count if kind is None else 0,
        )
