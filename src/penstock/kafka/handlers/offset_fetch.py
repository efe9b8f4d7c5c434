"""OffsetFetch 1 to 10: how far a group has read; many groups from version 8 on, topics by id from
version 10 on.

A partition without a committed offset, and every partition of a group that is not there, is
answered with -1 and no error. `require_stable` (7 and later, KIP-447) asks not to be shown offsets
that an open transaction may still change: there are none yet.

Answers are of the present: a group's offsets must not go back when its coordinator moves.
"""

import uuid
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.groups.errors import GroupError
from penstock.groups.offsets import CommittedOffset, PartitionId
from penstock.groups.ownership import NotServedError, told
from penstock.kafka import fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.schema import build, response_types
from penstock.model.errors import PenstockError

API_KEY: Final = 9
VERSIONS: Final = (1, 10)

GROUPS_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10
NO_OFFSET: Final = CommittedOffset(-1, -1, "")


class _Partition(NamedTuple):
    number: int
    committed: CommittedOffset = NO_OFFSET
    error: int = ErrorCode.NONE


class _Topic(NamedTuple):
    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[_Partition]


async def handle(context: RequestContext, request: Any) -> Any:
    """Look the offsets of all groups up."""
    version = context.api_version
    types = response_types("offset_fetch", version)
    known = await fresh.confirm(context)
    if version < GROUPS_FROM:
        error, topics = _of_group(context, request.group_id, request.topics, known=known)
        return build(
            types.OffsetFetchResponse,
            error_code=error,
            topics=_topics(
                types.OffsetFetchResponseTopic, types.OffsetFetchResponsePartition, topics
            ),
        )
    groups = []
    for group in request.groups:
        error, topics = _of_group(context, group.group_id, group.topics, known=known)
        groups.append(
            build(
                types.OffsetFetchResponseGroup,
                group_id=group.group_id,
                error_code=error,
                topics=_topics(
                    types.OffsetFetchResponseTopics, types.OffsetFetchResponsePartitions, topics
                ),
            )
        )
    return build(types.OffsetFetchResponse, groups=tuple(groups))


def _of_group(
    context: RequestContext, group_id: str, topics: Iterable[Any] | None, *, known: bool
) -> tuple[GroupError, list[_Topic]]:
    """An error for the whole group, or its topics."""
    try:
        if not known:
            # Every client asks the same coordinator again; some take other errors for final.
            raise NotServedError("fetch offsets", group_id, GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        offsets = context.broker.groups.fetch_offsets(group_id)
    except PenstockError as failure:
        error = told(failure)
        if error is GroupError.COORDINATOR_NOT_AVAILABLE:
            # Older clients know NOT_COORDINATOR alone, here.
            error = GroupError.NOT_COORDINATOR
        if context.api_version >= 2:
            return error, []
        # Version 1 can only say it of each partition.
        return GroupError.NONE, [
            _Topic(topic.name, None, [_Partition(n, error=error) for n in topic.partition_indexes])
            for topic in topics or ()
        ]
    if topics is None:
        return GroupError.NONE, _all(context, offsets)
    return GroupError.NONE, [_asked(context, topic, offsets) for topic in topics]


def _all(context: RequestContext, offsets: Mapping[PartitionId, CommittedOffset]) -> list[_Topic]:
    found = []
    for topic_id, keys in groupby(sorted(offsets), key=lambda key: key[0]):
        topic = context.broker.view.topic_by_id(topic_id)
        # Deleted meanwhile: its offsets go with it.
        if topic is not None:
            partitions = [_Partition(key[1], offsets[key]) for key in keys]
            found.append(_Topic(topic.name, uuid.UUID(bytes=topic_id), partitions))
    return found


def _asked(
    context: RequestContext, topic: Any, offsets: Mapping[PartitionId, CommittedOffset]
) -> _Topic:
    view, numbers = context.broker.view, topic.partition_indexes
    if context.api_version >= TOPIC_IDS_FROM:
        known = None if topic.topic_id is None else view.topic_by_id(topic.topic_id.bytes)
        if known is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            return _Topic(None, topic.topic_id, [_Partition(n, error=unknown) for n in numbers])
        return _Topic(None, topic.topic_id, _committed(known.topic_id, numbers, offsets))
    known = view.topic(topic.name)
    # By name, a topic that is not there is one that nobody has read.
    if known is None:
        return _Topic(topic.name, None, [_Partition(number) for number in numbers])
    return _Topic(topic.name, None, _committed(known.topic_id, numbers, offsets))


def _committed(
    topic_id: bytes, numbers: Iterable[int], offsets: Mapping[PartitionId, CommittedOffset]
) -> list[_Partition]:
    return [_Partition(number, offsets.get((topic_id, number), NO_OFFSET)) for number in numbers]


def _topics(topic_type: Any, partition_type: Any, topics: list[_Topic]) -> tuple[Any, ...]:
    return tuple(
        build(
            topic_type,
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                build(
                    partition_type,
                    partition_index=partition.number,
                    committed_offset=partition.committed.offset,
                    committed_leader_epoch=partition.committed.leader_epoch,
                    metadata=partition.committed.metadata,
                    error_code=partition.error,
                )
                for partition in topic.partitions
            ),
        )
        for topic in topics
    )
