"""Hints that there are rows, by NOTIFY: coalesced, few, and never on the path of an append.

A NOTIFY takes a lock of the whole instance when it commits and wakes every listener, so that one
per append would cost more than the appends. A reader was woken by the last hint and reads
often for a while; so no hint is sent shortly after another agent's or this one's.
"""

import asyncio
import logging

from penstock.model.errors import RetryableError
from penstock.replica.postgres.lane import Lane
from penstock.replica.postgres.settings import PostgresSettings
from penstock.system import background
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


class Hints:
    """Sends and hears hints on a connection of its own. Event loop only."""

    def __init__(self, lane: Lane, channel: str, settings: PostgresSettings) -> None:
        self._lane = lane
        self._channel = channel
        self._settings = settings
        self._heard = 0
        self._told = 0
        self._heard_s = float("-inf")
        self._read_s = float("-inf")
        self._returned_s = float("-inf")
        """When a wait last ended: about when the last read began."""
        self._appended = 0
        self.readers = 1
        """How many agents read the journal."""
        self._timer: asyncio.TimerHandle | None = None
        self._waits: dict[asyncio.Future[None], int] = {}
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    def appended(self, position: int) -> None:
        """Hint others at an append soon, unless they got a hint just now."""
        self._appended = max(self._appended, position)
        if self._timer is None and self._settings.notifies and not self._closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._settings.notify_ms / 1000, self._notify)

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `penstock.ports.journal.Journal`."""
        self._listen()
        settings = self._settings
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._read_s < settings.busy_ms / 1000:
            pace_ms = settings.busy_poll_ms * max(1, self.readers / settings.readers_at_full_pace)
            left_s = self._returned_s + pace_ms / 1000 - now_s
            timeout_s = min(timeout_s, max(left_s, settings.busy_pause_ms / 1000))
        if self._heard > max(after, self._told):
            # Once only: what was heard of may be gone with a journal that came back older.
            self._told = self._heard
            return
        woken = loop.create_future()
        self._waits[woken] = after
        timer = loop.call_later(timeout_s, _settle, woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._waits.pop(woken, None)
            self._returned_s = loop.time()

    def read(self) -> None:
        """The reader found rows: waits are short for a while, so that no hints are
        needed for what comes next."""
        self._read_s = asyncio.get_running_loop().time()

    def close(self) -> None:
        """Hear no more; all that wait return."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()
        for woken in list(self._waits):
            _settle(woken)

    def _listen(self) -> None:
        """Have a connection that listens, some time soon."""
        is_idle = self._listening is None and self._lane.connection is None
        if is_idle and self._settings.notifies and not self._closed:
            self._listening = background.start(background.JOURNAL_HINTS, self._begin_listening)

    async def _begin_listening(self) -> None:
        try:
            connection = await self._lane.connected()
            connection.listen(self._hear)
            await connection.run(f"LISTEN {self._channel}", timeout_s=self._settings.call_timeout_s)
        except RetryableError as error:
            # The next wait tries again; meanwhile readers poll.
            heard(Cause.JOURNAL_HINTS, error, logger, "readers poll the journal", logging.INFO)
        finally:
            self._listening = None

    def _notify(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        quiet_s = self._heard_s + self._settings.notify_quiet_ms / 1000 - loop.time()
        connection = self._lane.connection
        if self._heard >= self._appended or quiet_s > 0 or connection is None:
            return
        connection.run(
            f"NOTIFY {self._channel}, '{self._appended}'",
            timeout_s=self._settings.call_timeout_s,
        )

    def _hear(self, payload: str) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        self._heard = max(self._heard, int(payload) if payload.isdecimal() else 0)
        for woken, after in list(self._waits.items()):
            if self._heard > after:
                self._told = self._heard
                _settle(woken)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
