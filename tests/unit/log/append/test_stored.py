"""What a flush's command names, whatever is left out of it; raw segments and their reading."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.append.plan import PartitionAppend
from penstock.log.append.stored import Stored, build_raw_segment, plan_commit
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.raw_runs import RawRuns
from penstock.log.settings import LogSettings
from penstock.model.ids import PartitionKey
from penstock.ports.objects import ObjectStore
from penstock.records.batch import check_batch, stored_header
from penstock.segment import FOOTER_BYTES, check_header, parse_footer, parse_index
from penstock.state.rows import StoredRun
from support.batches import ANY
from support.checks import run_checks
from support.cluster_rig import one_batch

TOPIC = bytes(15) + b"t"
SIZES = st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=6), min_size=1, max_size=4)


def runs_of(sizes: list[list[int]]) -> list[tuple[tuple[bytes, int], list[PartitionAppend]]]:
    return [
        (
            (TOPIC, number),
            [
                PartitionAppend(
                    PartitionKey(number),
                    check_batch(memoryview(one_batch(bytes([number]) * size)), ANY, 0),
                )
                for size in group
            ],
        )
        for number, group in enumerate(sizes)
    ]


@given(SIZES, st.data())
def test_a_command_names_what_is_not_left_out_where_it_lies(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    runs = runs_of(sizes)
    built = build_raw_segment(runs)
    whole = b"".join(bytes(part) for part in built.parts)
    assert len(whole) == built.size_bytes
    appends = [append for _, group in runs for append in group]
    refused = data.draw(st.sets(st.sampled_from([id(append) for append in appends])))
    stored = Stored(
        runs=[
            (PartitionKey(place[1]), position, group)
            for (place, group), position in zip(runs, built.positions, strict=True)
        ],
        object_key="k",
        object_bytes=built.size_bytes,
    )
    plan, command = plan_commit(stored, (lambda append: id(append) in refused) if refused else None)
    named = []
    for run, (key, _, group) in zip(command.runs, plan.runs, strict=True):
        assert run.partition_key == key
        position = run.position
        for length, append in zip(run.batches[::6], group, strict=True):
            assert whole[position : position + length] == bytes(append.batch.view)
            position += length
            named.append(id(append))
    assert named == [id(append) for append in appends if id(append) not in refused]
    assert command.raw


@given(SIZES)
def test_a_raw_segment_parses_and_says_that_its_offsets_are_not_final(
    sizes: list[list[int]],
) -> None:
    built = build_raw_segment(runs_of(sizes))
    whole = b"".join(bytes(part) for part in built.parts)
    check_header(whole, subject="s")
    footer = parse_footer(whole[-FOOTER_BYTES:], size_bytes=len(whole), subject="s")
    assert not footer.offsets_final
    index = whole[footer.index_position : footer.index_position + footer.index_length]
    parsed = parse_index(index, footer, subject="s")
    assert [run.end_offset for run in parsed] == [len(group) for group in sizes]
    assert [run.base_offset for run in parsed] == [0] * len(sizes)


class MemoryStore:
    def __init__(self, data: bytes) -> None:
        self.data = data

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return self.data[start:end]


@given(SIZES, st.integers(64, 5000), st.integers(1, 4), st.integers(0, 1 << 40))
def test_raw_runs_are_read_with_final_offsets_by_any_blocks_and_cache(
    sizes: list[list[int]], block_bytes: int, blocks: int, base_offset: int
) -> None:
    runs = runs_of(sizes)
    built = build_raw_segment(runs)
    whole = b"".join(bytes(part) for part in built.parts)
    limits = LogSettings(block_bytes=block_bytes, block_cache_bytes=blocks * block_bytes)

    async def main() -> None:
        cache = BlockCache(limits)
        with ThreadPoolExecutor(1) as pool:
            store = cast("ObjectStore", MemoryStore(whole))
            raw = RawRuns(blocks=cache, checks=run_checks(pool, store=store), limits=limits)
            stored = [
                StoredRun(
                    PartitionKey(number),
                    base_offset,
                    base_offset + len(group),
                    0,
                    "k",
                    position,
                    sum(append.batch.length for append in group),
                    0,
                    len(group),
                    len(whole),
                    1,
                )
                for number, ((_, group), position) in enumerate(
                    zip(runs, built.positions, strict=True)
                )
            ]
            for run, (_, group) in zip(stored, runs, strict=True):
                found = await raw.read(run)
                position = 0
                for number, append in enumerate(group):
                    header = stored_header(found, position)
                    assert header.base_offset == base_offset + number
                    sent = bytes(append.batch.view)
                    # Offset and leader epoch lie outside the CRC; all else is as it was sent.
                    assert found[position + 16 : position + header.length] == sent[16:]
                    position += header.length
                assert position == run.length
        await cache.close()
        assert whole == b"".join(bytes(part) for part in built.parts), "only copies are patched"

    asyncio.run(main())
