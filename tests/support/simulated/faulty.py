"""A store that fails, delays and loses replies, as a seed decides."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import RetryableError
from penstock.ports.objects import ObjectInfo, ObjectStore, Versioned, get_versioned
from penstock.ports.random import Random

T = TypeVar("T")

_PERCENT: Final = 100


class Faulty:
    """Decorates a store with faults.

    Args:
        fail_percent: of the calls fail before anything is done.
        lost_percent: of the calls are done, and fail then: the reply was lost.
        delay_percent: of the calls wait first, up to `delay_s_max`.
        wait: lets seconds pass; `ManualClock.wait`, or `penstock.objects.retrying.wait`.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        random: Random,
        fail_percent: int = 0,
        lost_percent: int = 0,
        delay_percent: int = 0,
        delay_s_max: float = 0.0,
        wait: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        assert wait is not None or not delay_percent
        self._store = store
        self._random = random
        self._fail_percent = fail_percent
        self._lost_percent = lost_percent
        self._delay_percent = delay_percent
        self._delay_s_max = delay_s_max
        self._wait = wait
        self.fault_count = 0

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        await self._call("put", key, lambda: self._store.put(key, parts, if_absent=if_absent))

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        return await self._call("read", key, lambda: get_versioned(self._store, key, start, end))

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._call("look up", key, lambda: self._store.size(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        await self._call("delete", ", ".join(keys), lambda: self._store.delete(keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port. May fail between two objects."""
        async for info in self._store.list(prefix, after=after):
            if self._happens(self._fail_percent):
                raise self._fault("list", prefix, "the connection broke")
            yield info

    async def _call(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._wait is not None and self._happens(self._delay_percent):
            await self._wait(self._delay_s_max * self._random.below(1000) / 1000)
        if self._happens(self._fail_percent):
            raise self._fault(operation, subject, "the request was lost")
        result = await call()
        if self._happens(self._lost_percent):
            raise self._fault(operation, subject, "the reply was lost")
        return result

    def _happens(self, percent: int) -> bool:
        return bool(percent) and self._random.below(_PERCENT) < percent

    def _fault(self, operation: str, subject: str, detail: str) -> RetryableError:
        self.fault_count += 1
        return RetryableError(operation, subject, detail)
