"""Where a reader goes on is remembered: a place counts for the run that it lies in alone, and as
many places are kept as are bounded."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs

from penstock.log.fetch import object_runs, whole_runs
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.reader import LogReader
from penstock.log.fetch.tail import TailCache, TailRead
from penstock.log.settings import LogSettings
from penstock.log.state_queries import ReplicaQueries
from penstock.model.ids import PartitionKey
from penstock.records.batch import batch_bounds, patch_run, stored_header
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.rows import StoredRun
from support.checks import run_checks

KEY = PartitionKey(1)
BLOCK_BYTES = 64


def batch(offset: int, text: str) -> bytes:
    """One record, with its final offset."""
    record = Record(offset_delta=0, timestamp=0, key=None, value=text.encode(), headers=())
    data = memoryview(bytearray(encode_batch([record], codec="none")))
    patch_run(data, offset, 0, subject="test")
    return bytes(data)


class Store:
    """Objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return self.objects[key][start:end]


class Rig:
    """A reader over runs that the test lists."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        limits = LogSettings(block_bytes=BLOCK_BYTES, block_cache_bytes=1 << 20, tail_cache_bytes=0)
        self.store = Store()
        self.runs: list[StoredRun] = []
        self.reader = LogReader(
            queries=self,  # type: ignore[arg-type]
            tail=TailCache(0),
            blocks=BlockCache(limits),
            wals={},
            store=self.store,  # type: ignore[arg-type]
            limits=limits,
            checks=run_checks(pool, store=self.store),  # type: ignore[arg-type]
            behind=ReplicaQueries(lambda: self),  # type: ignore[arg-type]
        )

    def runs_from(self, key: PartitionKey, offset: int, *, limit: int) -> list[StoredRun]:
        return [run for run in self.runs if run.end_offset > offset][:limit]

    def put(self, object_key: str, *runs: tuple[int, list[bytes]], raw: bool = False) -> None:
        """An object of runs (base offset, batches), with another partition's bytes between."""
        data = bytearray(b"\0" * 16)
        found = []
        for base_offset, batches in runs:
            data += batch(7_000 + base_offset, "another partition's record")
            position = len(data)
            data += b"".join(batches)
            found.append((base_offset, len(batches), position, len(data) - position))
        self.store.objects[object_key] = bytes(data)
        self.runs += [
            StoredRun(
                KEY,
                base_offset,
                base_offset + count,
                0,
                object_key,
                position,
                length,
                0,
                count,
                len(data),
                int(raw),
            )
            for base_offset, count, position, length in found
        ]
        self.runs.sort(key=lambda run: run.base_offset)

    async def offsets(self, offset: int, bytes_max: int = 1) -> list[int]:
        """Of the batches that a read gives."""
        read = await self.reader.read_loaded(KEY, offset, bytes_max)
        assert isinstance(read, TailRead)
        data = b"".join(read.views)
        found, position = [], 0
        while position < len(data):
            found.append(stored_header(data, position).base_offset)
            position += batch_bounds(data, position)[1]
        return found


def run(test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await asyncio.wait_for(test(Rig(pool)), 60)

    asyncio.run(main())


@pytest.mark.parametrize("raw", [False, True], ids=["final", "raw"])
def test_where_a_run_ended_is_no_place_of_the_next_one_of_the_same_object(raw: bool) -> None:
    async def test(rig: Rig) -> None:
        texts = [[batch(number, f"{number}") for number in range(at, at + 3)] for at in (0, 3)]
        rig.put("o", (0, texts[0]), (3, texts[1]), raw=raw)
        # One by one, so that each read remembers where the next goes on.
        assert [await rig.offsets(offset) for offset in range(6)] == [[n] for n in range(6)]
        assert await rig.offsets(0, 1 << 20) == list(range(6))

    run(test)


@pytest.mark.parametrize("raw", [False, True], ids=["final", "raw"])
def test_a_place_in_an_object_that_was_replaced_is_forgotten(raw: bool) -> None:
    async def test(rig: Rig) -> None:
        old = [batch(number, f"a record of some length {number}") for number in range(6)]
        rig.put("old", (0, old), raw=raw)
        assert [await rig.offsets(offset) for offset in range(3)] == [[0], [1], [2]]
        rig.runs.clear()
        rig.reader.forget_places(KEY)
        # Other runs lie before it in the new one, so that every position is another.
        runs = (0, [batch(0, "x" * 100)]), (1, [batch(n, "y" * n) for n in range(1, 6)])
        rig.put("new", *runs, raw=raw)
        assert [await rig.offsets(offset) for offset in range(3, 6)] == [[3], [4], [5]]

    run(test)


@pytest.mark.parametrize("raw", [False, True], ids=["final", "raw"])
def test_a_place_in_a_run_that_was_cut_at_its_start_is_right_or_forgotten(raw: bool) -> None:
    async def test(rig: Rig) -> None:
        batches = [batch(number, "a record " * (1 + number)) for number in range(6)]
        rig.put("o", (0, batches), raw=raw)
        assert [await rig.offsets(offset) for offset in range(3)] == [[0], [1], [2]]
        (whole,) = rig.runs
        cut = len(batches[0])
        rig.runs = [
            structs.replace(
                whole,
                base_offset=1,
                position=whole.position + cut,
                length=whole.length - cut,
                batch_count=5,
            )
        ]
        rig.reader.forget_places(KEY)
        assert [await rig.offsets(offset) for offset in range(3, 6)] == [[3], [4], [5]]

    run(test)


@pytest.mark.parametrize("raw", [False, True], ids=["final", "raw"])
def test_places_are_bounded_and_the_oldest_go_first(
    raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (object_runs, whole_runs):
        monkeypatch.setattr(module, "_CURSORS_MAX", 4)

    async def test(rig: Rig) -> None:
        rig.put("o", (0, [batch(number, f"{number}") for number in range(30)]), raw=raw)
        runs = rig.reader._whole if raw else rig.reader._objects
        for offset in range(28):
            assert await rig.offsets(offset) == [offset]
            assert len(runs._cursors) <= 4
        assert (KEY, 28) in runs._cursors
        assert await rig.offsets(1) == [1]

    run(test)
