# ruff: noqa: D102 (a test says what it states by its name)
"""The suite of a journal's rules, which an adapter's test subclasses.

class TestMyJournal(JournalSuite):
    @asynccontextmanager
    async def journals(self) -> AsyncIterator[JournalWorld]:
        yield MyWorld(...)
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest

from penstock.model.errors import NotFoundError, RetryableError
from penstock.ports.journal import Journal
from penstock.replica.beginning import Beginning, read_beginning

_SCENARIO_S = 180


class JournalWorld(Protocol):
    """One empty journal."""

    async def connect(self) -> Journal:
        """One agent's end; the suite closes it."""
        ...

    async def begin(self, beginning: Beginning) -> None:
        """Be the journal of a restored cluster; before the first `connect`."""
        ...

    async def leave_gap(self) -> None:
        """Take the next position and give it up, as an append does that is rolled back."""
        ...


class JournalSuite(ABC):
    """The contract of `penstock.ports.journal.Journal`."""

    runner: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)
    """Runs a scenario, on whatever event loop."""

    @abstractmethod
    def world(self) -> AbstractAsyncContextManager[JournalWorld]:
        """An empty journal."""

    def _run(
        self,
        scenario: "Callable[[Journal, Journal, JournalWorld], Awaitable[None]]",
        *,
        beginning: Beginning | None = None,
    ) -> None:
        async def main() -> None:
            async with self.world() as world:
                if beginning is not None:
                    await world.begin(beginning)
                mine, other = await world.connect(), await world.connect()
                try:
                    await asyncio.wait_for(scenario(mine, other, world), _SCENARIO_S)
                finally:
                    await mine.close()
                    await other.close()

        self.runner(main())

    def test_an_empty_one_has_no_head(self) -> None:
        async def scenario(mine: Journal, _other: Journal, _world: JournalWorld) -> None:
            head = await mine.head()
            assert (head.position, head.first) == (0, 1)
            assert await mine.read(0, 10) == []
            assert await mine.row(1) is None

        self._run(scenario)

    def test_what_is_appended_is_read_by_others(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            bodies = [b"one", bytes(range(256)), b"\0", bytes(range(256)) * 4096]
            positions = [await mine.append(body) for body in bodies]
            assert positions == [1, 2, 3, 4]
            rows = await other.read(0, 10)
            assert [row.position for row in rows] == positions
            assert [row.body for row in rows] == bodies
            head = await other.head()
            assert (head.position, head.first) == (4, 1)
            stamps = [row.stamp_ms for row in rows]
            assert stamps == sorted(stamps)
            assert head.stamp_ms - 60_000 <= stamps[0] <= head.stamp_ms

        self._run(scenario)

    def test_overlapping_appends_keep_the_order_of_the_calls(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            counts = (40, 40)
            found = await asyncio.gather(
                *(mine.append(b"a%d" % n) for n in range(counts[0])),
                *(other.append(b"b%d" % n) for n in range(counts[1])),
            )
            assert len(set(found)) == sum(counts)
            assert list(found[: counts[0]]) == sorted(found[: counts[0]])
            assert list(found[counts[0] :]) == sorted(found[counts[0] :])
            by_position = {row.position: row.body for row in await mine.read(0, 1000)}
            assert [by_position[place] for place in found[: counts[0]]] == [
                b"a%d" % n for n in range(counts[0])
            ]

        self._run(scenario)

    def test_a_read_is_bounded_and_goes_on_where_it_ended(self) -> None:
        async def scenario(mine: Journal, _other: Journal, _world: JournalWorld) -> None:
            await asyncio.gather(*(mine.append(b"%d" % n) for n in range(25)))
            read: list[int] = []
            while page := await mine.read(read[-1] if read else 0, 10):
                assert len(page) <= 10
                read += [row.position for row in page]
            assert read == list(range(1, 26))
            assert await mine.read(25, 10) == []

        self._run(scenario)

    def test_a_row_is_found_by_its_position(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            await mine.append(b"one")
            await mine.append(b"two")
            row = await other.row(2)
            assert row is not None
            assert (row.position, row.body) == (2, b"two")
            assert row in await mine.read(0, 10)
            assert await other.row(3) is None

        self._run(scenario)

    def test_a_gap_is_sealed_once_by_whoever_comes_first(self) -> None:
        async def scenario(mine: Journal, other: Journal, world: JournalWorld) -> None:
            await mine.append(b"one")
            await world.leave_gap()
            await mine.append(b"three")
            assert [row.position for row in await other.read(0, 10)] == [1, 3]
            assert await other.row(2) is None
            await asyncio.gather(mine.seal([2]), other.seal([2]), mine.seal([2]))
            rows = await other.read(0, 10)
            assert [row.body for row in rows] == [b"one", b"", b"three"]
            await other.seal([2])
            assert await mine.read(0, 10) == rows

        self._run(scenario)

    def test_a_seal_leaves_what_is_there(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            await mine.append(b"one")
            await mine.append(b"two")
            before = await mine.read(0, 10)
            await other.seal([1, 2])
            assert await mine.read(0, 10) == before

        self._run(scenario)

    def test_an_append_that_meets_a_seal_takes_another_position(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            await mine.append(b"one")
            # As if this agent's statement had taken 2 and 3 and not inserted yet.
            await other.seal([2, 3])
            found = await asyncio.gather(*(mine.append(b"%d" % n) for n in range(6)))
            assert min(found) > 3
            assert list(found) == sorted(found)
            bodies = {row.position: row.body for row in await other.read(0, 100)}
            assert [bodies[place] for place in found] == [b"%d" % n for n in range(6)]
            assert bodies[2] == bodies[3] == b""

        self._run(scenario)

    def test_a_wait_ends(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            await mine.wait(0, 0.01)
            waiting = asyncio.ensure_future(mine.wait(0, 0.2))
            await other.append(b"one")
            await waiting
            await mine.wait(1, 0.01)

        self._run(scenario)

    def test_a_trim_leaves_the_last_row_and_says_what_went(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            await asyncio.gather(*(mine.append(b"%d" % n) for n in range(1, 8)))
            assert await mine.trim(3) == 3
            assert await mine.trim(3) == 0
            head = await other.head()
            assert (head.position, head.first) == (7, 4)
            assert await other.row(3) is None
            for below in (0, 2):
                with pytest.raises(NotFoundError, match="trimmed"):
                    await other.read(below, 10)
            assert [row.position for row in await other.read(3, 10)] == [4, 5, 6, 7]
            while await mine.trim(100):
                pass
            head = await other.head()
            assert (head.position, head.first) == (7, 7)
            assert [row.body for row in await other.read(6, 10)] == [b"7"]
            assert await mine.append(b"8") == 8

        self._run(scenario)

    def test_a_gap_is_not_taken_for_a_trimmed_stretch(self) -> None:
        async def scenario(mine: Journal, other: Journal, world: JournalWorld) -> None:
            await world.leave_gap()
            await mine.append(b"two")
            assert [row.position for row in await other.read(0, 10)] == [2]
            await mine.append(b"three")
            await world.leave_gap()
            await mine.append(b"five")
            await mine.trim(3)
            assert [row.position for row in await other.read(3, 10)] == [5]

        self._run(scenario)

    def test_a_restored_one_begins_after_the_row_that_names_its_snapshot(self) -> None:
        beginning = Beginning(cluster_id="a-cluster", position=1, digest=bytes(range(32)))

        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            head = await mine.head()
            assert (head.position, head.first) == (1, 2)
            assert await read_beginning(mine, head) == beginning
            assert await mine.read(1, 10) == []
            assert await mine.append(b"two") == 2
            assert await other.append(b"three") == 3
            assert [row.body for row in await other.read(1, 10)] == [b"two", b"three"]
            # What would begin with nothing must not read on past the row.
            with pytest.raises(NotFoundError, match="bootstrap"):
                await other.read(0, 10)
            assert await mine.trim(1) == 1
            head = await other.head()
            assert (head.position, head.first) == (3, 2)
            assert await read_beginning(other, head) is None
            with pytest.raises(NotFoundError, match="bootstrap"):
                await other.read(0, 10)

        self._run(scenario, beginning=beginning)

    def test_a_caller_that_goes_away_disturbs_nobody(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            loop = asyncio.get_running_loop()
            calls = [loop.create_task(mine.append(b"%d" % n)) for n in range(9)]
            await asyncio.wait([calls[0]])
            calls[4].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            kept = [place for n, place in enumerate(found) if n != 4]
            assert all(isinstance(place, int) for place in kept)
            bodies = {row.position: row.body for row in await other.read(0, 100)}
            for n, place in enumerate(found):
                if isinstance(place, int):
                    assert bodies[place] == b"%d" % n

        self._run(scenario)

    def test_a_closed_one_refuses(self) -> None:
        async def scenario(mine: Journal, other: Journal, _world: JournalWorld) -> None:
            await mine.append(b"one")
            await mine.close()
            await mine.close()
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: mine.append(b"two"),
                lambda: mine.read(0, 1),
                lambda: mine.row(1),
                mine.head,
                lambda: mine.seal([1]),
                lambda: mine.trim(1),
            ]
            for call in calls:
                with pytest.raises(RetryableError):
                    await call()
            assert len(await other.read(0, 10)) == 1

        self._run(scenario)
