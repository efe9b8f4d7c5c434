"""Produce requests and responses, versions 3 to 13, by hand: records are never copied.

By hand because this is the hottest path: a schema library would copy the records out of the
request. Source: ProduceRequest.json and ProduceResponse.json of Apache Kafka 4.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.kafka.wire.decode import ITEMS_MAX
from penstock.kafka.wire.primitives import (
    INT32,
    MALFORMED,
    count_bytes,
    malformed,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
    string_bytes,
    uvarint,
)
from penstock.model.steps import Steps, at_once
from penstock.records.batch import RecordError

STEP_ITEMS: Final = 500
"""Topics and partitions that are read, or written, at a time: more than an ordinary request has,
which has its answer without a pause."""
ITEM_COST: Final = 5
"""So many are read, or written, in the time of one item of a turn (`penstock.system.turns`)."""
TEXTS_BYTES_MAX: Final = 16 << 10
"""Messages and record errors of one answer. Further partitions have their error codes alone."""
ANSWER_BYTES: Final = 40
"""Bytes of a partition in an answer, without texts."""
LONG_ANSWER_BYTES: Final = 150
"""Bytes of memory for a partition's answer while its records are appended."""
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13

ACKS_TIMEOUT: Final = Struct(">hi")
_INDEX_LENGTH: Final = Struct(">ii")
_ANSWER_V3: Final = Struct(">ihqq")
_ANSWER: Final = Struct(">ihqqq")
_END_OF_ONE: Final = b"\x01\0\0" + b"\0" + b"\0\0\0\0\0"
"""The fields after a lone answer of a flexible version: no refused batches, no message, tagged
fields of the partition, those of the topic, no throttling, those of the response."""


@dataclass(slots=True)
class PartitionData:
    """One partition's records in a request; `records` is a view into the request."""

    partition: int
    records: memoryview | None


@dataclass(slots=True)
class TopicData:
    """One topic: `name` before version 13, `topic_id` from it on."""

    name: str
    topic_id: bytes
    partitions: list[PartitionData]


@dataclass(slots=True)
class ProduceRequest:
    """A parsed request. `timeout_ms` is how long the client waits for the acknowledgement."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


@dataclass(slots=True)
class PartitionAnswer:
    """The answer for a partition's records. Offsets and times are -1 where there is an error."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: tuple[RecordError, ...] = ()
    """The records that a batch was refused for (KIP-467), from version 8 on."""


def acks_of(body: memoryview, version: int) -> int:
    """Return the `acks` that `produce_steps` gives, of a request whose beginning is known to be
    right."""
    _, position = read_string(body, 0, flexible=version >= FLEXIBLE_FROM)
    return int(ACKS_TIMEOUT.unpack_from(body, position)[0])


def wants_no_answer(body: memoryview, version: int) -> bool:
    """Whether a request that isn't read yet has acks=0."""
    try:
        return acks_of(body, version) == 0
    except MALFORMED:
        return False


def produce_steps(body: memoryview, version: int) -> Steps[ProduceRequest]:
    """Parse the body of a Produce request, with a pause after every STEP_ITEMS topics and
    partitions.

    Raises: MalformedRequestError.
    """
    try:
        flexible = version >= FLEXIBLE_FROM
        transactional_id, position = read_string(body, 0, flexible=flexible)
        acks, timeout_ms = ACKS_TIMEOUT.unpack_from(body, position)
        count, position = read_count(body, position + 6, flexible=flexible)
        topics = []
        items = count
        left = STEP_ITEMS
        for _ in range(count):
            topic, wanted, position = _parse_topic(body, position, version)
            topics.append(topic)
            items += wanted
            if items > ITEMS_MAX:
                raise ValueError(f"more than {ITEMS_MAX} items allowed")
            while wanted > left:
                position = _parse_partitions(body, position, version, left, topic.partitions)
                wanted -= left
                left = STEP_ITEMS
                yield STEP_ITEMS // ITEM_COST
            position = _parse_partitions(body, position, version, wanted, topic.partitions)
            if flexible:
                position = skip_tags(body, position)
            left -= wanted + 1
            if left <= 0:
                left = STEP_ITEMS
                yield STEP_ITEMS // ITEM_COST
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)
    except MALFORMED as error:
        raise malformed("Produce", version, error) from error


def _parse_topic(body: memoryview, position: int, version: int) -> tuple[TopicData, int, int]:
    """A topic without its partitions, how many they are, and where they begin."""
    flexible = version >= FLEXIBLE_FROM
    name = ""
    topic_id = b""
    if version >= TOPIC_IDS_FROM:
        topic_id = bytes(body[position : position + 16])
        position += 16
    else:
        named, position = read_string(body, position, flexible=flexible)
        if named is None:
            raise ValueError("topic name is null")
        name = named
    count, position = read_count(body, position, flexible=flexible)
    return TopicData(name, topic_id, []), count, position


def _parse_partitions(
    body: memoryview, position: int, version: int, count: int, partitions: list[PartitionData]
) -> int:
    flexible = version >= FLEXIBLE_FROM
    for _ in range(count):
        if flexible:
            partition = INT32.unpack_from(body, position)[0]
            length, position = read_uvarint(body, position + 4)
            length -= 1
        else:
            partition, length = _INDEX_LENGTH.unpack_from(body, position)
            position += 8
        records = None
        if length >= 0:
            end = position + length
            if end > len(body):
                raise IndexError(f"records of {length} bytes run past the request")
            records = body[position:end]
            position = end
        if flexible:
            position = skip_tags(body, position)
        partitions.append(PartitionData(partition, records))
    return position


def encode_produce(topics: list[tuple[TopicData, list[PartitionAnswer]]], version: int) -> bytes:
    """The body of a Produce response; no throttling."""
    flexible = version >= FLEXIBLE_FROM
    if flexible and len(topics) == 1:
        topic, answers = topics[0]
        if len(answers) == 1 and answers[0].message is None:
            name = topic.topic_id if version >= TOPIC_IDS_FROM else _compact(topic.name)
            return b"\x02" + name + b"\x02" + _packed(answers[0]) + _END_OF_ONE
    return bytes(at_once(answer_steps(topics, version)))


def answer_steps(
    topics: list[tuple[TopicData, list[PartitionAnswer]]], version: int
) -> Steps[bytearray]:
    """The same of any number of answers, with a pause after every STEP_ITEMS of them."""
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(count_bytes(len(topics), flexible=flexible))
    left = STEP_ITEMS
    for topic, answers in topics:
        if version >= TOPIC_IDS_FROM:
            out += topic.topic_id
        else:
            out += string_bytes(topic.name, flexible=flexible)
        out += count_bytes(len(answers), flexible=flexible)
        left -= 1
        for answer in answers:
            _encode_answer(out, answer, version)
            left -= 1
            if left <= 0:
                left = STEP_ITEMS
                yield STEP_ITEMS // ITEM_COST
        if flexible:
            out.append(0)
        if left <= 0:
            left = STEP_ITEMS
            yield STEP_ITEMS // ITEM_COST
    out += b"\x00\x00\x00\x00"
    if flexible:
        out.append(0)
    return out


def _compact(name: str) -> bytes:
    data = name.encode()
    return uvarint(len(data) + 1) + data


def _packed(answer: PartitionAnswer) -> bytes:
    return _ANSWER.pack(
        answer.partition,
        answer.error_code,
        answer.base_offset,
        answer.log_append_time,
        answer.log_start_offset,
    )


def _encode_answer(out: bytearray, answer: PartitionAnswer, version: int) -> None:
    if version >= 5:
        out += _packed(answer)
    else:
        out += _ANSWER_V3.pack(
            answer.partition, answer.error_code, answer.base_offset, answer.log_append_time
        )
    if version >= 8:
        flexible = version >= FLEXIBLE_FROM
        out += count_bytes(len(answer.record_errors), flexible=flexible)
        for index, message in answer.record_errors:
            out += INT32.pack(index) + string_bytes(message, flexible=flexible)
            if flexible:
                out.append(0)
        out += string_bytes(answer.message, flexible=flexible)
        if flexible:
            out.append(0)
