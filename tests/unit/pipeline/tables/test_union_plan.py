"""A view of table and log has each record once, whatever happens between its two steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ConflictError
from penstock.pipeline.api_messages import PartitionState, Range
from penstock.pipeline.tables.union_plan import cleaned_since, lost_error, plan_union

TOPIC = "0" * 32


def state(start: int, end: int, clean_end: int = -1) -> PartitionState:
    return PartitionState(log_start=start, high_watermark=end, size_bytes=0, clean_end=clean_end)


@dataclass
class World:
    """A log of two partitions and its table."""

    starts: list[int] = field(default_factory=lambda: [0, 0])
    ends: list[int] = field(default_factory=lambda: [0, 0])
    held: dict[int, int] = field(default_factory=dict)

    def states(self) -> list[PartitionState]:
        return [state(start, end) for start, end in zip(self.starts, self.ends, strict=True)]

    def step(self, what: str, partition: int, by: int) -> None:
        match what:
            case "produce":
                self.ends[partition] += by
            case "commit":
                for number, end in enumerate(self.ends):
                    begin = self.held.get(number, self.starts[number])
                    self.held[number] = max(begin, min(end, begin + by))
            case "retention":
                # It waits for the table, and so takes what the table holds alone.
                most = self.held.get(partition, self.starts[partition])
                self.starts[partition] = max(
                    self.starts[partition], min(most, self.starts[partition] + by)
                )


steps = st.lists(
    st.tuples(
        st.sampled_from(["produce", "commit", "retention"]), st.integers(0, 1), st.integers(1, 5)
    ),
    max_size=12,
)


@given(before=steps, between=steps, after=steps)
def test_each_record_of_before_the_pin_is_in_the_view_once(
    before: list[tuple[str, int, int]],
    between: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
) -> None:
    world = World()
    for step in before:
        world.step(*step)
    pinned = world.states()
    for step in between:
        world.step(*step)
    held = dict(world.held)
    for step in after:
        # The pin holds retention back; what the table follows now is no part of the snapshot.
        if step[0] != "retention":
            world.step(*step)
    plan = plan_union(TOPIC, held=held, epochs={}, pinned=pinned, now=world.states())
    assert plan.lost == ()
    for partition, was in enumerate(pinned):
        rows = list(range(held.get(partition, 0)))
        for wanted in plan.ranges:
            if wanted.partition == partition:
                assert wanted.start >= world.starts[partition]
                assert wanted.end <= was.high_watermark
                rows += range(wanted.start, wanted.end)
        assert len(rows) == len(set(rows))
        assert set(range(was.high_watermark)) <= set(rows)


offsets = st.integers(0, 20)


@given(held=st.dictionaries(st.just(0), offsets), pinned=st.tuples(offsets, offsets), moved=offsets)
def test_what_is_gone_is_told_and_the_rest_is_read(
    held: dict[int, int], pinned: tuple[int, int], moved: int
) -> None:
    first, end = min(pinned), max(pinned)
    now_start = first + moved
    now = [state(now_start, max(end, now_start, held.get(0, 0)))]
    plan = plan_union(TOPIC, held=held, epochs={}, pinned=[state(first, end)], now=now)
    begin = held.get(0, first)
    wanted = set(range(begin, end))
    lost = {offset for part in plan.lost for offset in range(part.start, part.end)}
    read = {offset for part in plan.ranges for offset in range(part.start, part.end)}
    assert lost == {offset for offset in wanted if offset < max(now_start, first)}
    assert read == wanted - lost


def test_a_loss_is_named_by_topic_partition_and_offsets() -> None:
    told = str(lost_error("flights", Range(TOPIC, 3, 40, 60)))
    assert "flights-3" in told
    assert "holds offsets below 40 and the log begins at 60: 20 offsets are in neither" in told
    assert "failOnDataLoss=false" in told


@pytest.mark.parametrize(
    ("held", "epochs", "now"),
    [
        ({0: 12}, {}, [state(0, 11)]),
        ({0: 5}, {0: 7}, [state(0, 11)]),
        ({}, {}, [state(0, 9)]),
        ({}, {}, []),
    ],
    ids=["the table is ahead", "another epoch", "the log went back", "a partition is gone"],
)
def test_another_history_is_refused(
    held: dict[int, int], epochs: dict[int, int], now: list[PartitionState]
) -> None:
    with pytest.raises(ConflictError):
        plan_union(TOPIC, held=held, epochs=epochs, pinned=[state(0, 10)], now=now)


@given(clean=st.tuples(st.integers(-1, 30), st.integers(-1, 30)), area=st.tuples(offsets, offsets))
def test_what_was_cleaned_since_the_pin_is_found(
    clean: tuple[int, int], area: tuple[int, int]
) -> None:
    before, after = min(clean), max(clean)
    wanted = Range(TOPIC, 0, min(area), max(area))
    found = {
        offset
        for part in cleaned_since([wanted], {0: before}, [state(0, 30, after)])
        for offset in range(part.start, part.end)
    }
    assert found == set(range(max(before, 0), max(after, 0))) & set(range(wanted.start, wanted.end))
