"""A log with the gaps that compaction leaves is read, looked up and verified as any other."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.fetch.reader import Missing
from penstock.log.fetch.regions import FileRegion, PartsRead
from penstock.model.ids import PartitionKey
from penstock.objects import open_store
from penstock.records.batch import stored_header
from penstock.records.decode import CODECS, decode_batch
from penstock.recovery.verify import FindingKind, verify
from penstock.state.read.queries import Queries
from support.cleaning import clean
from support.examples import examples
from support.log_rig import NOW, Rig, run_rig

EVENTS = ("append",) * 6 + ("drain",) * 2 + ("clean",) * 2 + ("forget", "trim")
Found = tuple[int, int, bytes, bytes]
"""Offset, timestamp, key, value."""


async def parts_at(rig: Rig, key: PartitionKey, offset: int, bytes_max: int) -> tuple[bytes, int]:
    """What a fetch whose records go out as regions of files gives, and where it ends."""
    for _ in range(1000):
        found: Any = rig.log.reader.read_parts(key, offset, bytes_max)
        if not isinstance(found, Missing):
            break
        await asyncio.shield(found.load)
    assert found is not None
    assert not isinstance(found, Missing)
    parts = found.parts if isinstance(found, PartsRead) else found.views
    data = b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRegion) else part
        for part in parts
    )
    assert len(data) == found.length
    return data, found.end_offset


async def views_at(rig: Rig, key: PartitionKey, offset: int, bytes_max: int) -> tuple[bytes, int]:
    found = await rig.log.reader.read_loaded(key, offset, bytes_max)
    assert found is not None
    return b"".join(found.views), found.end_offset


def batches_of(data: bytes) -> list[tuple[int, int, bytes]]:
    """(base offset, end offset, bytes) of whole batches."""
    found, position = [], 0
    while position < len(data):
        header = stored_header(data, position)
        body = data[position : position + header.length]
        found.append((header.base_offset, header.end_offset, body))
        position += header.length
    return found


def records_of(batches: Sequence[tuple[int, int, bytes]]) -> list[Found]:
    return [
        (base + record.offset_delta, record.timestamp, record.key or b"", record.value or b"")
        for base, _, body in batches
        for record in decode_batch(memoryview(body))
    ]


async def read_through(
    rig: Rig, key: PartitionKey, offset: int, bytes_max: int, *, regions: bool
) -> list[tuple[int, int, bytes]]:
    """As a consumer: each fetch goes on where the one before ended, and brings something."""
    batches: list[tuple[int, int, bytes]] = []
    while offset < rig.log.high_watermark(key):
        read = parts_at if regions else views_at
        data, end_offset = await read(rig, key, offset, bytes_max)
        found = batches_of(data)
        assert found[0][1] > offset, "a batch that lies wholly before the offset"
        assert found[-1][1] == end_offset
        assert len(data) <= bytes_max or len(found) == 1
        batches += found
        offset = end_offset
    return batches


def retained(written: list[Found], *, clean_end: int, start: int) -> list[Found]:
    """What must be there at least: of each key the last below `clean_end`, and all above."""
    last = {key: offset for offset, _, key, _ in written if offset < clean_end}
    return [
        row
        for row in written
        if row[0] >= start and row[0] >= min(clean_end, last.get(row[2], clean_end))
    ]


@pytest.mark.slow
@settings(max_examples=examples(0.4))
@given(st.integers(0, 2**32), st.sampled_from((100, 700, 4096)), st.integers(5, 40))
def test_every_offset_is_read_before_and_after(seed: int, block_bytes: int, events: int) -> None:
    random = Random(seed)

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t", cleanup_policy="compact")
        written: list[Found] = []
        for _ in range(events):
            await happen(rig, key, random, written)
        await rig.drain()
        await clean(rig, key, run_bytes=random.choice((1, 300, 1 << 20)))
        await rig.append(key, b"last", keys=[b"last"])
        written.append((len(written), NOW, b"last", b"last"))
        rig.forget_memory()
        start = rig.log.log_start(key)
        row = rig.queries().clean_rows([key]).get(key)
        expected = retained(written, clean_end=-1 if row is None else row.clean_end, start=start)
        whole = await read_through(rig, key, start, 1 << 30, regions=False)
        assert [found for found in records_of(whole) if found[0] >= start] == expected
        for offset in range(start, rig.log.high_watermark(key)):
            wanted = [batch for batch in whole if batch[1] > offset]
            for bytes_max in (1, random.choice((200, 900))):
                regions = random.random() < 0.5 and hasattr(os, "RWF_NOWAIT")
                assert await read_through(rig, key, offset, bytes_max, regions=regions) == wanted
        await check_times(rig, key, expected)
        await check_clean(rig)

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), test, block_bytes=block_bytes, block_cache_bytes=20_000)


async def happen(rig: Rig, key: PartitionKey, random: Random, written: list[Found]) -> None:
    event = random.choice(EVENTS)
    if event == "append":
        count = random.randrange(1, 5)
        keys = [random.choice((b"a", b"b", b"c", b"d")) for _ in range(count)]
        values = [random.randbytes(random.randrange(1, 300)) for _ in range(count)]
        stamp = NOW + random.randrange(-50, 50)
        await rig.append(key, *values, keys=keys, timestamp=stamp, codec=random.choice(CODECS))
        for at, (name, value) in enumerate(zip(keys, values, strict=True)):
            written.append((len(written), stamp + at, name, value))
    elif event == "drain":
        await rig.drain()
    elif event == "clean":
        await clean(rig, key, run_bytes=random.choice((1, 300, 1 << 20)))
    elif event == "forget":
        rig.forget_memory()
    elif written:
        start = rig.log.log_start(key)
        to = start + random.randrange(0, 1 + (len(written) - start) // 3)
        assert await rig.log.delete_records([(key, to)]) == [to]


async def check_times(rig: Rig, key: PartitionKey, expected: list[Found]) -> None:
    for at in range(NOW - 52, NOW + 56, 3):
        first = next(((row[0], row[1]) for row in expected if row[1] >= at), None)
        assert await rig.log.offset_for_time(key, at) == first
    greatest = max(expected, key=lambda row: (row[1], -row[0]))
    assert await rig.log.offset_of_max_timestamp(key) == greatest[:2]


async def check_clean(rig: Rig) -> None:
    report = await verify(queries=rig.queries(), store=rig.store, wal=None, device=None)
    assert [each for each in report.findings if each.is_damage] == []


async def test_a_reader_in_a_gap_whose_batches_are_emptied_goes_on(rig: Rig) -> None:
    """Of all but the last batch nothing is left, in memory neither, and the fetch asks for one
    byte."""
    (key,) = await rig.topic("t")
    for number in range(5):
        await rig.append(key, b"%d" % number, keys=[b"k"])
    await rig.drain()
    await rig.append(key, b"", keys=[b"k"])
    await rig.drain()
    assert await clean(rig, key)
    for offset in range(6):
        ((base, end, _),) = await read_through(rig, key, offset, 1, regions=False)
        assert (base, end) == (5, 6)
    assert await clean(rig, key)
    await check_clean(rig)


@pytest.mark.slow
async def test_what_is_replaced_while_it_is_read_is_found_again(rig: Rig) -> None:
    """Cursors, windows and open files of before must not lead anywhere after."""
    random = Random(7)
    (key,) = await rig.topic("t")
    for number in range(40):
        values = [random.randbytes(50) for _ in range(3)]
        await rig.append(key, *values, keys=[b"%d" % random.randrange(9) for _ in range(3)])
        if number % 7 == 0:
            await rig.drain()
    await rig.drain()
    rig.forget_memory()
    before = await read_through(rig, key, 0, 1, regions=False)
    assert await read_through(rig, key, 0, 1, regions=True) == before
    held = rig.log.reader.read_parts(key, 0, 1 << 20)
    assert held is not None
    for run_bytes in (1, 400, 1 << 20):
        assert await clean(rig, key, run_bytes=run_bytes)
        after = await read_through(rig, key, 0, 1, regions=False)
        assert len(after) < len(before)
        for offset, _, _ in before:
            wanted = [batch for batch in after if batch[1] > offset]
            for regions in (False, True):
                assert await read_through(rig, key, offset, 1, regions=regions) == wanted
    assert not isinstance(held, Missing)
    parts = held.parts if isinstance(held, PartsRead) else held.views
    data = b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRegion) else part
        for part in parts
    )
    assert batches_of(data) == before[: len(batches_of(data))], "what was named is still sent"


@pytest.mark.slow
async def test_who_comes_second_changes_nothing(rig: Rig) -> None:
    """Another cleaning, or a trim, between the reading and the commit: it is refused whole."""
    (key,) = await rig.topic("t")
    for number in range(8):
        await rig.append(key, b"%d" % number, b"x", keys=[b"k", b"%d" % number])
        await rig.drain()

    async def clean_first() -> None:
        assert await clean(rig, key)

    async def trim() -> None:
        assert await rig.log.delete_records([(key, 5)]) == [5]

    async def append() -> None:
        await rig.append(key, b"new", keys=[b"k"])
        await rig.drain()

    assert not await clean(rig, key, before_commit=clean_first)
    after = await read_through(rig, key, 0, 1 << 20, regions=False)
    assert [row[0] for row in records_of(after)] == [1, 3, 5, 7, 9, 11, 13, 14, 15]
    assert await clean(rig, key, before_commit=append), "what is behind the inputs is no input"
    assert [row[3] for row in records_of(await read_through(rig, key, 13, 1, regions=False))][
        -3:
    ] == [b"7", b"x", b"new"]
    for number in range(2):
        await rig.append(key, b"%d" % number, keys=[b"k"])
        await rig.drain()
    before = len(rig.queries().runs_from(key, 0, limit=99))
    # The first run ends behind the new start: it stays, and is an input as it was.
    assert await clean(rig, key, before_commit=trim)
    assert len(rig.queries().runs_from(key, 0, limit=99)) < before
    await check_clean(rig)
    start = rig.log.high_watermark(key)
    await rig.append(key, b"z", keys=[b"z"])
    await rig.drain()

    async def trim_all() -> None:
        assert await rig.log.delete_records([(key, start)]) == [start]

    assert not await clean(rig, key, before_commit=trim_all)
    found = records_of(await read_through(rig, key, start, 1, regions=False))
    assert [row[2:] for row in found] == [(b"z", b"z")]
    await check_clean(rig)


def test_gaps_and_missing_records_are_damage_where_the_log_is_not_clean(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for number in range(6):
            # Of a producer: what an import writes may have less records than offsets.
            await rig.append(
                key,
                b"%d" % number,
                b"x",
                keys=[b"k", b"%d" % number],
                producer=(7, 0, 2 * number),
            )
        for _ in range(2):
            await rig.append(key, b"x", b"x", keys=[b"l", b"l"])
        await rig.drain()
        assert await clean(rig, key, run_bytes=1)
        await check_clean(rig)

    async def found() -> set[tuple[FindingKind, str]]:
        with closing(Queries(tmp_path / "metadata.sqlite")) as queries:
            store = open_store(tmp_path / "objects")
            report = await verify(queries=queries, store=store, wal=None, device=None)
        return {(each.kind, each.detail) for each in report.findings}

    run_rig(tmp_path, test, drain=True)
    assert not asyncio.run(found())
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection, connection:
        connection.execute("DELETE FROM clean")
    damage = asyncio.run(found())
    assert (FindingKind.GAP, "offsets 12 to 13 have no run") in damage
    assert any(
        kind is FindingKind.DAMAGED and detail.startswith("1 of 2 records")
        for kind, detail in damage
    ), damage
