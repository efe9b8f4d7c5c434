"""Metadata 0 to 13: brokers, topics, partitions; creates topics that a client asks for.

A partition's leader is any agent of the client's zone (`kafka.nodes`). What is known is told at
once, also while the journal is away; that there is no such topic, only of the present.

Decoded and encoded by struct: every client asks at its start and every few minutes, the answer
for 5,000 partitions takes kio's writer 47 ms, and a server must answer this before it has time
to import kio. Where one broker leads them all, every partition of a count looks the same but for
its index, so the bytes are cached by (version, partition count); and the answer about all topics
by the view's generation and the leaders' candidates.

Leader epochs are the broker's (of the log's last restore). Authorized operations are INT_MIN, "not
known", until there are ACLs. Topic ids are understood from version 12 on (KIP-516).
"""

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from penstock.kafka import fresh
from penstock.kafka.context import Reply, RequestContext
from penstock.kafka.decode import Cursor
from penstock.kafka.errors import ErrorCode, MalformedRequestError, error_code
from penstock.kafka.topic_names import find_collision, name_problem
from penstock.kafka.topic_plan import new_topic_id
from penstock.kafka.wire import (
    NO_TAGS,
    NO_UUID,
    array_length,
    pack_int16,
    pack_int32,
    string,
    uvarint,
)
from penstock.metadata.answers import Refused
from penstock.metadata.commands import CreateTopic
from penstock.model.errors import PenstockError
from penstock.placement.leaders import Leaders
from penstock.placement.zones import zone_of

if TYPE_CHECKING:
    from penstock.metadata.view import MetadataView, Topic

API_KEY: Final = 3
VERSIONS: Final = range(14)
RAW: Final = True

FLEXIBLE_FROM: Final = 9
IDS_IN_REQUEST_FROM: Final = 10
LOOKUP_BY_ID_FROM: Final = 12
OPERATIONS_UNKNOWN: Final = pack_int32(-(1 << 31))


@dataclass(frozen=True, slots=True)
class _Request:
    """`topics` holds (topic id, name) pairs; None asks for all."""

    topics: list[tuple[bytes, str | None]] | None
    may_create: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is said about one topic."""

    error: ErrorCode
    name: str | None
    topic_id: bytes
    partitions: int


def serve(context: RequestContext, body: memoryview) -> "Reply | asyncio.Future[Reply]":
    """Answer at once, or after the topics that are to be created are.

    Raises:
        MalformedRequestError: the body is not such a request.
    """
    request = _decode(context.api_version, body)
    broker = context.broker
    if request.topics is None:
        return _response(context, _all_topics(context))
    certainty = fresh.first(context)
    answers = [_answer(broker.view, topic_id, name, certainty) for topic_id, name in request.topics]
    if request.may_create and broker.settings.auto_create_topics:
        missing = [
            answer.name
            for answer in answers
            if answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and answer.name is not None
        ]
        if missing:
            # Owned by the connection, which cancels it when its peer is gone.
            return asyncio.get_running_loop().create_task(
                _create_and_answer(context, request.topics, list(dict.fromkeys(missing)))
            )
    if certainty.doubted:
        return asyncio.get_running_loop().create_task(_confirm_and_answer(context, request.topics))
    return _response(context, _encode_topics(answers, context))


async def _confirm_and_answer(
    context: RequestContext, topics: Sequence[tuple[bytes, str | None]]
) -> Reply:
    certainty = await fresh.second(context)
    view = context.broker.view
    answers = [_answer(view, topic_id, name, certainty) for topic_id, name in topics]
    return _response(context, _encode_topics(answers, context))


async def _create_and_answer(
    context: RequestContext, topics: Sequence[tuple[bytes, str | None]], missing: Sequence[str]
) -> Reply:
    broker = context.broker
    refused: dict[str, ErrorCode] = {}
    commands = []
    for name in missing:
        if find_collision(name, (topic.name for topic in broker.view.topics())) is not None:
            refused[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            continue
        commands.append(
            CreateTopic(
                name=name,
                topic_id=new_topic_id(broker.random),
                partitions=broker.settings.default_partitions,
            )
        )
    try:
        created = await broker.committer.commit(commands) if commands else []
    except PenstockError as error:
        refused.update((command.name, error_code(error)) for command in commands)
    else:
        for command, answer in zip(commands, created, strict=True):
            # Refused when another request created it meanwhile: then it is in the view by now.
            if isinstance(answer, Refused) and broker.view.topic(command.name) is None:
                refused[command.name] = ErrorCode.LEADER_NOT_AVAILABLE
    # Applied here, the commit is the present; without one it has to be asked for.
    certainty = fresh.FINAL if commands and not refused else await fresh.second(context)
    answers = []
    for topic_id, asked in topics:
        if asked is not None and asked in refused:
            answers.append(_Answer(refused[asked], asked, NO_UUID, 0))
        else:
            answers.append(_answer(broker.view, topic_id, asked, certainty))
    return _response(context, _encode_topics(answers, context))


def _answer(
    view: "MetadataView", topic_id: bytes, name: str | None, certainty: fresh.Certainty
) -> _Answer:
    if name is None:
        found = view.topic_by_id(topic_id)
        if found is None:
            error = certainty.no(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.LEADER_NOT_AVAILABLE)
            return _Answer(error, None, topic_id, 0)
        return _known(found)
    found = view.topic(name)
    if found is not None:
        return _known(found)
    if name_problem(name) is not None:
        return _Answer(ErrorCode.INVALID_TOPIC_EXCEPTION, name, NO_UUID, 0)
    # While it can't be known: an error that clients retry for as long as they like, where "there
    # is no such topic" is final to some.
    error = certainty.no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
    return _Answer(error, name, NO_UUID, 0)


def _known(topic: "Topic") -> _Answer:
    return _Answer(ErrorCode.NONE, topic.name, topic.topic_id, topic.partitions)


def _leaders(context: RequestContext) -> Leaders:
    return context.broker.nodes.leaders(zone_of(context.client_id))


# -- decoding ----------------------------------------------------------------------------------


def _decode(version: int, body: memoryview) -> _Request:
    cursor = Cursor(body)
    flexible = version >= FLEXIBLE_FROM
    count = cursor.uvarint() - 1 if flexible else _int32(cursor)
    topics: list[tuple[bytes, str | None]] | None
    if count < 0:
        if count != -1 or version == 0:
            raise MalformedRequestError("decode", "Metadata", f"an array of {count} topics")
        topics = None
    else:
        topics = [_decode_topic(cursor, version) for _ in range(cursor.items(count))]
        # Before null could be told from empty, empty meant all.
        if version == 0 and not topics:
            topics = None
    may_create = version < 4 or cursor.body[cursor.skip(1)] != 0
    if version >= 8:
        # Authorized operations of the cluster (8 to 10) and of topics: never known.
        cursor.skip(2 if version <= 10 else 1)
    if flexible:
        _skip_tags(cursor)
    # What follows the last field is ignored, as Kafka does: librdkafka 2.16 sends three bytes
    # more than version 13 has.
    return _Request(topics, may_create)


def _decode_topic(cursor: Cursor, version: int) -> tuple[bytes, str | None]:
    topic_id = bytes(cursor.take(16)) if version >= IDS_IN_REQUEST_FROM else NO_UUID
    flexible = version >= FLEXIBLE_FROM
    length = cursor.uvarint() - 1 if flexible else _int16(cursor)
    if length < 0:
        # Kafka: a name may be missing only where a topic id says which topic is meant.
        if length != -1 or version < LOOKUP_BY_ID_FROM:
            raise MalformedRequestError("decode", "Metadata", f"a topic name of {length} bytes")
        name = None
    else:
        try:
            name = str(cursor.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequestError("decode", "Metadata", str(error)) from error
    if flexible:
        _skip_tags(cursor)
    if version >= LOOKUP_BY_ID_FROM and topic_id != NO_UUID:
        name = None
    return topic_id, name


def _int16(cursor: Cursor) -> int:
    return cast(int, struct.unpack_from(">h", cursor.body, cursor.skip(2))[0])


def _int32(cursor: Cursor) -> int:
    return cast(int, struct.unpack_from(">i", cursor.body, cursor.skip(4))[0])


def _skip_tags(cursor: Cursor) -> None:
    for _ in range(cursor.uvarint()):
        cursor.uvarint()
        cursor.skip(cursor.uvarint())


# -- encoding ----------------------------------------------------------------------------------


def _response(context: RequestContext, topics: bytes) -> Reply:
    version, broker = context.api_version, context.broker
    flexible = version >= FLEXIBLE_FROM
    tags = NO_TAGS if flexible else b""
    nodes = broker.nodes.all()
    parts = [
        pack_int32(0) if version >= 3 else b"",
        array_length(len(nodes), flexible=flexible),
    ]
    for node in nodes:
        parts += (
            pack_int32(node.node_id),
            string(node.host, flexible=flexible),
            pack_int32(node.port),
            string(node.rack, flexible=flexible) if version >= 1 else b"",
            tags,
        )
    controller = broker.nodes.controller(zone_of(context.client_id))
    parts += [
        string(broker.cluster_id, flexible=flexible) if version >= 2 else b"",
        pack_int32(controller) if version >= 1 else b"",
        topics,
        OPERATIONS_UNKNOWN if 8 <= version <= 10 else b"",
        pack_int16(0) if version >= 13 else b"",
        tags,
    ]
    return [b"".join(parts)]


class _AllTopics:
    """The encoded array of all topics, as of one generation of the view."""

    __slots__ = ("by_version", "generation", "view")

    def __init__(self) -> None:
        self.view: MetadataView | None = None
        self.generation = -1
        self.by_version: dict[tuple[int, int, tuple[int, ...]], bytes] = {}


_cache: Final = _AllTopics()
_CACHED_MAX: Final = 64
"""Encodings: of 14 versions, per zone, as agents come and go."""


def _all_topics(context: RequestContext) -> bytes:
    view = context.broker.view
    generation = view.generation
    if _cache.view is not view or _cache.generation != generation:
        _cache.view, _cache.generation = view, generation
        _cache.by_version.clear()
    key = (context.api_version, context.broker.epoch, _leaders(context).candidates)
    encoded = _cache.by_version.get(key)
    if encoded is None:
        encoded = _encode_topics([_known(topic) for topic in view.topics()], context)
        if len(_cache.by_version) >= _CACHED_MAX:
            _cache.by_version.clear()
        _cache.by_version[key] = encoded
    return encoded


def _encode_topics(answers: Sequence[_Answer], context: RequestContext) -> bytes:
    version, leader_epoch = context.api_version, context.broker.epoch
    leaders = _leaders(context)
    sole = leaders.sole
    flexible = version >= FLEXIBLE_FROM
    tail = (OPERATIONS_UNKNOWN if version >= 8 else b"") + (NO_TAGS if flexible else b"")
    internal = b"\0" if version >= 1 else b""
    parts = [array_length(len(answers), flexible=flexible)]
    for answer in answers:
        name = answer.name if answer.name is not None or version >= LOOKUP_BY_ID_FROM else ""
        parts.append(pack_int16(answer.error))
        parts.append(string(name, flexible=flexible))
        if version >= 10:
            parts.append(answer.topic_id)
        parts.append(internal)
        if sole is not None or not answer.partitions:
            parts.append(_encode_partitions(answer.partitions, version, sole or 0, leader_epoch))
        else:
            led_by = leaders.of_topic(answer.topic_id, 0, answer.partitions)
            parts.append(_encode_led(led_by, version, leader_epoch))
        parts.append(tail)
    return b"".join(parts)


@lru_cache(maxsize=64)
def _encode_partitions(count: int, version: int, node_id: int, leader_epoch: int) -> bytes:
    """The array of a topic's partitions, all led by `node_id`."""
    return _encode_led((node_id,) * count, version, leader_epoch)


def _encode_led(led_by: Sequence[int], version: int, leader_epoch: int) -> bytes:
    """The array of a topic's partitions, by their leaders."""
    flexible = version >= FLEXIBLE_FROM
    ends = {leader: _row_end(leader, version, leader_epoch) for leader in set(led_by)}
    parts = [uvarint(len(led_by) + 1) if flexible else pack_int32(len(led_by))]
    parts.extend(b"\0\0" + pack_int32(index) + ends[leader] for index, leader in enumerate(led_by))
    return b"".join(parts)


def _row_end(node_id: int, version: int, leader_epoch: int) -> bytes:
    """What follows a partition's index: the leader is the only replica that is shown."""
    flexible = version >= FLEXIBLE_FROM
    node = pack_int32(node_id)
    alone = array_length(1, flexible=flexible) + node
    rest = [
        node,
        pack_int32(leader_epoch) if version >= 7 else b"",
        alone,
        alone,
        array_length(0, flexible=flexible) if version >= 5 else b"",
        NO_TAGS if flexible else b"",
    ]
    return b"".join(rest)
