import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.errors import ConflictError, NotFoundError
from penstock.pipeline.api_messages import PartitionState, TopicState
from penstock.pipeline.connector import stream_plan
from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.connector.offsets import (
    StreamOffsets,
    TopicOffsets,
    from_json,
    to_json,
)
from penstock.pipeline.connector.offsets_wanted import choose
from penstock.pipeline.connector.options import parse
from penstock.pipeline.ranges import LogTruncatedError

FIRM, LAX = Losses(allowed=False), Losses(allowed=True)
OPTIONS = parse({"url": "http://x", "subscribePattern": "."}, mode="stream")


def topic(*partitions: tuple[int, int], name: str = "t", topic_id: str = "1") -> TopicState:
    return TopicState(
        name=name,
        topic_id=topic_id,
        configs={},
        partitions=[
            PartitionState(log_start=start, high_watermark=end, size_bytes=10 * (end - start))
            for start, end in partitions
        ],
    )


def at(*partitions: int, name: str = "t", topic_id: str = "1", **more) -> StreamOffsets:
    return StreamOffsets(
        topics={
            name: TopicOffsets(topic_id=topic_id, partitions=dict(enumerate(partitions)), **more)
        }
    )


def spans(ranges):
    return [(one.topic, one.partition, one.start, one.end) for one in ranges]


def test_nothing_new_is_the_start_itself():
    start = at(5, 3)
    assert stream_plan.advance(start, [topic((0, 5), (0, 3))], FIRM) is start


def test_what_waits_is_read():
    end = stream_plan.advance(at(5, 3), [topic((0, 9), (0, 3))], FIRM)
    assert end == at(9, 3)
    ranges = stream_plan.ranges(at(5, 3), end, [topic((0, 9), (0, 3))], FIRM)
    assert spans(ranges) == [("t", 0, 5, 9)]
    assert ranges[0].size_bytes == 40


def test_a_new_partition_begins_at_its_first_record():
    now = [topic((0, 5), (0, 3))]
    end = stream_plan.advance(at(5), now, FIRM)
    assert end == at(5, 3, begun={1: 0})
    assert spans(stream_plan.ranges(at(5), end, now, FIRM)) == [("t", 1, 0, 3)]


def test_a_new_topic_of_the_pattern_begins_at_its_first_record():
    now = [topic((0, 5)), topic((0, 2), name="u", topic_id="2")]
    end = stream_plan.advance(at(5), now, FIRM)
    assert end.topics["u"] == TopicOffsets(topic_id="2", partitions={0: 2}, begun={0: 0})
    assert spans(stream_plan.ranges(at(5), end, now, FIRM)) == [("u", 0, 0, 2)]


def test_a_new_partition_that_lost_its_beginning_is_a_loss():
    with pytest.raises(LogTruncatedError):
        stream_plan.advance(at(5), [topic((0, 5), (2, 3))], FIRM)
    end = stream_plan.advance(at(5), [topic((0, 5), (2, 3))], LAX)
    assert end == at(5, 3, begun={1: 2}, lost=2)


def test_the_first_batch_run_again_is_the_same_though_the_start_moved():
    """Spark keeps a batch's end, and asks anew where a query begins that has none before."""
    then = [topic((0, 10), (0, 4))]
    start = stream_plan.begin(choose(OPTIONS, then), [10, 4])
    later = [topic((0, 15), (0, 6))]
    end = stream_plan.advance(start, later, FIRM)
    planned = spans(stream_plan.ranges(start, end, later, FIRM))
    assert planned == [("t", 0, 10, 15), ("t", 1, 4, 6)]
    # The query died in this batch; at its new start "latest" is another place.
    much_later = [topic((0, 99), (0, 50))]
    again = stream_plan.begin(choose(OPTIONS, much_later), [99, 50])
    kept = from_json(json.loads(json.dumps(to_json(end))))
    assert spans(stream_plan.ranges(again, kept, much_later, FIRM)) == planned


def test_a_second_batch_begins_where_the_first_ended():
    start = stream_plan.begin(choose(OPTIONS, [topic((0, 10))]), [10])
    first = stream_plan.advance(start, [topic((0, 15))], FIRM)
    second = stream_plan.advance(first, [topic((0, 20))], FIRM)
    assert spans(stream_plan.ranges(first, second, [topic((0, 20))], FIRM)) == [("t", 0, 15, 20)]
    assert "from" not in to_json(second)["topics"]["t"]


def test_a_query_that_has_read_nothing_yet_has_its_first_batch_all_the_same():
    start = stream_plan.begin(choose(OPTIONS, [topic((0, 10))]), [10])
    end = stream_plan.advance(start, [topic((0, 10))], FIRM)
    assert not end.initial
    assert stream_plan.ranges(start, end, [topic((0, 10))], FIRM) == []
    assert stream_plan.advance(end, [topic((0, 10))], FIRM) is end


def test_records_that_are_gone_are_an_error_that_says_which():
    with pytest.raises(LogTruncatedError) as gone:
        stream_plan.advance(at(5), [topic((8, 12))], FIRM)
    assert "topic t" in str(gone.value)
    assert "partition 0" in str(gone.value)
    assert (gone.value.wanted, gone.value.available) == (5, 8)


def test_records_that_are_gone_are_skipped_and_counted():
    losses = Losses(allowed=True)
    end = stream_plan.advance(at(5, lost=4), [topic((8, 12))], losses)
    assert end == at(12, lost=7)
    assert losses.records == {"t": 3}
    ranges = stream_plan.ranges(at(5), end, [topic((8, 12))], LAX)
    assert spans(ranges) == [("t", 0, 8, 12)]


def test_records_that_go_between_planning_and_running():
    end = stream_plan.advance(at(5), [topic((0, 12))], FIRM)
    with pytest.raises(LogTruncatedError):
        stream_plan.ranges(at(5), end, [topic((20, 30))], FIRM)
    assert stream_plan.ranges(at(5), end, [topic((20, 30))], LAX) == []


@pytest.mark.parametrize("losses", [FIRM, LAX])
def test_a_topic_made_anew_is_an_error_whatever_may_be_lost(losses):
    with pytest.raises(ConflictError, match="made again"):
        stream_plan.advance(at(5), [topic((0, 9), topic_id="2")], losses)
    with pytest.raises(ConflictError, match="made again"):
        stream_plan.ranges(at(5), at(7), [topic((0, 9), topic_id="2")], losses)
    with pytest.raises(ConflictError, match="made again"):
        stream_plan.ranges(at(5), at(7, topic_id="2"), [topic((0, 9), topic_id="2")], losses)


def test_a_deleted_topic_is_an_error_or_left_alone():
    with pytest.raises(NotFoundError, match="deleted"):
        stream_plan.advance(at(5), [], FIRM)
    with pytest.raises(NotFoundError, match="deleted"):
        stream_plan.ranges(at(5), at(7), [], FIRM)
    start = at(5)
    assert stream_plan.advance(start, [], LAX) is start
    assert stream_plan.ranges(at(5), at(7), [], LAX) == []


def test_a_deleted_topic_that_comes_back_is_known_to_be_another():
    start = at(5)
    gone = stream_plan.advance(start, [topic((0, 1), name="u", topic_id="2")], LAX)
    with pytest.raises(ConflictError, match="made again"):
        stream_plan.advance(gone, [topic((0, 9), topic_id="3")], LAX)


@pytest.mark.parametrize("losses", [FIRM, LAX])
def test_a_log_that_went_back_is_an_error_whatever_may_be_lost(losses):
    with pytest.raises(ConflictError, match="gone back"):
        stream_plan.advance(at(5), [topic((0, 4))], losses)
    with pytest.raises(ConflictError, match="gone back"):
        stream_plan.ranges(at(3), at(5), [topic((0, 4))], losses)
    with pytest.raises(ConflictError, match="gone back"):
        stream_plan.advance(at(5, 5), [topic((0, 9))], losses)


def test_a_limit_is_shared_by_what_waits():
    end = stream_plan.advance(at(0, 0, 0), [topic((0, 900), (0, 100), (0, 0))], FIRM, rows_max=100)
    assert end == at(90, 10, 0)


def test_no_partition_starves():
    end = stream_plan.advance(at(0, 0), [topic((0, 1_000_000), (0, 1))], FIRM, rows_max=10)
    assert end == at(9, 1)


def test_an_available_now_query_ends_where_the_log_ended():
    last = stream_plan.high_watermarks([topic((0, 10))])
    now = [topic((0, 25), (0, 5)), topic((0, 5), name="u", topic_id="2")]
    end = stream_plan.advance(at(3), now, FIRM, last=last)
    assert end == at(10)
    assert stream_plan.advance(end, now, FIRM, last=last) is end


def test_only_assigned_partitions():
    start = StreamOffsets(topics={"t": TopicOffsets(topic_id="1", partitions={1: 2})})
    end = stream_plan.advance(start, [topic((0, 50), (0, 5), (0, 50))], FIRM, assigned={"t": (1,)})
    assert end.topics["t"].partitions == {1: 5}


def test_what_waits_is_counted():
    assert stream_plan.available(at(5), [topic((0, 9), (0, 3))], None) == 4 + 3
    assert stream_plan.available(at(5), [topic((7, 9), (0, 3))], {"t": (0,)}) == 2


@given(
    st.dictionaries(st.tuples(st.just("t"), st.integers(0, 9)), st.integers(0, 10**12)),
    st.none() | st.integers(1, 10**12),
)
def test_shares(waiting, rows_max):
    granted = stream_plan.share(waiting, rows_max)
    assert granted.keys() == waiting.keys()
    for partition, count in granted.items():
        assert 0 <= count <= waiting[partition]
        assert bool(count) == bool(waiting[partition])
    if rows_max is not None:
        assert sum(granted.values()) <= max(rows_max, 0) + len(waiting)


class Stream(RuleBasedStateMachine):
    """A log that grows and a query that crashes: every record from its start on, once."""

    def __init__(self):
        super().__init__()
        self.ends = {"t": [3, 0]}
        self.start = None  # the committed offsets
        self.planned = None  # the end of a batch that was planned and not yet committed
        self.read: dict[tuple[str, int], list[int]] = {}
        self.first = None

    def topics(self):
        return [
            topic(*((0, end) for end in ends), name=name, topic_id=name)
            for name, ends in self.ends.items()
        ]

    def initial(self):
        chosen = choose(OPTIONS, self.topics())
        return stream_plan.begin(chosen, [one.state.high_watermark for one in chosen])

    @rule(index=st.integers(0, 20), count=st.integers(1, 30))
    def produce(self, index, count):
        partitions = [(n, p) for n, ends in self.ends.items() for p in range(len(ends))]
        name, partition = partitions[index % len(partitions)]
        self.ends[name][partition] += count

    @rule()
    def add_partition(self):
        self.ends["t"].append(0)

    @precondition(lambda self: len(self.ends) < 3)
    @rule()
    def add_topic(self):
        self.ends[f"u{len(self.ends)}"] = [0]

    @precondition(lambda self: self.planned is None)
    @rule(rows_max=st.none() | st.integers(1, 20))
    def plan(self, rows_max):
        start = self.start or self.initial()
        end = stream_plan.advance(start, self.topics(), FIRM, rows_max=rows_max)
        if end is start:
            return
        if self.first is None:
            self.first = {
                (n, p): o for n, t in start.topics.items() for p, o in t.partitions.items()
            }
        self.planned = json.dumps(to_json(end))

    @precondition(lambda self: self.planned is not None)
    @rule(again=st.booleans())
    def run(self, again):
        """The batch runs, after a restart perhaps, with nothing but the checkpoint."""
        start = self.start or self.initial()
        end = from_json(json.loads(self.planned))
        ranges = stream_plan.ranges(start, end, self.topics(), FIRM)
        if again:
            later = stream_plan.ranges(self.start or self.initial(), end, self.topics(), FIRM)
            assert spans(later) == spans(ranges)
        for one in ranges:
            self.read.setdefault((one.topic, one.partition), []).extend(range(one.start, one.end))
        self.start, self.planned = end, None

    @invariant()
    def each_record_once(self):
        for partition, offsets in self.read.items():
            first = (self.first or {}).get(partition, 0)
            assert offsets == list(range(first, first + len(offsets)))

    def teardown(self):
        if self.first is None:
            return
        if self.planned is not None:
            self.run(again=False)
        end = stream_plan.advance(self.start, self.topics(), FIRM)
        if end is not self.start:
            self.planned = json.dumps(to_json(end))
            self.run(again=True)
        for name, ends in self.ends.items():
            for partition, end_offset in enumerate(ends):
                first = self.first.get((name, partition), 0)
                assert self.read.get((name, partition), []) == list(range(first, end_offset))


TestStream = Stream.TestCase
TestStream.settings = settings(stateful_step_count=25)
