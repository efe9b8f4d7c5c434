"""The options of writes: what they mean, and that a wrong one is named."""

import pickle

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.write_options import parse_write_options

URL = {"url": "http://a:1"}


def test_names_are_in_any_case_and_the_rest_is_given() -> None:
    options = parse_write_options(
        {"URL": "http://a:1, http://b:2", "TOPIC": "t", "Compression": "LZ4"}, streaming=False
    )
    assert options.api.urls == ("http://a:1", "http://b:2")
    assert (options.topic, options.codec) == ("t", "lz4")
    assert (options.writer_id, options.batch_id) == ("", -1)
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_stream_has_a_writer_and_a_checkpoint() -> None:
    given = URL | {"writerId": "w", "checkpointLocation": "/c"}
    options = parse_write_options(given, streaming=True)
    assert (options.writer_id, options.checkpoint) == ("w", "/c")


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"topic": "t"}, False, "option url"),
        ({"url": "a:1"}, False, "not an http"),
        ({"url": "http://user:word@a:1"}, False, "PENSTOCK_CLUSTER_SECRET"),
        (URL | {"writerid": "w"}, False, "both writerId and batchId"),
        (URL | {"batchId": "1"}, False, "both writerId and batchId"),
        (URL | {"writerId": "w", "batchId": "-1"}, False, "not a whole number"),
        (URL | {"writerId": "w", "batchId": "1e3"}, False, "not a whole number"),
        (URL | {"objects": "ftp"}, False, "auto, agent, ambient"),
        (URL | {"objectBytes": "1"}, False, "not a whole number from 65536"),
        (URL | {"compresion": "lz4"}, False, "did you mean compression"),
        (URL | {"kafka.acks": "all"}, False, "no Kafka client takes part"),
        (URL, True, "a stream needs one"),
        (URL | {"writerId": "once-1", "checkpointLocation": "c"}, True, "given by Penstock"),
        (URL | {"writerId": "w"}, True, "checkpointLocation"),
        (URL | {"writerId": "w", "checkpointLocation": "c", "batchId": "1"}, True, "Spark's"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_write_options(given, streaming=streaming)
