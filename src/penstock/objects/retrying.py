"""Tries again what failed retriably, until a deadline."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import (
    ConflictError,
    NotFoundError,
    OverloadedError,
    RetryableError,
    StorageFullError,
)
from penstock.objects.once import holds
from penstock.ports.clock import Clock
from penstock.ports.objects import (
    ObjectInfo,
    ObjectStore,
    SignedMethod,
    Versioned,
    get_versioned,
    sign_through,
)
from penstock.ports.random import Random
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

T = TypeVar("T")

_JITTER_STEPS: Final = 1 << 16
_PROBE_S: Final = 0.4
"""How often one of the calls that wait tries whether the store is back."""
_LOOK_S: Final = 0.2
"""How often a call that waits looks whether the store came back, at least."""
_AWAY_S: Final = 1.0
"""A store that answered no call well for this time was away: the next success is its return."""


class Retrying:
    """Decorates a store: RetryableErrors are tried again, after full-jitter exponential backoff.

    A full store is not waited for: the caller must know at once, and frees space or holds back.
    A store that says that it is asked too much (503 SlowDown) is left alone for longer from the
    first. All calls share a budget of quick retries, which successes refill: once it is used up
    (the store is away, for everybody) each wait is a long one, so that many calls together don't
    press on a store that is coming back. While calls wait, one of them tries every 0.4 s. Once any
    call succeeds after a second in which none did, all go on within 0.2 s, so that the store's
    return is noticed at once. Calls wait as long as ever where the store says that it is asked too
    much, and where it fails some calls and answers others: 50 puts that failed for 30 s while
    reads went on would make 8,700 tries instead of 540.

    Args:
        deadline_s: from the call's start; no try begins after it.
        first_delay_s: bound of the first wait; it doubles with each, up to `delay_max_s`.
        slow_down_delay_s: the same after a SlowDown.
        quick_retries_max: the budget; a success gives a tenth of a retry back.
    Source: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015; the token
    bucket of the AWS SDKs' standard retry mode.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        random: Random,
        deadline_s: float = 30.0,
        first_delay_s: float = 0.05,
        delay_max_s: float = 5.0,
        slow_down_delay_s: float = 0.5,
        quick_retries_max: int = 100,
        wait: Callable[[float], Awaitable[None]] = wait,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._deadline_s = deadline_s
        self._first_delay_s = first_delay_s
        self._delay_max_s = delay_max_s
        self._slow_down_delay_s = slow_down_delay_s
        self._budget = _Budget(quick_retries_max)
        self._wait = wait

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port. A conditional put that meets its own earlier try, whose reply was lost,
        has succeeded: the object then holds the same bytes."""
        tries = 0

        async def put() -> None:
            nonlocal tries
            tries += 1
            try:
                await self._store.put(key, parts, if_absent=if_absent)
            except ConflictError:
                if tries == 1 or not await holds(self, key, parts):
                    raise
            except RetryableError as error:
                # A store may refuse a large body by closing the connection before it has taken
                # it all, so that its answer, a conflict, is never seen; and where a reply was
                # lost, a look is less than a body again. One that is asked too much has refused.
                if not if_absent or isinstance(error, OverloadedError):
                    raise
                if not await self._exists(key):
                    raise
                if not await holds(self, key, parts):
                    raise ConflictError("put", key, "it is there already") from error

        await self._try(put)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        return await self._try(lambda: get_versioned(self._store, key, start, end))

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`."""
        return await sign_through(self._store, method, keys, seconds)

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._try(lambda: self._store.size(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        await self._try(lambda: self._store.delete(keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port. After an error the listing begins again, behind the last key given."""
        last = after
        schedule = self._schedule()
        while True:
            try:
                async for info in self._store.list(prefix, after=last):
                    yield info
                    last = info.key
                    schedule = self._schedule()
            except RetryableError as error:
                await schedule.back_off(error)
            else:
                return

    async def _exists(self, key: str) -> bool:
        """Whether an object is there; false if that can't be found out now."""
        try:
            await self._store.size(key)
        except NotFoundError:
            return False
        except RetryableError as error:
            heard(Cause.LOOK_UP_OBJECT, error, logger, f"{key} is taken for absent")
            return False
        return True

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        schedule = self._schedule()
        while True:
            try:
                result = await call()
            except RetryableError as error:
                await schedule.back_off(error)
            else:
                self._budget.succeeded(self._clock.monotonic_s())
                return result

    def _schedule(self) -> "_Schedule":
        return _Schedule(
            clock=self._clock,
            random=self._random,
            until_s=self._clock.monotonic_s() + self._deadline_s,
            delay_s=self._first_delay_s,
            delay_max_s=self._delay_max_s,
            slow_down_delay_s=self._slow_down_delay_s,
            budget=self._budget,
            wait=self._wait,
        )


class _Budget:
    """State that the calls share: quick retries that are left, in tenths, and the store's health.

    `return_count`: how often the store came back.
    """

    __slots__ = ("_left", "_most", "_probe_s", "_success_s", "return_count")

    def __init__(self, retries_max: int) -> None:
        self._most = self._left = 10 * retries_max
        self._probe_s = self._success_s = float("-inf")
        self.return_count = 0

    def take_probe(self, now_s: float) -> bool:
        """Whether the caller should try now if the store is back; then no other caller does."""
        if now_s - self._probe_s < _PROBE_S:
            return False
        self._probe_s = now_s
        return True

    def take(self) -> bool:
        """Use one; false when there is none."""
        if self._left < 10:
            return False
        self._left -= 10
        return True

    def succeeded(self, now_s: float) -> None:
        """A call did: that gives a tenth of a retry back."""
        if now_s - self._success_s >= _AWAY_S:
            self.return_count += 1
        self._success_s = now_s
        self._left = min(self._left + 1, self._most)


class _Schedule:
    """The waits of one call."""

    def __init__(
        self,
        *,
        clock: Clock,
        random: Random,
        until_s: float,
        delay_s: float,
        delay_max_s: float,
        slow_down_delay_s: float,
        budget: _Budget,
        wait: Callable[[float], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._random = random
        self._until_s = until_s
        self._delay_s = delay_s
        self._delay_max_s = delay_max_s
        self._slow_down_delay_s = slow_down_delay_s
        self._budget = budget
        self._returns = budget.return_count
        """`return_count` when the last try began: a try that hung until a return goes on soon."""
        self._wait = wait

    async def back_off(self, error: RetryableError) -> None:
        """Wait before the next try, or raise `error` if there is to be none."""
        least_s = 0.0
        if not self._budget.take():
            self._delay_s = self._delay_max_s
            least_s = self._delay_s / 2
        elif isinstance(error, OverloadedError):
            self._delay_s = min(max(self._delay_s, self._slow_down_delay_s), self._delay_max_s)
            least_s = self._delay_s / 2
        chance = self._random.below(_JITTER_STEPS) / _JITTER_STEPS
        delay_s = least_s + (self._delay_s - least_s) * chance
        too_late = self._clock.monotonic_s() + delay_s >= self._until_s
        if too_late or isinstance(error, StorageFullError):
            raise error
        self._delay_s = min(2 * self._delay_s, self._delay_max_s)
        if isinstance(error, OverloadedError):
            await self._wait(delay_s)
        else:
            await self._wait_for_store(delay_s)
        self._returns = self._budget.return_count

    async def _wait_for_store(self, delay_s: float) -> None:
        """Wait at most `delay_s`: less if the store comes back, or if it is this call's turn to
        try."""
        budget, clock = self._budget, self._clock
        until_s = clock.monotonic_s() + delay_s
        while (left_s := until_s - clock.monotonic_s()) > 0:
            if left_s > _LOOK_S:
                # Apart, so that calls which wait together don't come together.
                chance = self._random.below(_JITTER_STEPS) / _JITTER_STEPS
                left_s = _LOOK_S * (1 + chance) / 2
            await self._wait(left_s)
            if budget.return_count != self._returns or budget.take_probe(clock.monotonic_s()):
                return
