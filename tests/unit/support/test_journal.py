"""The simulated journal keeps the port's contract."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from penstock.ports.journal import Journal
from penstock.replica.beginning import Beginning
from penstock.system import SystemClock
from penstock.testing.journal_conformance import JournalSuite, JournalWorld
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom


class _World:
    def __init__(self, faults: JournalFaults) -> None:
        self._server = SimulatedJournal(random=SeededRandom(1), clock=SystemClock(), faults=faults)

    async def connect(self) -> Journal:
        return self._server.connect()

    async def begin(self, beginning: Beginning) -> None:
        self._server.begin(beginning)

    async def leave_gap(self) -> None:
        position, _ = self._server.take_position()
        self._server.end_transaction(position, None)


class TestPrompt(JournalSuite):
    faults = JournalFaults()

    def world(self) -> AbstractAsyncContextManager[JournalWorld]:
        @asynccontextmanager
        async def open_world() -> AsyncIterator[JournalWorld]:
            yield _World(self.faults)

        return open_world()


class TestSlow(TestPrompt):
    faults = JournalFaults(delay_ms=(0, 3), commit_ms=(0, 3), lost_hint_permille=500)
