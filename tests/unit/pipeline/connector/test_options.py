import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.options import EARLIEST, LATEST, Wanted, ignored, parse

LEAST = {"url": "http://127.0.0.1:9644", "subscribe": "flights"}


def test_least_options_of_a_batch():
    options = parse(LEAST, mode="batch")
    assert options.api.urls == ("http://127.0.0.1:9644",)
    assert options.names == ("flights",)
    assert options.starting == Wanted(point=EARLIEST)
    assert options.ending == Wanted(point=LATEST)
    assert options.fail_on_data_loss
    assert options.columns == (
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    )


def test_a_stream_begins_at_the_latest_offset():
    assert parse(LEAST, mode="stream").starting == Wanted(point=LATEST)


def test_names_are_case_insensitive():
    options = parse(
        {"URL": "http://a,https://b", "SubscribePattern": "fl.*", "FAILONDATALOSS": "False"},
        mode="batch",
    )
    assert options.api.urls == ("http://a", "https://b")
    assert options.pattern == "fl.*"
    assert not options.fail_on_data_loss


def test_offsets_one_by_one():
    options = parse(
        LEAST | {"startingOffsets": '{"flights":{"0":5,"1":-2}}', "endingOffsets": "latest"},
        mode="batch",
    )
    assert options.starting == Wanted(each={"flights": {0: 5, 1: -2}})


def test_timestamps_go_before_offsets_as_in_kafka_s_source():
    options = parse(
        LEAST
        | {
            "startingOffsets": "earliest",
            "startingOffsetsByTimestamp": '{"flights":{"0":7}}',
            "startingTimestamp": "9",
            "endingOffsetsByTimestamp": '{"flights":{"0":8}}',
        },
        mode="batch",
    )
    assert options.starting == Wanted(time_ms=9)
    assert options.ending == Wanted(times={"flights": {0: 8}})


def test_columns_in_the_given_order():
    options = parse(LEAST | {"columns": "timestamptype, OFFSET,headers"}, mode="batch")
    assert options.columns == ("timestampType", "offset", "headers")


def test_headers_are_asked_for():
    assert parse(LEAST | {"includeHeaders": "true"}, mode="batch").columns[-1] == "headers"


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("7s", 7000), ("15m", 900_000), ("1 h", 3_600_000), ("3", 3)]
)
def test_durations(text, ms):
    assert parse(LEAST | {"maxTriggerDelay": text}, mode="stream").trigger_delay_ms == ms


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"subscrib": "x"}, "did you mean subscribe?"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"zzz": "1"}, "it is unknown"),
        ({"path": "x"}, "it is unknown"),
        ({"kafka.bootstrap.servers": "a:9092"}, "a batch commits no offsets"),
        ({"kafka.isolation.level": "serializable"}, "none of read_committed"),
        ({"kafka.fetch.min.bytes": "1"}, "leave it out"),
        ({"assign": '{"flights":[0]}'}, "give one of"),
        ({"subscribe": ""}, "it is missing"),
        ({"subscribe": ","}, "names no topic"),
        ({"url": ""}, "it is missing"),
        ({"url": "a:9644"}, "is not an http"),
        ({"url": "http://me:secret@a"}, "user or password"),
        ({"startingOffsets": "first"}, "is not JSON"),
        ({"startingOffsets": "latest"}, "can't begin at the latest"),
        ({"startingOffsets": '{"flights":{"0":-1}}'}, "can't begin at the latest"),
        ({"startingOffsets": '{"flights":{"0":-3}}'}, "out of range"),
        ({"startingOffsets": '{"flights":{"x":1}}'}, "'x': 1"),
        ({"startingOffsets": '{"flights":{"0":"1"}}'}, "'1'"),
        ({"startingOffsets": '{"flights":[1]}'}, "no JSON object of partitions"),
        ({"endingOffsets": "earliest"}, "ends at the earliest"),
        ({"endingOffsets": '{"flights":{"0":-2}}'}, "ends at the earliest"),
        ({"startingTimestamp": "-4"}, "whole number"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "none of error, latest"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"failOnDataLoss": "yes"}, "neither true nor false"),
        ({"leaseMs": "3600001"}, "from 0 to 3600000"),
        ({"columns": "value,valu"}, "is not a column"),
        ({"columns": "value,value"}, "one twice"),
        ({"objects": "s3"}, "none of auto, agent, ambient"),
        ({"maxOffsetsPerTrigger": "5"}, "no triggers"),
    ],
)
def test_refused_in_a_batch(changes, says):
    with pytest.raises(InvalidRequestError) as refusal:
        parse(LEAST | changes, mode="batch")
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"endingOffsets": "latest"}, "no end"),
        ({"endingTimestamp": "5"}, "no end"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is above"),
        ({"maxTriggerDelay": "3 weeks"}, "not a duration"),
    ],
)
def test_refused_in_a_stream(changes, says):
    with pytest.raises(InvalidRequestError) as refusal:
        parse(LEAST | changes, mode="stream")
    assert says in str(refusal.value)


def test_a_password_in_a_url_is_not_repeated():
    with pytest.raises(InvalidRequestError) as refusal:
        parse(LEAST | {"url": "http://me:hunter2@a"}, mode="batch")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"a":[]}', '{"a":["0"]}', '{"a":[-1]}', '{"a":0}', '{"a":[true]}']
)
def test_assignments_that_are_none(text):
    with pytest.raises(InvalidRequestError):
        parse({"url": "http://a", "assign": text}, mode="batch")


def test_assigned_partitions_are_in_order_and_once():
    options = parse({"url": "http://a", "assign": '{"t":[3,1,3]}'}, mode="batch")
    assert options.assigned == {"t": (1, 3)}


def test_pattern_that_is_none():
    with pytest.raises(InvalidRequestError, match="not a regular expression"):
        parse({"url": "http://a", "subscribePattern": "("}, mode="batch")


def test_tuning_of_kafka_s_client_is_let_be_and_told():
    given = LEAST | {"groupIdPrefix": "g", "fetchOffset.numRetries": "3"}
    assert parse(given, mode="batch").names == ("flights",)
    assert ignored(given) == ["fetchOffset.numRetries", "groupIdPrefix"]
