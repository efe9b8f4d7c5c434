"""StreamsGroupHeartbeat 0: a member of a streams group joins, lives and leaves, and gets its tasks
(KIP-1071). Internal topics that the group lacks are made for the member that is answered so."""

from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.errors import GroupError
from penstock.groups.streams.configured import Status
from penstock.groups.streams.member import Endpoint
from penstock.groups.streams.messages import (
    EndpointPartitions,
    StreamsHeartbeat,
    StreamsReply,
    TopicPartitions,
)
from penstock.groups.streams.tasks import TaskIds
from penstock.groups.streams.topology import (
    Copartitioned,
    InternalTopic,
    Subtopology,
    Topology,
    TopologyError,
    check_names,
)
from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.streams_topics import create_internal
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.group_permissions import member_refusal
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kio.schema.streams_group_heartbeat.v0 import request as wire
    from kio.schema.streams_group_heartbeat.v0.request import StreamsGroupHeartbeatRequest

MILLISECOND: Final = timedelta(milliseconds=1)
UNCHANGED_MS: Final = -1
TASKS_BYTES: Final = 20
PARTITION_BYTES: Final = 4


async def handle(context: RequestContext, request: "StreamsGroupHeartbeatRequest") -> Answer:
    """Answer with the member's epoch, and with its tasks where they are others."""
    types = response_types("streams_group_heartbeat", context.api_version)
    topology = _topology(request.topology)
    refused, message = await _refusal(context, request.group_id, topology)
    if refused:
        return _failed(types, refused, message)
    streams = context.broker.groups.streams
    reply = await streams.heartbeat(request.group_id, _beat(context, request, topology))
    error = reply.error
    if error:
        error = await fresh.group_error(context, request.group_id, error)
        return _failed(types, error, reply.message if error is reply.error else None)
    statuses = reply.statuses
    if reply.missing:
        statuses = await create_internal(context, reply.missing, statuses or ())
    await context.wait_for_room(_bound(reply, statuses))
    is_leaving = reply.epoch < 0
    interval_ms = 0 if is_leaving else streams.heartbeat_interval_ms(request.group_id)
    tasks, endpoints = reply.tasks, reply.endpoints
    return build(
        types.StreamsGroupHeartbeatResponse,
        error_code=GroupError.NONE,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval=interval_ms * MILLISECOND,
        acceptable_recovery_lag=0,
        task_offset_interval=timedelta(0),
        status=None if statuses is None else tuple(_status(types, one) for one in statuses),
        active_tasks=None if tasks is None else _task_ids(types, tasks.active),
        standby_tasks=None if tasks is None else _task_ids(types, tasks.standby),
        warmup_tasks=None if tasks is None else _task_ids(types, tasks.warmup),
        endpoint_information_epoch=reply.endpoint_epoch,
        partitions_by_user_endpoint=(
            None if endpoints is None else tuple(_endpoint(types, one) for one in endpoints)
        ),
    )


async def _refusal(
    context: RequestContext, group_id: str, topology: Topology | None
) -> tuple[ErrorCode | GroupError, str | None]:
    """Return the error of a member that may not read by a group, or not see its topics, which must
    be such as could be."""
    refused = await member_refusal(context, group_id, ())
    if refused or topology is None:
        return refused, None
    try:
        check_names(topology)
    except TopologyError as error:
        return GroupError.STREAMS_INVALID_TOPOLOGY, str(error)
    return await member_refusal(context, group_id, sorted(set(topology.named))), None


def _failed(types: ModuleType, error: ErrorCode | GroupError, message: str | None) -> Entity:
    return build(
        types.StreamsGroupHeartbeatResponse,
        error_code=error,
        error_message=message,
        member_id="",
        member_epoch=0,
        heartbeat_interval=timedelta(0),
        acceptable_recovery_lag=0,
        task_offset_interval=timedelta(0),
        status=None,
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        endpoint_information_epoch=0,
        partitions_by_user_endpoint=None,
    )


# -- the request -----------------------------------------------------------------------------------


def _beat(
    context: RequestContext, request: "StreamsGroupHeartbeatRequest", topology: Topology | None
) -> StreamsHeartbeat:
    endpoint = request.user_endpoint
    tags = request.client_tags
    said = request.topology
    return StreamsHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id,
        rebalance_timeout_ms=max(UNCHANGED_MS, request.rebalance_timeout // MILLISECOND),
        topology=topology,
        has_regexes=said is not None and any(one.source_topic_regex for one in said.subtopologies),
        active=_owned(request.active_tasks),
        standby=_owned(request.standby_tasks),
        warmup=_owned(request.warmup_tasks),
        process_id=request.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        tags=None if tags is None else tuple(sorted((one.key, one.value) for one in tags)),
        has_offsets=request.task_offsets is not None,
        has_end_offsets=request.task_end_offsets is not None,
        shuts_down=request.shutdown_application,
        client_id=context.client_id or "",
        # As Java prints an address, which is what tools expect.
        client_host=f"/{context.client_host}",
    )


def _owned(role: "Iterable[wire.TaskIds] | None") -> TaskIds | None:
    if role is None:
        return None
    return partitions.of((one.subtopology_id, one.partitions) for one in role)


def _topology(said: "wire.Topology | None") -> Topology | None:
    if said is None:
        return None
    return Topology(
        said.epoch,
        tuple(sorted((_subtopology(one) for one in said.subtopologies), key=lambda one: one.name)),
    )


def _subtopology(said: "wire.Subtopology") -> Subtopology:
    return Subtopology(
        name=said.subtopology_id,
        sources=tuple(said.source_topics),
        repartition_sinks=tuple(said.repartition_sink_topics),
        repartition_sources=_internal(said.repartition_source_topics),
        changelogs=_internal(said.state_changelog_topics),
        copartitioned=tuple(
            Copartitioned(tuple(one.source_topics), tuple(one.repartition_source_topics))
            for one in said.copartition_groups
        ),
    )


def _internal(said: "Sequence[wire.TopicInfo]") -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            name=one.name,
            partitions=one.partitions,
            replication_factor=one.replication_factor,
            configs=tuple((config.key, config.value) for config in one.topic_configs),
        )
        for one in said
    )


# -- the answer ------------------------------------------------------------------------------------


def _task_ids(types: ModuleType, tasks: TaskIds) -> tuple[Entity, ...]:
    return tuple(
        types.TaskIds(subtopology_id=name, partitions=tuple(sorted(numbers)))
        for name, numbers in sorted(tasks.items())
    )


def _status(types: ModuleType, status: Status) -> Entity:
    made: Entity = types.Status(status_code=status.code, status_detail=status.detail)
    return made


def _endpoint(types: ModuleType, one: EndpointPartitions) -> Entity:
    made: Entity = types.EndpointToPartitions(
        user_endpoint=types.Endpoint(host=one.endpoint.host, port=one.endpoint.port),
        active_partitions=_topics(types, one.active),
        standby_partitions=_topics(types, one.standby),
    )
    return made


def _topics(types: ModuleType, topics: "Sequence[TopicPartitions]") -> tuple[Entity, ...]:
    return tuple(types.TopicPartition(topic=one.topic, partitions=one.partitions) for one in topics)


def _bound(reply: StreamsReply, statuses: "Sequence[Status] | None") -> int:
    """Return the most bytes of the answer."""
    found = BASE_BYTES + text_bytes(reply.member_id)
    found += sum(TASKS_BYTES + text_bytes(one.detail) for one in statuses or ())
    for role in () if reply.tasks is None else reply.tasks.roles:
        found += sum(TASKS_BYTES + text_bytes(name) for name in role)
        found += PARTITION_BYTES * partitions.count(role)
    for one in reply.endpoints or ():
        found += TASKS_BYTES + text_bytes(one.endpoint.host)
        for topic in (*one.active, *one.standby):
            found += TASKS_BYTES + text_bytes(topic.topic) + PARTITION_BYTES * len(topic.partitions)
    return found
