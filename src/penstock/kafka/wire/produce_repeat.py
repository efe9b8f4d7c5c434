"""Produce requests that begin as one before. Pure.

librdkafka sends each partition's batch in a request of its own, so that a producer's requests
differ in the partition and the records alone. Comparing costs a fifth of parsing.

Of flexible versions with one topic and one partition, and no tagged fields:

| bytes | field |
| --- | --- |
| as before | transactional id, acks, timeout, the topic, and that there is one of each |
| 4 | partition |
| 1 to 5 | length of the records + 1 |
| the records | |
| 3, all zero | no tagged fields: of the partition, of the topic, of the request |
"""

from typing import Final

from penstock.kafka.wire.primitives import INT32, MALFORMED, read_uvarint, string_bytes, uvarint
from penstock.kafka.wire.produce_codec import (
    ACKS_TIMEOUT,
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    PartitionData,
    ProduceRequest,
    TopicData,
)

HEAD_BYTES_MAX: Final = 512
"""A connection remembers heads of at most this many bytes."""
_NO_TAGS: Final[bytes] = b"\0\0\0"
_ONE: Final = uvarint(2)
"""Length of an array of one."""


class KnownProduce:
    """The beginning of a request that was parsed.

    Args:
        head: the request's body up to the partition's number.
        version: the version of the API.
        request: the parsed request.
    """

    __slots__ = (
        "_acks",
        "_head",
        "_name",
        "_timeout_ms",
        "_topic_id",
        "_transactional_id",
        "_version",
    )

    def __init__(self, head: bytes, version: int, request: ProduceRequest) -> None:
        self._head = head
        self._version = version
        self._transactional_id = request.transactional_id
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._name = request.topics[0].name
        self._topic_id = request.topics[0].topic_id

    def parse(self, body: memoryview, version: int) -> ProduceRequest | None:
        """A request that begins so; None: another one, or one that isn't whole."""
        head = self._head
        at = len(head)
        if version != self._version or body[:at] != head:
            return None
        try:
            (partition,) = INT32.unpack_from(body, at)
            length, start = read_uvarint(body, at + INT32.size)
        except MALFORMED:
            return None
        end = start + length - 1
        if not length or body[end:] != _NO_TAGS:
            return None
        return ProduceRequest(
            self._transactional_id,
            self._acks,
            self._timeout_ms,
            [TopicData(self._name, self._topic_id, [PartitionData(partition, body[start:end])])],
        )


def known_produce(body: memoryview, version: int, request: ProduceRequest) -> KnownProduce | None:
    """Return what to remember of a parsed request; None: the request has another shape."""
    topics = request.topics
    if version < FLEXIBLE_FROM or len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    # Encoded, not cut out of the body: counted from its end, what looks like a partition may lie in
    # a tagged field, and the field's head would be known.
    head = (
        string_bytes(request.transactional_id, flexible=True)
        + ACKS_TIMEOUT.pack(request.acks, request.timeout_ms)
        + _ONE
        + _topic_bytes(topics[0], version)
        + _ONE
    )
    if len(head) > HEAD_BYTES_MAX:
        return None
    known = KnownProduce(head, version, request)
    return known if known.parse(body, version) is not None else None


def _topic_bytes(topic: TopicData, version: int) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic.topic_id
    return string_bytes(topic.name, flexible=True)
