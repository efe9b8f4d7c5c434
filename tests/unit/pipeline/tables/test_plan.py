"""What a commit takes: pieces that tile what is wanted, in items and commits of bounded size."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ConflictError
from penstock.pipeline.api_messages import PartitionState, Range
from penstock.pipeline.tables.plan import (
    ITEM_BYTES_MIN,
    RunExtent,
    cut_ranges,
    epochs_before,
    item_bytes,
    offsets_after,
    plan_wanted,
    remaining_pieces,
    share_out,
)

TOPIC = "0" * 32


def state(log_start: int, high_watermark: int) -> PartitionState:
    return PartitionState(log_start=log_start, high_watermark=high_watermark, size_bytes=0)


def area(partition: int, start: int, end: int) -> Range:
    return Range(topic_id=TOPIC, partition=partition, start=start, end=end)


def test_what_is_wanted_and_what_is_lost() -> None:
    partitions = [state(0, 10), state(5, 10), state(5, 10), state(7, 7), state(0, 0)]
    wanted = plan_wanted(TOPIC, partitions, {0: 4, 1: 2, 3: 6})
    assert wanted.ranges == (area(0, 4, 10), area(1, 5, 10), area(2, 5, 10))
    # Partition 2 is new: it had promised nothing that could be lost.
    assert wanted.lost == (area(1, 2, 5), area(3, 6, 7))


@pytest.mark.parametrize("held", [{0: 11}, {0: 10, 2: 1}])
def test_a_log_that_has_gone_back_is_nothing_to_go_on_in(held: dict[int, int]) -> None:
    """Nor is one that has fewer partitions than were followed."""
    partitions = [state(0, 10), state(5, 10)]
    with pytest.raises(ConflictError, match="gone back"):
        plan_wanted(TOPIC, partitions, held)
    assert plan_wanted(TOPIC, partitions, {0: 10, 1: 10, 2: 0}).ranges == ()


RESTORED = ((0, 0), (7, 60), (9, 90))
"""Restored at offset 60 as of epoch 7, and at 90 as of epoch 9."""


@pytest.mark.parametrize(
    ("offset", "epoch", "found"),
    [
        (61, 0, "leader epoch 0, of which the last record was, ends at 60"),
        (100, 0, "ends at 60"),
        (91, 7, "leader epoch 7, of which the last record was, ends at 90"),
        (80, 8, "no records of leader epoch 8"),  # another restore of the same backup,
        (80, 6, "no records of leader epoch 6"),  # whichever was the earlier one
        (50, 6, "no records of leader epoch 6"),
        (100, 10, "no records of leader epoch 10"),
        (121, 9, "its high watermark is 120"),
    ],
)
def test_a_log_with_other_records_is_known_once_it_has_grown_past_the_table(
    offset: int, epoch: int, found: str
) -> None:
    grown = msgspec.structs.replace(state(0, 120), epoch_starts=list(RESTORED))
    with pytest.raises(ConflictError, match=found):
        plan_wanted(TOPIC, [grown], {0: offset}, {0: epoch})


@pytest.mark.parametrize("offset", [0, 1, 60, 61, 90, 91, 120])
def test_a_log_with_the_same_records_is_followed_whatever_was_restored(offset: int) -> None:
    grown = msgspec.structs.replace(state(0, 120), epoch_starts=list(RESTORED))
    epochs = epochs_before({0: offset}, [grown])
    assert epochs == ({0: next(e for e, s in reversed(RESTORED) if s < offset)} if offset else {})
    wanted = plan_wanted(TOPIC, [grown], {0: offset}, epochs)
    assert wanted.ranges == ((area(0, offset, 120),) if offset < 120 else ())
    # A table of a release that noted no epochs is believed.
    assert plan_wanted(TOPIC, [grown], {0: offset}) == wanted
    if 0 < offset <= 60:
        # It was followed before any restore.
        assert epochs_before({0: offset}, [state(0, 60)]) == epochs


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Range], list[RunExtent]]:
    """Ranges, and runs with gaps between them that overlap the ranges anyhow."""
    ranges: list[Range] = []
    runs: list[RunExtent] = []
    for partition in range(draw(st.integers(1, 3))):
        offset = draw(st.integers(0, 20))
        for _ in range(draw(st.integers(0, 5))):
            offset += draw(st.integers(0, 10))
            end = offset + draw(st.integers(1, 50))
            size = draw(st.integers(1, 1000))
            runs.append(RunExtent(partition=partition, start=offset, end=end, length_bytes=size))
            offset = end
        start = draw(st.integers(0, 40))
        ranges.append(area(partition, start, start + draw(st.integers(1, 200))))
    return ranges, runs


@given(logs(), st.integers(1, 300), st.integers(1, 300), st.integers(1, 600))
def test_pieces_tile_the_ranges_in_order(
    log: tuple[list[Range], list[RunExtent]], piece_bytes: int, item_bytes: int, commit_bytes: int
) -> None:
    ranges, runs = log
    pieces = cut_ranges(ranges, runs, bytes_max=piece_bytes)
    commits = share_out(pieces, item_bytes=item_bytes, commit_bytes=commit_bytes)
    flat = [piece for commit in commits for item in commit for piece in item]
    assert flat == [piece for piece, _ in pieces]
    for wanted in ranges:
        mine = [piece for piece in flat if piece.partition == wanted.partition]
        assert mine[0].start == wanted.start
        assert mine[-1].end == wanted.end
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
    assert all(item for commit in commits for item in commit)
    # Commit after commit, what is held grows without holes.
    held = {wanted.partition: wanted.start for wanted in ranges}
    for commit in commits:
        for item in commit:
            for piece in item:
                assert held[piece.partition] == piece.start
                held = offsets_after(held, [[piece]])


@given(logs(), st.integers(10, 300))
def test_pieces_are_about_as_large_as_they_may_be(
    log: tuple[list[Range], list[RunExtent]], piece_bytes: int
) -> None:
    ranges, runs = log
    pieces = cut_ranges(ranges, runs, bytes_max=piece_bytes)
    assert all(size <= piece_bytes for _, size in pieces)
    for commit in share_out(pieces, item_bytes=200, commit_bytes=500):
        sizes = {(piece.partition, piece.start): size for piece, size in pieces}
        for item in commit:
            of_item = [sizes[piece.partition, piece.start] for piece in item]
            assert sum(of_item) <= 200 or len([size for size in of_item if size]) == 1


def test_many_small_partitions_share_an_item() -> None:
    pieces = [(area(partition, 0, 1), 10) for partition in range(100)]
    assert [len(commit) for commit in share_out(pieces, item_bytes=500, commit_bytes=5000)] == [2]


@given(logs(), st.integers(1, 300), st.data())
def test_a_plan_goes_on_wherever_the_table_is_then(
    log: tuple[list[Range], list[RunExtent]], piece_bytes: int, data: st.DataObject
) -> None:
    ranges, runs = log
    pieces = cut_ranges(ranges, runs, bytes_max=piece_bytes)
    later = [
        area(wanted.partition, data.draw(st.integers(wanted.start, wanted.end - 1)), wanted.end)
        for wanted in ranges
    ]
    left = remaining_pieces(pieces, later)
    assert left is not None
    for wanted in later:
        mine = [piece for piece, _ in left if piece.partition == wanted.partition]
        assert (mine[0].start, mine[-1].end) == (wanted.start, wanted.end)
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
    assert sum(size for _, size in left) <= sum(size for _, size in pieces)


def test_a_plan_of_other_ranges_is_made_again() -> None:
    pieces = [(area(0, 0, 5), 10), (area(0, 5, 9), 10)]
    assert remaining_pieces(pieces, [area(0, 0, 10)]) is None
    assert remaining_pieces(pieces, [area(0, 3, 9), area(1, 0, 1)]) is None
    assert remaining_pieces(pieces[1:], [area(0, 3, 9)]) is None
    assert remaining_pieces(pieces, []) == []


def test_an_item_is_an_executors_share_within_bounds() -> None:
    mib = 1 << 20

    def cut(wanted: int, parallelism: int) -> int:
        return (
            item_bytes(
                wanted * mib, parallelism=parallelism, commit_bytes=2048 * mib, bytes_max=128 * mib
            )
            // mib
        )

    assert [cut(1, 8), cut(100, 8), cut(1000, 8), cut(9000, 8)] == [4, 12, 125, 128]
    assert cut(9000, 1000) == 4
    assert item_bytes(9, parallelism=2, commit_bytes=9, bytes_max=3) == 3 < ITEM_BYTES_MIN
