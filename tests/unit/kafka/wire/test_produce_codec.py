"""The hand-written Produce codec against kio's, for every version."""

import importlib
import io
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.wire.produce_codec import PartitionAnswer, encode_produce
from support.parsing import parse_produce

VERSIONS = range(3, 14)
TOPIC_ID = uuid.UUID(int=5)


def make(kind: Any, **fields: Any) -> Any:
    return kind(**{k: v for k, v in fields.items() if k in kind.__dataclass_fields__})


def kio_request(version: int) -> bytes:
    types = importlib.import_module(f"kio.schema.produce.v{version}.request")
    parts = tuple(
        make(types.PartitionProduceData, index=i32(n), records=records)
        for n, records in enumerate((b"abc" * 100, None, b""))
    )
    topic = make(types.TopicProduceData, name="flights", topic_id=TOPIC_ID, partition_data=parts)
    request = make(
        types.ProduceRequest,
        transactional_id=None,
        acks=i16(-1),
        timeout=i32Timedelta.parse(timedelta(seconds=30)),
        topic_data=(topic,),
    )
    buffer = io.BytesIO()
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_kio_wrote_it(version: int) -> None:
    body = memoryview(kio_request(version))
    request = parse_produce(body, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 30_000)
    (topic,) = request.topics
    assert topic.topic_id == TOPIC_ID.bytes if version >= 13 else topic.name == "flights"
    first, second, third = topic.partitions
    assert [p.partition for p in topic.partitions] == [0, 1, 2]
    assert first.records == b"abc" * 100 and second.records is None and third.records == b""
    assert first.records.obj is body.obj, "records must be a view of the request"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reads_back_through_kio(version: int) -> None:
    request = parse_produce(memoryview(kio_request(version)), version)
    answers = [PartitionAnswer(0, 0, 500, -1, 20), PartitionAnswer(1, 10, message="too large")]
    data = encode_produce([(request.topics[0], answers)], version)
    types = importlib.import_module(f"kio.schema.produce.v{version}.response")
    response, size = entity_reader(types.ProduceResponse)(data, 0)
    assert size == len(data)
    first, second = response.responses[0].partition_responses
    assert (first.index, int(first.error_code), first.base_offset) == (0, 0, 500)
    assert (second.index, int(second.error_code), second.base_offset) == (1, 10, -1)
    if version >= 5:
        assert first.log_start_offset == 20
    if version >= 8:
        assert second.error_message == "too large" and first.record_errors == ()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("message", [None, "refused"])
def test_a_response_of_one_partition_reads_back_through_kio(
    version: int, message: str | None
) -> None:
    request = parse_produce(memoryview(kio_request(version)), version)
    answer = PartitionAnswer(7, 0 if message is None else 10, 500, 3000, 20, message)
    data = encode_produce([(request.topics[0], [answer])], version)
    types = importlib.import_module(f"kio.schema.produce.v{version}.response")
    response, size = entity_reader(types.ProduceResponse)(data, 0)
    assert size == len(data)
    (topic,) = response.responses
    assert topic.topic_id == TOPIC_ID if version >= 13 else topic.name == "flights"
    (only,) = topic.partition_responses
    assert (only.index, int(only.error_code), only.base_offset) == (7, answer.error_code, 500)
    assert only.log_append_time is not None
    if version >= 5:
        assert only.log_start_offset == 20
    if version >= 8:
        assert only.error_message == message and only.record_errors == ()


@given(st.sampled_from(VERSIONS), st.data())
def test_cut_or_damaged_requests_give_only_our_error(version: int, data: st.DataObject) -> None:
    whole = bytearray(kio_request(version))
    cut = data.draw(st.integers(0, len(whole)))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for hostile in (whole, whole[:cut]):
        try:
            parse_produce(memoryview(bytes(hostile)), version)
        except MalformedRequestError:
            pass
