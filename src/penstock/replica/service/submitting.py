"""Submits are gathered into entries of the journal, and get the answers of this instance's apply.

Event loop only.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import (
    InDoubtError,
    InvalidRequestError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.ports.random import Random
from penstock.replica.follower import BACKOFF
from penstock.replica.service import entries
from penstock.replica.service.entries import Item, Outcome
from penstock.replica.service.journals import ServiceJournal
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

ITEMS_MAX: Final = 1_000
"""Items of one entry."""
BYTES_MAX: Final = 1 << 20
"""Bytes of one entry's values, but for a single larger one."""
WAITING_MAX: Final = 10_000


@dataclass(slots=True)
class _Waiting:
    """An item that is going to be written. `is_sent`: it may be in the journal."""

    item: Item
    size: int
    future: "asyncio.Future[Outcome]"
    is_sent: bool = False


class Submitter:
    """Submits of one instance.

    Args:
        client: names submits that have no client of their own.
        random: draws the seeds of items.
        wait_s: how long a submit waits for its answer.
        journal: returns the journal, or raises RetryableError: it was not reached yet.
        written: is called when an entry is in the journal.
        why_away: returns ", and ..." where the journal is known to be away; else "".
        is_over: says whether nothing is applied here any more.
        failed: is called when the journal takes nothing more.
    """

    def __init__(
        self,
        client: str,
        *,
        random: Random,
        wait_s: float,
        journal: Callable[[], ServiceJournal],
        written: Callable[[], None],
        why_away: Callable[[], str],
        is_over: Callable[[], bool],
        failed: Callable[[PenstockError], None],
    ) -> None:
        self._client = client
        self._number = 0
        self._random = random
        self._wait_s = wait_s
        self._journal = journal
        self._written = written
        self._why_away = why_away
        self._is_over = is_over
        self._failed = failed
        self._queue: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._answers: dict[bytes, asyncio.Future[Outcome]] = {}
        """Submits that wait, by the seeds of their items: of no two they are the same."""

    async def submit(self, packed: bytes, client: str | None, number: int | None) -> Outcome:
        """Submit a packed value; see `AsyncService.submit`."""
        client, number = self._named(client, number)
        item = entries.item(client, number, self._seed(), packed)
        return await self._submitted(item, len(packed))

    async def submit_own(self, kind: str, value: object) -> Outcome:
        """Submit an item of the library itself."""
        packed = entries.encode_own(value)
        self._number += 1
        return await self._submitted(
            entries.item(kind, self._number, self._seed(), packed), len(packed)
        )

    def answer(self, outcome: Outcome) -> None:
        """Give an applied item's outcome to its submit, if it waits here."""
        future = self._answers.get(outcome.seed)
        if future is not None and not future.done():
            future.set_result(outcome)

    def end(self, error: PenstockError) -> None:
        """Let all that wait fail."""
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """Send no more, and wait for what is being sent to end."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    # -- inside ----------------------------------------------------------------------------------

    def _seed(self) -> bytes:
        return self._random.token_bytes(entries.SEED_BYTES)

    async def _submitted(self, item: Item, size: int) -> Outcome:
        if len(self._queue) >= WAITING_MAX:
            raise OverloadedError("submit", "entry", f"{WAITING_MAX:,} are waiting", "try again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        waiting = _Waiting(item, size, future)
        self._answers[item.seed] = future
        self._queue.append(waiting)
        if self._sending is None:
            self._sending = background.start(background.APPEND_ENTRY, self._send)
        try:
            async with asyncio.timeout(self._wait_s):
                return await future
        except TimeoutError as error:
            detail = f"no answer after {self._wait_s:g} s{self._why_away()}"
            if not waiting.is_sent:
                raise RetryableError("submit", "entry", f"nothing was written: {detail}") from error
            raise InDoubtError(
                "submit", "entry", detail, "submit it again under the same client and number"
            ) from error
        finally:
            if not waiting.is_sent and waiting in self._queue:
                self._queue.remove(waiting)
            del self._answers[item.seed]

    async def _send(self) -> None:
        """Append what waits, one entry at a time: what comes meanwhile shares the next."""
        failures = 0
        taken: list[_Waiting] = []
        try:
            while self._queue or taken:
                taken = [each for each in taken if not each.future.done()]
                size = sum(each.size for each in taken)
                while self._queue and len(taken) < ITEMS_MAX:
                    if taken and size + self._queue[0].size > BYTES_MAX:
                        break
                    taken.append(self._queue.popleft())
                    size += taken[-1].size
                if not taken:
                    continue
                try:
                    journal = self._journal()
                    for each in taken:
                        each.is_sent = True
                    await journal.append(entries.encode([each.item for each in taken]))
                    self._written()
                    taken, failures = [], 0
                except RetryableError as error:
                    heard(Cause.APPEND_ENTRY, error, logger, "an entry is sent again")
                    failures += 1
                    await wait(BACKOFF.after(failures))
        except PenstockError as error:
            self._failed(error)
        finally:
            self._sending = None
            if self._queue and not self._is_over():
                self._sending = background.start(background.APPEND_ENTRY, self._send)

    def _named(self, client: str | None, number: int | None) -> tuple[str, int]:
        if (client is None) != (number is None):
            raise InvalidRequestError("submit", "entry", "a client has a number, and the reverse")
        if client is None or number is None:
            self._number += 1
            return self._client, self._number
        if not 0 < len(client) <= entries.CLIENT_CHARACTERS_MAX or client.startswith(
            entries.RESERVED
        ):
            detail = (
                f"{client[:50]!r} isn't a client: 1 to {entries.CLIENT_CHARACTERS_MAX} characters,"
                f" the first not {entries.RESERVED}"
            )
            raise InvalidRequestError("submit", "entry", detail)
        if not 0 <= number <= entries.NUMBER_MAX:
            raise InvalidRequestError("submit", "entry", f"{number} isn't a number of 63 bits")
        return client, number
