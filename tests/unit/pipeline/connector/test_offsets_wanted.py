import pytest

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import PartitionState, TopicState
from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.connector.offsets_wanted import check_each, choose, ends, starts
from penstock.pipeline.connector.options import parse
from penstock.pipeline.ranges import LogTruncatedError

TOPICS = [
    TopicState(
        name="b",
        topic_id="b" * 32,
        configs={},
        partitions=[PartitionState(log_start=0, high_watermark=0, size_bytes=0)],
    ),
    TopicState(
        name="a",
        topic_id="a" * 32,
        configs={},
        partitions=[
            PartitionState(log_start=10, high_watermark=20, size_bytes=1000),
            PartitionState(log_start=0, high_watermark=5, size_bytes=50),
        ],
    ),
]
TIMES = {("a" * 32, 0): {100: 12, 200: -1}, ("a" * 32, 1): {100: 3, 200: -1}}


def options(mode="batch", **given):
    if not {"subscribe", "assign", "subscribePattern"} & set(given):
        given["subscribe"] = "a"
    return parse({"url": "http://x", **given}, mode=mode)


def lookup(items):
    return [TIMES[topic_id, partition][ms] for topic_id, partition, ms in items]


def chosen_of(opts):
    names = opts.names or opts.assigned
    topics = [topic for topic in TOPICS if opts.pattern or topic.name in names]
    chosen = choose(opts, topics)
    check_each(opts, chosen)
    return chosen


def starts_of(opts, *, allowed=False):
    return starts(opts, chosen_of(opts), lookup, Losses(allowed=allowed))


def ends_of(opts):
    return ends(opts, chosen_of(opts), lookup)


def test_all_partitions_by_name_in_order():
    chosen = chosen_of(options(subscribePattern="."))
    assert [(one.topic, one.partition) for one in chosen] == [("a", 0), ("a", 1), ("b", 0)]


def test_only_those_assigned():
    chosen = chosen_of(options(assign='{"b":[0],"a":[1]}'))
    assert [(one.topic, one.partition) for one in chosen] == [("a", 1), ("b", 0)]


def test_a_named_topic_that_is_not_there():
    with pytest.raises(NotFoundError, match="'c'"):
        chosen_of(options(subscribe="a,c"))


def test_an_assigned_partition_that_is_not_there():
    with pytest.raises(NotFoundError, match=r"a-2.*2 partitions"):
        chosen_of(options(assign='{"a":[1,2]}'))


def test_earliest_and_latest():
    assert starts_of(options()) == [10, 0]
    assert starts_of(options("stream")) == [20, 5]
    assert ends_of(options()) == [20, 5]


def test_one_by_one():
    opts = options(startingOffsets='{"a":{"0":15,"1":-2}}', endingOffsets='{"a":{"0":-1,"1":4}}')
    assert starts_of(opts) == [15, 0]
    assert ends_of(opts) == [20, 4]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": '{"a":{"0":15}}'}, "startingOffsets: leaves out a-1"),
        ({"endingOffsets": '{"a":{"0":15}}'}, "endingOffsets: leaves out a-1"),
        (
            {"startingOffsets": '{"a":{"0":15,"1":1,"2":0},"z":{"0":0}}'},
            "names a-2 and 1 more",
        ),
        (
            {"endingOffsetsByTimestamp": '{"a":{"1":15}}'},
            "endingOffsetsByTimestamp: leaves out a-0",
        ),
    ],
)
def test_one_by_one_is_for_each_and_no_other(given, says):
    with pytest.raises(InvalidRequestError) as refusal:
        chosen_of(options(**given))
    assert says in str(refusal.value)


def test_above_the_high_watermark():
    with pytest.raises(InvalidRequestError, match=r"a-0.*21.*20"):
        starts_of(options(startingOffsets='{"a":{"0":21,"1":0}}'))
    with pytest.raises(InvalidRequestError, match=r"a-1.*6.*5"):
        ends_of(options(endingOffsets='{"a":{"0":20,"1":6}}'))


def test_below_the_log_s_start():
    opts = options(startingOffsets='{"a":{"0":4,"1":0}}')
    with pytest.raises(LogTruncatedError) as gone:
        starts_of(opts)
    assert (gone.value.partition, gone.value.wanted, gone.value.available) == (0, 4, 10)
    assert starts_of(opts, allowed=True) == [10, 0]


def test_by_time():
    opts = options(startingTimestamp="100", endingTimestamp="200")
    assert starts_of(opts) == [12, 3]
    assert ends_of(opts) == [20, 5]  # nothing that late: all there is
    opts = options(startingOffsetsByTimestamp='{"a":{"0":100,"1":200}}')
    with pytest.raises(InvalidRequestError, match="a-1"):
        starts_of(opts)


def test_by_time_with_nothing_that_late_at_the_end_if_so_wished():
    opts = options(startingTimestamp="200", startingOffsetsByTimestampStrategy="latest")
    assert starts_of(opts) == [20, 5]


def test_the_size_of_a_range_is_its_share():
    chosen = chosen_of(options())[0]
    assert chosen.range(12, 17).size_bytes == 500
    assert chosen.range(12, 17).rows == 5
