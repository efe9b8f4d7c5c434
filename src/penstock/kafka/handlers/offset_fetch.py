"""OffsetFetch 1 to 10: how far a group has read; many groups from version 8 on, topics by id from
version 10 on.

A partition without a committed offset, and every partition of a group that is not there, is
answered with -1 and no error. With `require_stable` (7 and later, KIP-447) a partition that an open
transaction has an offset of is answered with UNSTABLE_OFFSET_COMMIT, and clients ask again. A
group, topic or partition that is named more than once is answered once.

Answers are of the present: a group's offsets must not go back when its coordinator moves.
"""

import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.groups.errors import GroupError
from penstock.groups.offsets import CommittedOffset, PartitionId
from penstock.groups.ownership import NotServedError, told
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import CHEAP
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts, Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError
from penstock.model.topic_names import NAME_LENGTH_MAX
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v7 import request as v7
    from kio.schema.offset_fetch.v9 import request as v9
    from kio.schema.offset_fetch.v10 import request as v10

    _Request = v7.OffsetFetchRequest | v9.OffsetFetchRequest | v10.OffsetFetchRequest
    _Group = v9.OffsetFetchRequestGroup | v10.OffsetFetchRequestGroup
    _RequestTopic = (
        v7.OffsetFetchRequestTopic | v9.OffsetFetchRequestTopics | v10.OffsetFetchRequestTopics
    )


FLEXIBLE_FROM: Final = 6
TOPIC_IDS_FROM: Final = 10
GROUP_COST: Final = 4
"""The cost of a group, in items: SQL looks up a group that isn't in memory."""
GROUP_BYTES: Final = 12
TOPIC_BYTES: Final = 24
PARTITION_BYTES: Final = 100
"""Held of a partition while it is looked up, without its metadata."""
ALL: Final = 1 << 40
"""More partitions than can be asked for: all that have offsets."""
NO_OFFSET: Final = CommittedOffset(-1, -1, "")


class _Topic(NamedTuple):
    """A topic of the answer. Its partitions are looked up when they are encoded: of one topic a
    request may name all that it can name."""

    name: str | None
    topic_id: uuid.UUID | None
    numbers: Iterable[int]
    stored_id: bytes | None = None
    """The id under which the group's offsets are stored; None: there are no offsets."""
    error: int = ErrorCode.NONE


_Offsets = Mapping[PartitionId, CommittedOffset]


async def handle(context: RequestContext, request: "_Request") -> Answer:
    """Look the offsets of all groups up."""
    version = context.api_version
    types = response_types("offset_fetch", version)
    known = await fresh.confirm(context)
    bound = await _bound(context, request) if known else 0
    waiting = context.reserve_answer(bound)
    if waiting is not None:
        return waiting
    return await _look_up(context, types, request, known=known)


async def _look_up(
    context: RequestContext, types: ModuleType, request: "_Request", *, known: bool
) -> Entity:
    if not hasattr(request, "groups"):
        asked = await _joined(context, request.topics)
        stable = request.require_stable
        error, topics, offsets, unstable = await _of_group(
            context, request.group_id, asked, known=known, stable=stable
        )
        return build(
            types.OffsetFetchResponse,
            error_code=error,
            topics=await _topics(
                context,
                types.OffsetFetchResponseTopic,
                types.OffsetFetchResponsePartition,
                topics,
                offsets,
                unstable,
            ),
        )
    groups = ArrayWriter(types.OffsetFetchResponseGroup)
    members = {group.group_id: (group.member_id, group.member_epoch) for group in request.groups}
    async for group_id, asked in _joined_groups(context, request.groups):
        refused = context.access.group(Operation.DESCRIBE, group_id)
        if refused:
            groups.add(group_id=group_id, error_code=refused, topics=())
            continue
        stale = context.broker.groups.may_fetch(group_id, *members[group_id])
        if stale is not GroupError.NONE:
            stale = await fresh.group_error(context, group_id, stale)
            groups.add(group_id=group_id, error_code=stale, topics=())
            continue
        error, topics, offsets, unstable = await _of_group(
            context, group_id, asked, known=known, stable=request.require_stable
        )
        groups.add(
            group_id=group_id,
            error_code=error,
            topics=await _topics(
                context,
                types.OffsetFetchResponseTopics,
                types.OffsetFetchResponsePartitions,
                topics,
                offsets,
                unstable,
            ),
        )
    return build(types.OffsetFetchResponse, groups=groups.encoded())


async def _bound(context: RequestContext, request: "_Request") -> int:
    """The most bytes of the answer."""
    turns = context.broker.turns
    groups: Sequence[_Group | v7.OffsetFetchRequest]
    groups = request.groups if hasattr(request, "groups") else (request,)
    asked: dict[str, int] = {}
    found = BASE_BYTES
    async for group in turns.each(groups):
        if group.topics is None:
            asked[group.group_id] = ALL
            continue
        partitions = 0
        for topic in group.topics:
            partitions += len(topic.partition_indexes)
            name = None if hasattr(topic, "topic_id") else topic.name
            found += TOPIC_BYTES + text_bytes(name)
        asked[group.group_id] = partitions + asked.get(group.group_id, 0)
        if turns.spend(len(group.topics) // CHEAP):
            await turns.wait()
    async for group_id, partitions in turns.each(asked.items(), cost=GROUP_COST):
        found += GROUP_BYTES + text_bytes(group_id)
        try:
            offsets = await context.broker.groups.fetch_offsets(group_id)
        except PenstockError:
            offsets = {}
        if partitions >= ALL:
            partitions -= ALL
            topics = {topic_id for topic_id, _ in offsets}
            found += len(topics) * (TOPIC_BYTES + 5 + NAME_LENGTH_MAX)
            found += PARTITION_BYTES * len(offsets)
        found += PARTITION_BYTES * partitions
        found += sum([text_bytes(one.metadata) for one in offsets.values() if one.metadata])
        if turns.spend(rows=len(offsets) // CHEAP):
            await turns.wait()
    return found


_Asked = dict[str | uuid.UUID | None, dict[int, None]]
"""Partitions by their topic's name or id, each once."""


async def _joined_groups(
    context: RequestContext, groups: "Sequence[_Group]"
) -> AsyncIterator[tuple[str, _Asked | None]]:
    """Each group once, with all that is asked of it: what is committed may be ten thousand times
    as long as its name."""
    topics: dict[str, list[_RequestTopic] | None] = {}
    async for group in context.broker.turns.each(groups):
        if group.topics is None:
            topics[group.group_id] = None  # all of them
        else:
            known = topics.setdefault(group.group_id, [])
            if known is not None:
                known.extend(group.topics)
    async for group_id, asked in context.broker.turns.each(topics.items(), cost=GROUP_COST):
        yield group_id, await _joined(context, asked)


async def _joined(
    context: RequestContext, topics: "Sequence[_RequestTopic] | None"
) -> _Asked | None:
    """Each topic and partition once; None asks for all."""
    if topics is None:
        return None
    turns = context.broker.turns
    asked: _Asked = {}
    async for topic in turns.each(topics):
        name = topic.topic_id if hasattr(topic, "topic_id") else topic.name
        asked.setdefault(name, {}).update(dict.fromkeys(topic.partition_indexes))
        if turns.spend(len(topic.partition_indexes) // CHEAP):
            await turns.wait()
    return asked


_OfGroup = tuple[GroupError | ErrorCode, list[_Topic], _Offsets, AbstractSet[PartitionId]]


async def _failed(
    context: RequestContext, topics: _Asked | None, error: GroupError | ErrorCode
) -> _OfGroup:
    if context.api_version >= 2:
        return error, [], {}, frozenset()
    # Version 1 can only say it of each partition.
    every = context.broker.turns.each((topics or {}).items())
    refused = [_topic(name, numbers, error=error) async for name, numbers in every]
    return GroupError.NONE, refused, {}, frozenset()


async def _of_group(
    context: RequestContext, group_id: str, topics: _Asked | None, *, known: bool, stable: bool
) -> _OfGroup:
    """An error for the whole group, or its topics and offsets, and whose aren't stable."""
    turns = context.broker.turns
    groups = context.broker.groups
    unstable: AbstractSet[PartitionId] = frozenset()
    hidden = context.access.group(Operation.DESCRIBE, group_id)
    if hidden:
        return await _failed(context, topics, hidden)
    try:
        if not known:
            # Every client asks the same coordinator again; some take other errors for final.
            raise NotServedError("fetch offsets", group_id, GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        if stable:
            # Before the offsets: of a transaction that ends meanwhile none is taken for stable.
            unstable = await groups.pending_offsets(group_id)
        offsets = await groups.fetch_offsets(group_id)
    except PenstockError as failure:
        error = told(failure)
        if error is GroupError.COORDINATOR_NOT_AVAILABLE:
            # Older clients know NOT_COORDINATOR alone, here.
            error = GroupError.NOT_COORDINATOR
        return await _failed(context, topics, error)
    if turns.spend(rows=len(offsets) // CHEAP):
        await turns.wait()
    if topics is None:
        return GroupError.NONE, await _all(context, offsets), offsets, unstable
    found = [_asked(context, name, numbers) async for name, numbers in turns.each(topics.items())]
    return GroupError.NONE, found, offsets, unstable


async def _all(context: RequestContext, offsets: _Offsets) -> list[_Topic]:
    by_topic: dict[bytes, list[int]] = {}
    async for topic_id, number in context.broker.turns.each(list(offsets)):
        by_topic.setdefault(topic_id, []).append(number)
    found = []
    async for topic_id in context.broker.turns.in_order(list(by_topic)):
        topic = context.broker.view.topic_by_id(topic_id)
        # Deleted meanwhile: its offsets go with it.
        if topic is not None and not context.access.topic(Operation.DESCRIBE, topic.name):
            numbers = sorted(by_topic[topic_id])
            found.append(_Topic(topic.name, uuid.UUID(bytes=topic_id), numbers, topic_id))
    return found


def _topic(
    name: str | uuid.UUID | None,
    numbers: Iterable[int],
    stored_id: bytes | None = None,
    error: int = ErrorCode.NONE,
) -> _Topic:
    if isinstance(name, str):
        return _Topic(name, None, numbers, stored_id, error)
    return _Topic(None, name, numbers, stored_id, error)


def _asked(context: RequestContext, name: str | uuid.UUID | None, numbers: Iterable[int]) -> _Topic:
    view = context.broker.view
    if isinstance(name, str):
        known = view.topic(name)
        refused = context.access.topic(Operation.DESCRIBE, name)
        if refused:
            return _topic(name, numbers, error=refused)
        # A name without a topic is answered like a topic without committed offsets.
        if known is None:
            return _topic(name, numbers)
    else:
        known = None if name is None else view.topic_by_id(name.bytes)
        if known is None:
            return _topic(name, numbers, error=ErrorCode.UNKNOWN_TOPIC_ID)
        refused = context.access.topic(Operation.DESCRIBE, known.name)
        if refused:
            return _topic(name, numbers, error=refused)
    return _topic(name, numbers, known.topic_id)


async def _topics(
    context: RequestContext,
    topic_type: type[Entity],
    partition_type: type[Entity],
    topics: list[_Topic],
    offsets: _Offsets,
    unstable: AbstractSet[PartitionId],
) -> EncodedParts:
    turns = context.broker.turns
    encoded = ArrayWriter(topic_type)
    async for topic in turns.each(topics):
        partitions = ArrayWriter(partition_type)
        async for number in turns.each(topic.numbers):
            committed, error = NO_OFFSET, topic.error
            if topic.stored_id is not None:
                key = topic.stored_id, number
                if key in unstable:
                    error = ErrorCode.UNSTABLE_OFFSET_COMMIT
                else:
                    committed = offsets.get(key, NO_OFFSET)
            partitions.add(
                partition_index=number,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=error,
            )
        encoded.add(name=topic.name, topic_id=topic.topic_id, partitions=partitions.encoded())
    return encoded.encoded()
