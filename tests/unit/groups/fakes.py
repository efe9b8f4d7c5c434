"""Virtual time, and the real order without a lane.

The coordinator's tests run on the real state machine (`LocalJournal`, `Queries`, `StateView`); only
the thread between is left out, since who writes when is what the tests decide.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.messages import JoinRequest, Protocol
from penstock.groups.settings import GroupSettings
from penstock.groups.state import ClassicGroup
from penstock.model.errors import PenstockError
from penstock.state.answers import AnyAnswer
from penstock.state.changes import OffsetsSettled
from penstock.state.commands import AnyCommand, CreateTopic
from penstock.state.orders import LocalJournal, open_local_journal
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView, Topic
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop, VirtualRunner

T = TypeVar("T")
MINUTE_MS = 60_000


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on virtual time."""
    with VirtualRunner(SeededRandom(1)) as runner:
        return runner.run(work)


async def pass_ms(milliseconds: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(milliseconds / 1000)


class CountingRandom:
    """Ids that differ and that tests can foresee."""

    def __init__(self) -> None:
        self.count = 0

    def token_bytes(self, count: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(count, "big")

    def below(self, bound: int) -> int:
        return 0


class OrderCommitter:
    """Commits at once; or holds commits back, or fails them, when a test says so."""

    def __init__(self, order: LocalJournal, view: StateView) -> None:
        self.order = order
        self.view = view
        self.failure: PenstockError | None = None
        self.gate: asyncio.Event | None = None
        self.commands: list[AnyCommand] = []
        self.on_offsets_settled: Callable[[Sequence[str]], None] = lambda _: None

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.commands += commands
        applied = self.order.append(commands)
        self.view.apply(applied.outcome.changes)
        for change in applied.outcome.changes:
            if isinstance(change, OffsetsSettled):
                self.on_offsets_settled(change.groups)
        return applied.outcome.answers


class World:
    """A coordinator on the real order in a directory; `restarted` is the next process on it."""

    def __init__(self, directory: Path, settings: GroupSettings, clock: VirtualClock) -> None:
        self.directory, self.settings, self.clock = directory, settings, clock
        self.random = CountingRandom()
        path = directory / "metadata.sqlite"
        self.order = open_local_journal(path, clock=clock, random=self.random, fsync=False)
        self.queries = Queries(path)
        self.view = StateView.load(self.queries)
        self.committer = OrderCommitter(self.order, self.view)
        self.groups = GroupCoordinator(
            committer=self.committer,
            queries=self.queries,
            view=self.view,
            clock=clock,
            random=self.random,
            settings=settings,
        )
        self.committer.on_offsets_settled = self.groups.offsets_settled

    def topic(self, name: str, partitions: int = 4) -> Topic:
        """The topic of that name, made if need be."""
        if self.view.topic(name) is None:
            command = CreateTopic(
                name=name, topic_id=self.random.token_bytes(16), partitions=partitions
            )
            self.view.apply(self.order.append([command]).outcome.changes)
        topic = self.view.topic(name)
        assert topic is not None
        return topic

    async def close(self) -> None:
        await self.groups.close()
        self.queries.close()
        self.order.close()

    def crash(self) -> World:
        """The process is gone without a word; the next one on the same directory."""
        for loaded in self.groups._memory.groups.values():
            loaded.timers.cancel_all()
        self.queries.close()
        self.order.close()
        world = World(self.directory, self.settings, self.clock)
        world.random.count = self.random.count + 100
        world.groups.start()
        return world


QUICK = GroupSettings(initial_rebalance_delay_ms=0)


def world(directory: Path, settings: GroupSettings = QUICK) -> World:
    """A fresh one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return World(directory, settings, VirtualClock(loop))


def subscription(*topics: str) -> bytes:
    """What a consumer that reads these topics sends as its metadata (version 0)."""
    names = b"".join(len(name.encode()).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def join_request(member_id: str = "", **changes: Any) -> JoinRequest:
    """A join as a plain consumer sends it."""
    fields: dict[str, Any] = {
        "member_id": member_id,
        "new_member_id": "",
        "instance_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (Protocol("range", b"meta"),),
        "id_required": False,
        "may_skip_assignment": True,
    }
    return JoinRequest(**(fields | changes))


class VirtualTimers:
    """Timers of a machine without a loop, in order of their time and then of their setting."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._order = itertools.count()
        self._heap: list[tuple[int, int, Any]] = []
        self._set: dict[Any, int] = {}

    def set(self, timer: Any, delay_ms: int) -> None:
        number = next(self._order)
        self._set[timer] = number
        heapq.heappush(self._heap, (self.now_ms + delay_ms, number, timer))

    def cancel(self, timer: Any) -> None:
        self._set.pop(timer, None)

    def next(self, until_ms: int | None = None) -> Any | None:
        """The next timer, no later than `until_ms`; time moves to it."""
        while self._heap and (until_ms is None or self._heap[0][0] <= until_ms):
            at_ms, number, timer = heapq.heappop(self._heap)
            if self._set.get(timer) == number:
                del self._set[timer]
                self.now_ms = max(self.now_ms, at_ms)
                return timer
        if until_ms is not None:
            self.now_ms = until_ms
        return None


def make_group(settings: GroupSettings = QUICK) -> ClassicGroup:
    return ClassicGroup("g", settings)
