"""The tail cache gives whole batches in order, and never more bytes than it may keep."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.tail import ENTRY_BYTES, TailCache
from penstock.model.ids import PartitionKey

KEY = PartitionKey(7)


def view(size: int) -> memoryview:
    return memoryview(bytearray(size))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(1, 400), st.booleans()),
        max_size=60,
    ),
    st.integers(600, 8000),
)
def test_equals_a_list_of_the_newest_batches(
    steps: list[tuple[int, int, int, bool]], bytes_max: int
) -> None:
    cache = TailCache(bytes_max)
    model: dict[int, list[tuple[int, int, memoryview]]] = {0: [], 1: [], 2: []}
    order: list[tuple[int, int]] = []
    next_offset = {0: 0, 1: 0, 2: 0}
    for key, count, size, gap in steps:
        if gap:
            next_offset[key] += 1
            model[key] = []
        base = next_offset[key]
        next_offset[key] += count
        batch = view(size)
        cache.add(PartitionKey(key), base, base + count, batch)
        model[key].append((base, base + count, batch))
        order.append((key, base))
        assert cache.bytes <= max(bytes_max, 0)
        for check in (0, 1, 2):
            start = cache.start_offset(PartitionKey(check))
            cached = [row for row in model[check] if start is not None and row[0] >= start]
            if cached:
                read = cache.read(PartitionKey(check), cached[0][0], 1 << 30)
                assert read is not None
                assert [id(v) for v in read.views] == [id(row[2]) for row in cached]
                assert read.end_offset == next_offset[check]
    assert cache.bytes <= bytes_max


def test_an_offset_inside_a_batch_gives_the_whole_batch() -> None:
    cache = TailCache(1 << 20)
    cache.add(KEY, 0, 10, first := view(100))
    cache.add(KEY, 10, 20, second := view(100))
    read = cache.read(KEY, 5, 1)
    assert read is not None and read.views == [first] and read.end_offset == 10
    read = cache.read(KEY, 5, 200)
    assert read is not None and read.views == [first, second] and read.length == 200
    assert cache.read(KEY, 20, 1000) is None


def test_the_oldest_leave_first_over_all_partitions() -> None:
    cache = TailCache(3 * (100 + ENTRY_BYTES))
    for number in range(4):
        cache.add(PartitionKey(number % 2), number, number + 1, view(100))
    assert cache.start_offset(PartitionKey(0)) == 2
    assert cache.read(PartitionKey(0), 0, 10) is None


def test_a_forgotten_partition_keeps_the_byte_count_right() -> None:
    cache = TailCache(2 * (100 + ENTRY_BYTES))
    cache.add(KEY, 0, 1, view(100))
    cache.forget(KEY)
    for number in range(5):
        cache.add(PartitionKey(9), number, number + 1, view(100))
    assert cache.bytes == 2 * (100 + ENTRY_BYTES)
    assert cache.start_offset(KEY) is None


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8))
def test_what_was_forgotten_does_not_come_back(forgotten: int, more: int, kept: int) -> None:
    """Compaction has removed it; eviction goes on as if it were there."""
    cache = TailCache(kept * (100 + ENTRY_BYTES))
    views = [view(100) for _ in range(20)]
    for number in range(8):
        cache.add(KEY, number, number + 1, views[number])
    cache.forget_before(KEY, forgotten)
    for number in range(8, 8 + more):
        cache.add(KEY, number, number + 1, views[number])
    cached = range(max(0, 8 + more - kept), 8 + more)
    for offset in range(8 + more):
        read = cache.read(KEY, offset, 1)
        if offset < forgotten or offset not in cached:
            assert read is None
        else:
            assert read is not None
            assert [id(each) for each in read.views] == [id(views[offset])]
    assert cache.bytes <= kept * (100 + ENTRY_BYTES)
