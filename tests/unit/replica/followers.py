"""A follower of a simulated journal on a replica in memory, for tests of its rules."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any

from penstock.model.errors import StorageFullError
from penstock.ports.clock import Clock
from penstock.replica.applied import Applied
from penstock.replica.follower import Follower, FollowerSettings, Pins
from penstock.replica.marks import LOCAL_MARK, RowMark
from support.simulated.journal import SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop


class HeldReplica:
    """A replica in memory; the outcome of a row is its body.

    `rows_max`: the position after which rows find no space; None: all find some. `is_full`:
    commits find none.
    """

    def __init__(self, *, position: int = 0, mark: RowMark | None = None) -> None:
        self.position = position
        self.time_ms = 0
        self.rows_max: int | None = None
        self.is_full = False
        self.tried: list[int] = []
        """Positions of rows that were to be applied, and of which not all were."""
        self.commit_count = 0
        """Also of those that found no space."""
        self.committed: list[int] = []
        """Positions; a mark is the real replica's own."""
        self._mark = mark

    def apply(self, body: bytes, *, stamp_ms: int, position: int | None = None) -> Applied[bytes]:
        assert position == self.position + 1
        self.tried.append(position)
        if self.rows_max is not None and position > self.rows_max:
            raise StorageFullError("apply", "replica", "0 bytes are free")
        self.position = position
        self.time_ms = max(self.time_ms, stamp_ms)
        return Applied(position, self.time_ms, body)

    def commit(self) -> int:
        self.commit_count += 1
        if self.is_full:
            raise StorageFullError("commit", "replica", "0 bytes are free")
        self.committed.append(self.position)
        return self.position

    def local(self, name: str) -> int | str | None:
        assert name == LOCAL_MARK
        return None if self._mark is None else self._mark.text


class Following:
    """`start` lets the follower run; `bodies` are those of the rows that were delivered."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.journal = SimulatedJournal(random=SeededRandom(1), clock=self.clock)
        self.connection: Any = self.journal.connect()
        self.batches: list[list[Applied[bytes]]] = []
        self.replica = HeldReplica()
        self.running: asyncio.Task[None] | None = None

    @property
    def bodies(self) -> list[bytes]:
        return [item.body for batch in self.batches for item in batch]

    async def append(self, *bodies: bytes) -> None:
        connection = self.journal.connect()
        for body in bodies:
            await connection.append(body)
        await connection.close()

    def leave_gap(self) -> None:
        """A transaction that takes a position and rolls back."""
        position, _ = self.journal.take_position()
        self.journal.end_transaction(position, None)

    def mark(self, position: int) -> RowMark:
        row = self.journal.row(position)
        assert row is not None
        return RowMark.of(row)

    def start(
        self,
        replica: HeldReplica | None = None,
        settings: FollowerSettings | None = None,
        executor: Executor | None = None,
    ) -> Follower[bytes]:
        self.replica = replica or self.replica
        self.follower = follower_of(
            self.connection,
            self.replica,
            clock=self.clock,
            executor=executor,
            deliver=self.batches.append,
            settings=settings,
        )
        self.running = asyncio.ensure_future(self.follower.run())
        return self.follower


def follower_of(
    journal: Any,
    replica: HeldReplica,
    *,
    clock: Clock,
    executor: Executor | None = None,
    deliver: Callable[[list[Applied[bytes]]], None] = lambda _: None,
    settings: FollowerSettings | None = None,
    pins: Pins[bytes] | None = None,
) -> Follower[bytes]:
    return Follower(
        journal,
        replica,
        clock=clock,
        executor=executor,
        deliver=deliver,
        settings=settings,
        pins=pins,
    )


@contextlib.asynccontextmanager
async def followed(loop: VirtualLoop) -> AsyncIterator[Following]:
    """A scene on a virtual loop, whose follower ends with it."""
    following = Following(loop)
    yield following
    if following.running is not None:
        following.running.cancel()
        await asyncio.wait([following.running])
