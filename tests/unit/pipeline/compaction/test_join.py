"""Joining copies what runs name, batch by batch, and refuses what isn't as named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.compaction.items import InputObject, ItemPartition, JoinItem
from penstock.pipeline.compaction.join import Arena, join_runs
from penstock.records.batch import stored_header
from penstock.records.sums import SUM_MASK, partition_seed, run_sum
from penstock.segment import check_header, parse_footer, parse_index
from support.batches import make_batch
from support.compaction import MemoryItemStore, records_of

FIRST, SECOND = "00" * 15 + "01", "00" * 15 + "02"


def batches(base_offset: int, counts: list[int], *, raw: bool) -> bytes:
    parts, offset = [], base_offset
    for count in counts:
        values = [b"%d" % (offset + n) for n in range(count)]
        keys = [b"k%d" % n for n in range(count)]
        base = 0 if raw else offset
        parts.append(make_batch(*values, keys=keys, offset=base, time=1000, step=1))
        offset += count
    return b"".join(parts)


def labels_of(data: bytes) -> list[int]:
    """The leader epochs of whole batches."""
    found, position = [], 0
    while position < len(data):
        header = stored_header(data, position)
        found.append(header.leader_epoch)
        position += header.length
    return found


def seed_of(place: tuple[str, int]) -> int:
    return partition_seed(bytes.fromhex(place[0]), place[1])


class World:
    """Objects with some bytes around each run, and the item that joins the runs."""

    def __init__(self) -> None:
        self.store = MemoryItemStore()
        self.objects: list[InputObject] = []
        self.inputs: dict[tuple[str, int], list[int]] = {}
        self.sums: dict[tuple[str, int], list[int]] = {}

    def add(self, place: tuple[str, int], base: int, counts: list[int], *, raw: int) -> None:
        body = batches(base, counts, raw=bool(raw))
        key = f"in-{len(self.objects)}"
        self.store.objects[key] = b"unnamed" + body + b"rest"
        row = [base, base + sum(counts), len(self.objects), 7, len(body)]
        self.objects.append(InputObject(key, raw))
        self.inputs.setdefault(place, []).extend(row)
        self.sums.setdefault(place, []).append(
            run_sum(
                memoryview(body),
                seed_of(place),
                base_offset=base if raw else None,
                leader_epoch=raw - 1,
            )
        )

    def item(self, *, log_start: int = 0) -> JoinItem:
        return JoinItem(
            objects=self.objects,
            partitions=[
                ItemPartition(
                    topic_id=place[0],
                    partition=place[1],
                    inputs=rows,
                    log_start=log_start,
                    sums=self.sums[place],
                )
                for place, rows in sorted(self.inputs.items())
            ],
            reason="",
        )


@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from([(FIRST, 0), (FIRST, 1), (SECOND, 0)]),
            st.lists(st.integers(1, 4), min_size=1, max_size=3),
            st.integers(0, 3),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_records_are_those_of_the_inputs(runs) -> None:
    world = World()
    expected: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], int] = {}
    labels: dict[tuple[str, int], list[int]] = {}
    for place, counts, raw, gap in runs:
        base = ends.get(place, 3) + gap
        world.add(place, base, counts, raw=raw)
        ends[place] = base + sum(counts)
        expected.setdefault(place, []).extend(range(base, ends[place]))
        # Of raw objects the labels are told; others have their own, here the producer's.
        labels.setdefault(place, []).extend([raw - 1] * len(counts))
    done = join_runs(world.item(), world.store)
    (key, size_bytes), *_ = [(each.key, each.size_bytes) for each in done.objects]
    data = world.store.objects[key]
    assert len(data) == size_bytes == done.written_bytes
    check_header(data, subject=key)
    footer = parse_footer(data, size_bytes=size_bytes, subject=key)
    assert footer.offsets_final
    index = parse_index(data[footer.index_position : -40], footer, subject=key)
    rows = {(run.topic_id.hex(), run.partition): run for run in index}
    assert len(rows) == len(done.partitions) == len(expected)
    for partition in done.partitions:
        place = partition.topic_id, partition.partition
        base, end, number, position, length, newest, count = partition.outputs
        assert partition.inputs == world.inputs[place]
        assert number == 0
        found = records_of(data[position : position + length])
        assert [offset for offset, _ in found] == expected[place]
        assert labels_of(data[position : position + length]) == labels[place]
        body = memoryview(data)[position : position + length]
        assert partition.sums == [run_sum(body, seed_of(place))]
        assert partition.sums == [sum(world.sums[place]) & SUM_MASK]
        assert all(record.value == b"%d" % offset for offset, record in found)
        run = rows[place]
        assert (base, end) == (run.base_offset, run.end_offset)
        assert (base, end) == (expected[place][0], expected[place][-1] + 1)
        assert (position, length, count) == (run.position, run.length, run.batch_count)
        assert newest == max(record.timestamp for _, record in found)


def test_an_arena_is_used_again() -> None:
    world = World()
    for number in range(10):
        world.add((FIRST, number % 3), 10 * number, [2, 1], raw=bool(number % 2))
    arena = Arena()
    alone = join_runs(world.item(), world.store)
    arena.take(100_000)[:] = b"x" * 100_000
    after_another = join_runs(world.item(), world.store, arena)
    first, second = (done.objects[0].key for done in (alone, after_another))
    assert world.store.objects[first] == world.store.objects[second]


@pytest.mark.parametrize("raw", [False, True])
def test_batches_below_the_logs_start_stay_behind(raw: bool) -> None:
    world = World()
    world.add((FIRST, 0), 0, [2, 2, 2], raw=raw)
    world.add((FIRST, 0), 6, [2], raw=raw)
    done = join_runs(world.item(log_start=3), world.store)
    base, end, _, position, length, _, _ = done.partitions[0].outputs
    assert (base, end) == (2, 8)
    data = world.store.objects[done.objects[0].key]
    assert [offset for offset, _ in records_of(data[position : position + length])] == [
        *range(2, 8)
    ]


@pytest.mark.parametrize("raw", [False, True])
def test_the_last_batch_stays_wherever_the_log_starts(raw: bool) -> None:
    world = World()
    world.add((FIRST, 0), 0, [2, 2], raw=raw)
    world.add((FIRST, 0), 4, [1, 1], raw=raw)
    done = join_runs(world.item(log_start=100), world.store)
    assert done.partitions[0].outputs[:2] == [5, 6]


@pytest.mark.parametrize("position", [7 + 8, 7 + 16, 7 + 17, 7 + 40, 7 + 65])
def test_damage_is_refused_and_nothing_is_put(position: int) -> None:
    world = World()
    world.add((FIRST, 0), 0, [2, 2], raw=False)
    body = bytearray(world.store.objects["in-0"])
    body[position] ^= 0x41
    world.store.objects["in-0"] = bytes(body)
    with pytest.raises(CorruptDataError, match=f"{FIRST} offsets 0 to 3 in in-0"):
        join_runs(world.item(), world.store)
    assert set(world.store.objects) == {"in-0"}


@pytest.mark.parametrize("raw", [False, True])
def test_a_run_that_ends_elsewhere_is_refused(raw: bool) -> None:
    """Bytes whose CRCs are right, but that are other batches than the journal names."""
    world = World()
    world.add((FIRST, 0), 0, [2, 2], raw=raw)
    world.inputs[FIRST, 0][1] = 5
    with pytest.raises(
        CorruptDataError, match="offsets 0 to 4 in in-0: its batches end at offset 3"
    ):
        join_runs(world.item(), world.store)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("log_start", [0, 3])
@pytest.mark.parametrize("other", [(FIRST, 1), (SECOND, 0)])
def test_a_run_of_another_partition_is_refused(
    raw: bool, log_start: int, other: tuple[str, int]
) -> None:
    """With the same offsets and lengths, and right CRCs: two objects in one another's place."""
    world = World()
    world.add((FIRST, 0), 0, [2, 2], raw=raw)
    elsewhere = World()
    elsewhere.add(other, 0, [2, 2], raw=raw)
    assert len(world.sums[FIRST, 0]) == 1
    item = world.item(log_start=log_start)
    assert join_runs(item, world.store).partitions[0].outputs[1] == 4
    (partition,) = item.partitions
    partition.sums[:] = elsewhere.sums[other]
    before = set(world.store.objects)
    with pytest.raises(CorruptDataError, match=r"not the batches of offsets 0 to 3: their sum"):
        join_runs(item, world.store)
    assert set(world.store.objects) == before


@pytest.mark.parametrize("sums", [[], [-1]])
def test_a_run_whose_sum_is_not_known_is_joined(sums: list[int]) -> None:
    world = World()
    world.add((FIRST, 0), 0, [2, 2], raw=True)
    item = world.item()
    known = list(item.partitions[0].sums)
    item.partitions[0].sums[:] = sums
    assert join_runs(item, world.store).partitions[0].sums == known


def test_a_missing_object_is_told() -> None:
    world = World()
    world.add((FIRST, 0), 0, [1], raw=False)
    world.store.objects.clear()
    with pytest.raises(NotFoundError):
        join_runs(world.item(), world.store)
