"""The hand-written Fetch codec against kio's, for every version."""

import importlib
import io
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i32, i32Timedelta, i64

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.wire.fetch_codec import PartitionData, encode_fetch
from support.parsing import parse_fetch

VERSIONS = range(4, 19)
TOPIC_ID = uuid.UUID(int=77)


def kio_request(version: int, **changes: Any) -> bytes:
    types = importlib.import_module(f"kio.schema.fetch.v{version}.request")

    def make(name: str, **fields: Any) -> Any:
        kind = getattr(types, name)
        known = set(kind.__dataclass_fields__)
        return kind(**{key: value for key, value in fields.items() if key in known})

    partition = make(
        "FetchPartition",
        partition=i32(3),
        current_leader_epoch=i32(5),
        fetch_offset=i64(1 << 40),
        last_fetched_epoch=i32(-1),
        log_start_offset=i64(-1),
        partition_max_bytes=i32(1 << 20),
    )
    topic = make("FetchTopic", topic="flights", topic_id=TOPIC_ID, partitions=(partition,) * 2)
    fields: dict[str, Any] = {
        "replica_id": i32(-1),
        "max_wait": i32Timedelta.parse(timedelta(milliseconds=500)),
        "min_bytes": i32(1),
        "max_bytes": i32(50 << 20),
        "isolation_level": i8(1),
        "session_id": i32(9),
        "session_epoch": i32(2),
        "topics": (topic,),
        "rack_id": "zone-a",
    }
    if version >= 7:
        fields["forgotten_topics_data"] = (
            make("ForgottenTopic", topic="gone", topic_id=TOPIC_ID, partitions=(i32(1), i32(2))),
        )
    buffer = io.BytesIO()
    entity = make("FetchRequest", **(fields | changes))
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_kio_wrote_it(version: int) -> None:
    request = parse_fetch(memoryview(kio_request(version)), version)
    assert (request.wait_ms_max, request.bytes_min, request.bytes_max) == (500, 1, 50 << 20)
    assert request.isolation_level == 1
    topic = TOPIC_ID.bytes if version >= 13 else "flights"
    wanted = request.partitions[1]
    assert len(request.partitions) == 2
    assert (wanted.topic, wanted.partition, wanted.fetch_offset) == (topic, 3, 1 << 40)
    assert wanted.bytes_max == 1 << 20
    assert wanted.leader_epoch == (5 if version >= 9 else -1)
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (9, 2)
        gone = TOPIC_ID.bytes if version >= 13 else "gone"
        assert request.forgotten == [(gone, 1), (gone, 2)]
    else:
        assert (request.session_id, request.session_epoch) == (0, -1)
    assert request.rack == ("zone-a" if version >= 11 else "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reads_back_through_kio(version: int) -> None:
    topic: str | bytes = TOPIC_ID.bytes if version >= 13 else "flights"
    other: str | bytes = uuid.UUID(int=78).bytes if version >= 13 else "other"
    batches = [memoryview(b"x" * 200), memoryview(b"y" * 100)]
    aborted = [(number, 1 << 40 | number) for number in range(200)]
    parts = encode_fetch(
        [
            PartitionData(topic, 0, 0, 10, 10, 2, batches, 300),
            PartitionData(topic, 1, 1, 7, 7, 3),
            PartitionData(other, 0, 0, 5, 5, 0, aborted=aborted),
        ],
        version,
        session_id=4,
        read_committed=True,
    )
    assert any(part is batches[0] for part in parts), "records must not be copied"
    data = b"".join(parts)
    types = importlib.import_module(f"kio.schema.fetch.v{version}.response")
    response, size = entity_reader(types.FetchResponse)(data, 0)
    assert size == len(data)
    first, second = response.responses
    assert (first.topic_id.bytes if version >= 13 else first.topic) == topic
    assert [p.partition_index for p in first.partitions] == [0, 1]
    assert first.partitions[0].records == b"x" * 200 + b"y" * 100
    assert [int(p.error_code) for p in first.partitions] == [0, 1]
    assert first.partitions[1].high_watermark == first.partitions[1].last_stable_offset == 7
    if version >= 5:
        assert first.partitions[1].log_start_offset == 3
    assert first.partitions[0].aborted_transactions == ()
    assert len(second.partitions) == 1
    listed = second.partitions[0].aborted_transactions
    assert [(int(one.producer_id), one.first_offset) for one in listed] == aborted
    if version >= 7:
        assert response.session_id == 4


@given(st.sampled_from(VERSIONS), st.data())
def test_cut_or_damaged_requests_give_only_our_error(version: int, data: st.DataObject) -> None:
    whole = bytearray(kio_request(version))
    cut = data.draw(st.integers(0, len(whole)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    for hostile in (whole, whole[:cut]):
        try:
            parse_fetch(memoryview(bytes(hostile)), version)
        except MalformedRequestError:
            pass
