"""Metadata's answers, by struct: about each topic, with what a request's version has.

Where one broker leads them all, every partition of a count looks the same but for its index, so the
bytes are cached by (version, partition count, replicas).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import CHEAP
from penstock.kafka.replies import PIECE_BYTES, PIECE_ITEMS, Piece, PiecedReply, Reply
from penstock.kafka.shown_replicas import in_sync_min, replicas_of
from penstock.kafka.wire.decode import STEP_ITEMS
from penstock.kafka.wire.primitives import (
    INT16,
    INT32,
    NO_TAGS,
    count_bytes,
    string_bytes,
)
from penstock.model.steps import Steps
from penstock.placement.replicas import REPLICAS_MAX, ReplicaIds, in_sync
from penstock.placement.zones import zone_of
from penstock.security.acl import ResourceType

if TYPE_CHECKING:
    from penstock.state.read.view import Topic

FLEXIBLE_FROM: Final = 9
LOOKUP_BY_ID_FROM: Final = 12
_ROW_BYTES_MAX: Final = 26
"""The bytes of a partition besides the ids of its replicas, in version 8, which takes the most."""
ANSWER_BYTES: Final = 200
"""Bytes of memory per topic while an answer is made in pieces."""


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """The answer about one topic."""

    error: ErrorCode
    name: str | None
    topic_id: bytes
    partitions: int
    replicas: int = 0
    """How many a partition shows."""
    in_sync_min: int = 1
    row_bytes_max: int = 0
    """The most bytes that a partition takes in any version."""
    operations: int = UNKNOWN_OPERATIONS
    """The operations that the client may do on the topic, as bits."""


class KnownTopics:
    """Makes the answers of one request about topics that there are.

    Args:
        shows_operations: whether the answers say what the client may do with each topic.
    """

    def __init__(self, context: RequestContext, *, shows_operations: bool = False) -> None:
        self._access = context.access if shows_operations else None
        self._replicas = replicas_of(context)
        self._view = context.broker.view

    def answer(self, topic: "Topic") -> TopicAnswer:
        """Return the answer about a topic."""
        count = self._replicas.count(topic.replication_factor)
        least = in_sync_min(topic, self._view)
        ids = count + max(count, min(least, REPLICAS_MAX))
        operations = UNKNOWN_OPERATIONS
        if self._access is not None:
            operations = self._access.operations(ResourceType.TOPIC, topic.name)
        return TopicAnswer(
            ErrorCode.NONE,
            topic.name,
            topic.topic_id,
            topic.partitions,
            count,
            least,
            _ROW_BYTES_MAX + 4 * ids,
            operations,
        )


def row_bytes(version: int, answer: TopicAnswer) -> int:
    """Return the bytes of one partition."""
    return 6 + len(_row_end((0,) * answer.replicas, answer.in_sync_min, version, 0))


class TopicsWriter:
    """Writes what is said about topics, as things are now: later pieces of an answer agree with
    its length and with those before."""

    def __init__(self, context: RequestContext) -> None:
        self._version = version = context.api_version
        self._leader_epoch = context.broker.epoch
        self._replicas = replicas_of(context)
        self._flexible = version >= FLEXIBLE_FROM
        self._internal = b"\0" if version >= 1 else b""
        self._tags = NO_TAGS if self._flexible else b""
        self._tail_bytes = (4 if version >= 8 else 0) + len(self._tags)

    def whole(self, answers: Sequence[TopicAnswer]) -> Steps[bytes]:
        """The array of topics."""
        parts = [count_bytes(len(answers), flexible=self._flexible)]
        done = 0
        for answer in answers:
            parts += self._topic(answer)
            done += 1 + answer.partitions // CHEAP
            if done >= STEP_ITEMS:
                yield done
                done = 0
        return b"".join(parts)

    def length(self, answers: Sequence[TopicAnswer]) -> Steps[int]:
        """Return the number of bytes of the encoded array of topics."""
        found = len(count_bytes(len(answers), flexible=self._flexible))
        for number, answer in enumerate(answers, 1):
            found += sum(map(len, self._head(answer))) + self._tail_bytes
            found += len(count_bytes(answer.partitions, flexible=self._flexible))
            if answer.partitions:
                found += answer.partitions * row_bytes(self._version, answer)
            if not number % STEP_ITEMS:
                yield STEP_ITEMS
        return found

    def pieces(self, answers: Sequence[TopicAnswer]) -> Iterator[Piece]:
        """The array of topics, in pieces that are made when they are asked for."""
        parts = [count_bytes(len(answers), flexible=self._flexible)]
        length = items = 0
        for answer in answers:
            topic = self._topic(answer)
            parts += topic
            length += sum(map(len, topic))
            items += 1 + answer.partitions // CHEAP
            if length >= PIECE_BYTES or items >= PIECE_ITEMS:
                yield b"".join(parts), items
                parts, length, items = [], 0, 0
        yield b"".join(parts), items

    def _head(self, answer: TopicAnswer) -> list[bytes]:
        version, name = self._version, answer.name
        if name is None and version < LOOKUP_BY_ID_FROM:
            name = ""
        parts = [INT16.pack(answer.error), string_bytes(name, flexible=self._flexible)]
        if version >= 10:
            parts.append(answer.topic_id)
        parts.append(self._internal)
        return parts

    def _topic(self, answer: TopicAnswer) -> list[bytes]:
        parts = self._head(answer)
        version, epoch, least = self._version, self._leader_epoch, answer.in_sync_min
        if not answer.partitions:
            parts.append(count_bytes(0, flexible=self._flexible))
        elif (sole := self._replicas.sole) is not None:
            shown = (sole,) * answer.replicas
            parts.append(encode_partitions(answer.partitions, version, shown, least, epoch))
        else:
            rows = self._replicas.of_topic(answer.topic_id, 0, answer.partitions, answer.replicas)
            parts.append(_encode_rows(rows, version, least, epoch))
        if version >= 8:
            parts.append(INT32.pack(answer.operations))
        parts.append(self._tags)
        return parts


def response(
    context: RequestContext, topics: bytes, *, operations: int = UNKNOWN_OPERATIONS
) -> Reply:
    """An answer with an array of topics. `operations`: what the client may do with the cluster."""
    head, tail = _around(context, operations)
    return [b"".join((head, topics, tail))]


def long_response(
    context: RequestContext,
    topics: Iterator[Piece],
    *,
    topic_bytes: int,
    held_bytes: int,
    operations: int = UNKNOWN_OPERATIONS,
) -> PiecedReply:
    """An answer with an array of topics of that length, in pieces."""
    head, tail = _around(context, operations)

    def pieces() -> Iterator[Piece]:
        yield head, 0
        yield from topics
        yield tail, 0

    return PiecedReply(
        pieces(), byte_count=len(head) + topic_bytes + len(tail), held_bytes=held_bytes
    )


def slices(data: bytes) -> Iterator[Piece]:
    """Bytes that others hold as well, in pieces."""
    view = memoryview(data)
    for start in range(0, len(view), PIECE_BYTES):
        yield view[start : start + PIECE_BYTES], 1


def _around(context: RequestContext, operations: int) -> tuple[bytes, bytes]:
    """Encode the fields before the array of topics, and the fields after it."""
    version, broker = context.api_version, context.broker
    flexible = version >= FLEXIBLE_FROM
    tags = NO_TAGS if flexible else b""
    nodes = context.nodes.all()
    head = [
        INT32.pack(0) if version >= 3 else b"",
        count_bytes(len(nodes), flexible=flexible),
    ]
    for node in nodes:
        head += (
            INT32.pack(node.node_id),
            string_bytes(node.host, flexible=flexible),
            INT32.pack(node.port),
            string_bytes(node.rack, flexible=flexible) if version >= 1 else b"",
            tags,
        )
    controller = context.nodes.controller(zone_of(context.client_id))
    head += [
        string_bytes(broker.cluster_id, flexible=flexible) if version >= 2 else b"",
        INT32.pack(controller) if version >= 1 else b"",
    ]
    tail = [
        INT32.pack(operations) if 8 <= version <= 10 else b"",
        INT16.pack(0) if version >= 13 else b"",
        tags,
    ]
    return b"".join(head), b"".join(tail)


@lru_cache(maxsize=64)
def encode_partitions(
    count: int, version: int, replicas: ReplicaIds, in_sync_min: int, leader_epoch: int
) -> bytes:
    """The array of a topic's partitions, all with the same replicas."""
    return _encode_rows((replicas,) * count, version, in_sync_min, leader_epoch)


def _encode_rows(
    rows: Sequence[ReplicaIds], version: int, in_sync_min: int, leader_epoch: int
) -> bytes:
    """The array of a topic's partitions, by their replicas."""
    ends = {shown: _row_end(shown, in_sync_min, version, leader_epoch) for shown in set(rows)}
    parts = [count_bytes(len(rows), flexible=version >= FLEXIBLE_FROM)]
    parts.extend(b"\0\0" + INT32.pack(index) + ends[shown] for index, shown in enumerate(rows))
    return b"".join(parts)


@lru_cache(maxsize=8192)
def _row_end(replicas: ReplicaIds, in_sync_min: int, version: int, leader_epoch: int) -> bytes:
    """Encode the fields after a partition's index. The first replica leads."""
    flexible = version >= FLEXIBLE_FROM
    rest = [
        INT32.pack(replicas[0]),
        INT32.pack(leader_epoch) if version >= 7 else b"",
        _ids(replicas, flexible=flexible),
        _ids(in_sync(replicas, in_sync_min), flexible=flexible),
        count_bytes(0, flexible=flexible) if version >= 5 else b"",
        NO_TAGS if flexible else b"",
    ]
    return b"".join(rest)


def _ids(nodes: ReplicaIds, *, flexible: bool) -> bytes:
    return count_bytes(len(nodes), flexible=flexible) + b"".join(map(INT32.pack, nodes))
