"""StreamsGroupDescribe 0: state, topology, members and tasks of streams groups (KIP-1071). A group
of another kind, and one that is not there, is GROUP_ID_NOT_FOUND."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.errors import GroupError
from penstock.groups.streams.machine import StreamsGroup
from penstock.groups.streams.member import StreamsMember
from penstock.groups.streams.tasks import TaskIds, Tasks
from penstock.groups.streams.topology import InternalTopic, Subtopology, Topology
from penstock.kafka.answer_bounds import text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.group_descriptions import AssignedDescriber
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest

GROUP_BYTES: Final = 160
MEMBER_BYTES: Final = 80
TASKS_BYTES: Final = 20
PARTITION_BYTES: Final = 4
HIDDEN_TOPICS: Final = (
    "The described group uses topics that the client is not authorized to describe."
)


async def handle(context: RequestContext, request: "StreamsGroupDescribeRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("streams_group_describe", context.api_version)
    describer = _Describer(context, types, shows_operations=request.include_authorized_operations)
    return await describer.answer(
        request.group_ids, lambda groups: build(types.StreamsGroupDescribeResponse, groups=groups)
    )


class _Describer(AssignedDescriber[StreamsGroup]):
    group_bytes = GROUP_BYTES
    kind = "streams"

    def find(self, group_id: str) -> StreamsGroup | None:
        return self.context.broker.groups.streams.describe(group_id)

    async def members_bound(self, group: StreamsGroup) -> int:
        found = 0 if group.topology is None else _topology_bound(group.topology)
        # All in one turn of the loop, since the group may change in the next.
        for member in group.members.values():
            about = member.about
            texts = [member.member_id, about.client_id, about.client_host, about.process_id]
            texts += [text for pair in about.tags for text in pair]
            found += MEMBER_BYTES + sum(map(text_bytes, texts)) + text_bytes(about.rack)
            found += 0 if about.endpoint is None else text_bytes(about.endpoint.host)
            for tasks in (member.assigned, member.target):
                for role in tasks.roles:
                    found += sum(TASKS_BYTES + text_bytes(name) for name in role)
                    found += PARTITION_BYTES * partitions.count(role)
        self.context.broker.turns.spend(len(group.members))
        return found

    def described(self, group: StreamsGroup) -> tuple[Entity, int]:
        topology = group.topology
        named = [] if topology is None else sorted(set(topology.named))
        access = self.context.access
        if any(access.topic(Operation.DESCRIBE, name) for name in named):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return self.absent(group.group_id, error, HIDDEN_TOPICS), 0
        configured = group.configured
        shown: Sequence[Subtopology] = () if topology is None else topology.subtopologies
        if configured is not None and configured.is_ready:
            shown = tuple(configured.subtopologies.values())
        members = tuple(group.members[member_id] for member_id in sorted(group.members))
        described = build(
            self.types.DescribedGroup,
            error_code=GroupError.NONE,
            error_message=None,
            group_id=group.group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            topology=(
                None
                if topology is None
                else self.types.Topology(
                    epoch=topology.epoch, subtopologies=tuple(map(self._subtopology, shown))
                )
            ),
            members=MadeItems(members, self._member),
            authorized_operations=self.operations(group.group_id),
        )
        return described, len(members)

    def _subtopology(self, one: Subtopology) -> Entity:
        made: Entity = self.types.Subtopology(
            subtopology_id=one.name,
            source_topics=tuple(sorted(one.sources)),
            repartition_sink_topics=tuple(sorted(one.repartition_sinks)),
            state_changelog_topics=self._internal(one.changelogs),
            repartition_source_topics=self._internal(one.repartition_sources),
        )
        return made

    def _internal(self, topics: Sequence[InternalTopic]) -> tuple[Entity, ...]:
        return tuple(
            self.types.TopicInfo(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=self._pairs(topic.configs),
            )
            for topic in sorted(topics, key=lambda topic: topic.name)
        )

    def _pairs(self, pairs: Sequence[tuple[str, str]]) -> tuple[Entity, ...]:
        return tuple(self.types.KeyValue(key=key, value=value) for key, value in pairs)

    def _member(self, member: StreamsMember) -> Entity:
        about = member.about
        endpoint = about.endpoint
        return build(
            self.types.Member,
            member_id=member.member_id,
            member_epoch=member.epoch,
            instance_id=None,
            rack_id=about.rack or None,
            client_id=about.client_id,
            client_host=about.client_host,
            topology_epoch=about.topology_epoch,
            process_id=about.process_id,
            user_endpoint=(
                None
                if endpoint is None
                else self.types.Endpoint(host=endpoint.host, port=endpoint.port)
            ),
            client_tags=self._pairs(about.tags),
            task_offsets=(),
            task_end_offsets=(),
            assignment=self._assignment(member.assigned),
            target_assignment=self._assignment(member.target),
            is_classic=False,
        )

    def _assignment(self, tasks: Tasks) -> Entity:
        made: Entity = self.types.Assignment(
            active_tasks=self._task_ids(tasks.active),
            standby_tasks=self._task_ids(tasks.standby),
            warmup_tasks=self._task_ids(tasks.warmup),
        )
        return made

    def _task_ids(self, tasks: TaskIds) -> tuple[Entity, ...]:
        return tuple(
            self.types.TaskIds(subtopology_id=name, partitions=tuple(sorted(numbers)))
            for name, numbers in sorted(tasks.items())
        )


def _topology_bound(topology: Topology) -> int:
    found = 0
    for one in topology.subtopologies:
        internal = (*one.repartition_sources, *one.changelogs)
        texts = [one.name, *one.sources, *one.repartition_sinks]
        texts += [topic.name for topic in internal]
        texts += [text for topic in internal for pair in topic.configs for text in pair]
        found += TASKS_BYTES * (1 + len(texts)) + sum(map(text_bytes, texts))
    return found
