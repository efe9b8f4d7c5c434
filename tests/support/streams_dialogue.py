"""Dialogues of members of a streams group with a broker, as text: tests/golden/streams.

A line that begins with `>` is a request, the indented lines after it its answer, as a broker of
Kafka 4.3.1 gives it; see `support.group_dialogue` for `kafka:` and `ours:`. The group has the
file's name, which is before the names of its topics, too. Words in brackets may be left out:

| line | what is sent |
| --- | --- |
| `topic NAME COUNT`, `drop NAME` | CreateTopics, DeleteTopics |
| `is NAME COUNT` | nothing: DescribeTopicPartitions says so by then |
| `shown NAME` | DescribeConfigs: what the topic has of its own |
| `config NAME=VALUE` | IncrementalAlterConfigs of the group |
| `topology NAME EPOCH [SUBTOPOLOGY ...]` | nothing: `as=NAME` sends it |
| `beat NAME EPOCH [joins] [as=TOPOLOGY] [has=TASKS] [process=P] [at=HOST:PORT] [knows=N] [rack=R] [instance=I] [stops]` | StreamsGroupHeartbeat |
| `commit NAME [at=EPOCH] [of=TOPIC]`, `fetch NAME [at=EPOCH]` | OffsetCommit, OffsetFetch |
| `forget TOPIC`, `delete` | OffsetDelete, DeleteGroups |
| `join`, `live` | JoinGroup and Heartbeat of the classic protocol |
| `reads NAME` | ConsumerGroupHeartbeat |
| `list`, `describe`, `classic` | ListGroups, StreamsGroupDescribe, DescribeGroups |
| `until STATE` | nothing: ListGroups says so by then |

A SUBTOPOLOGY is its name and, after a colon, `reads=T`, `writes=T`, `from=T/COUNT` (repartition
topics that it reads), `keeps=T/COUNT[/CONFIG=VALUE]` (changelogs) and `with=0+1/0` (places of
copartitioned topics), with commas between them and `+` between topics. TASKS are those of the three
roles with `;` between them; a role's are `0:1.2+1:0`, or nothing. `joins` says all that a member
says when it joins. An EPOCH `here` is the member's last one.
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from support.group_dialogue import NOT_SAID, TRIES_MAX, Face

GROUP_RESOURCE = 32
TOPIC_RESOURCE = 2
TOPIC_SOURCE = 1
MINUTE = timedelta(minutes=1)


class StreamsDialogue:
    """The members of one group.

    Args:
        settles: waits until the group's coordinator has seen topics that are shown.
    """

    def __init__(
        self, face: Face, group_id: str, settles: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._face = face
        self._group_id = group_id
        self._settles = settles
        self._epochs: dict[str, int] = {}
        self._topologies: dict[str, Any] = {}

    async def play(self, written: str) -> str:
        """The text with the answers as they are."""
        said: list[str] = []
        for line in written.splitlines():
            if line.startswith("> "):
                said.append(line)
                words = line[2:].split()
                play: Callable[..., Awaitable[list[str]]] = getattr(self, f"_{words[0]}")
                said += [
                    f"  {one.replace(f'{self._group_id}-', '')}" for one in await play(*words[1:])
                ]
            elif not line.startswith("  "):
                said.append(line)
        return "\n".join(said) + "\n"

    def _full(self, name: str) -> str:
        # Names of the broker's own, and those that no topic can have, stay what they are.
        return name if name.startswith("_") or "!" in name else f"{self._group_id}-{name}"

    # -- topics and configs ------------------------------------------------------------------------

    async def _topic(self, name: str, count: str) -> list[str]:
        wanted = self._face.part(
            "create_topics",
            7,
            "CreatableTopic",
            name=self._full(name),
            num_partitions=int(count),
            replication_factor=1,
            assignments=(),
            configs=(),
        )
        made = await self._face.call(
            "create_topics", 7, topics=(wanted,), timeout=MINUTE, validate_only=False
        )
        assert not made.topics[0].error_code.value, made
        return await self._is(name, count)

    async def _drop(self, name: str) -> list[str]:
        part = self._face.part(
            "delete_topics", 6, "DeleteTopicState", name=self._full(name), topic_id=None
        )
        gone = await self._face.call("delete_topics", 6, topics=(part,), timeout=MINUTE)
        assert not gone.responses[0].error_code.value, gone
        return await self._is(name, "0")

    async def _is(self, name: str, count: str) -> list[str]:
        for _ in range(TRIES_MAX):
            part = self._face.part(
                "describe_topic_partitions", 0, "TopicRequest", name=self._full(name)
            )
            shown = await self._face.call(
                "describe_topic_partitions",
                0,
                topics=(part,),
                response_partition_limit=100,
                cursor=None,
            )
            if len(shown.topics[0].partitions) == int(count):
                if self._settles is not None:
                    await self._settles()
                return []
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} has not {count} partitions: {shown}")

    async def _shown(self, name: str) -> list[str]:
        part = self._face.part(
            "describe_configs",
            4,
            "DescribeConfigsResource",
            resource_type=TOPIC_RESOURCE,
            resource_name=self._full(name),
            configuration_keys=None,
        )
        shown = await self._face.call(
            "describe_configs",
            4,
            resources=(part,),
            include_synonyms=False,
            include_documentation=False,
        )
        own = [one for one in shown.results[0].configs if one.config_source == TOPIC_SOURCE]
        return [" ".join(sorted(f"{one.name}={one.value}" for one in own)) or "-"]

    async def _config(self, said: str) -> list[str]:
        name, _, value = said.partition("=")
        config = self._face.part(
            "incremental_alter_configs",
            1,
            "AlterableConfig",
            name=name,
            config_operation=0,
            value=value,
        )
        part = self._face.part(
            "incremental_alter_configs",
            1,
            "AlterConfigsResource",
            resource_type=GROUP_RESOURCE,
            resource_name=self._group_id,
            configs=(config,),
        )
        done = await self._face.call(
            "incremental_alter_configs", 1, resources=(part,), validate_only=False
        )
        assert not done.responses[0].error_code.value, done
        if self._settles is not None:
            await self._settles()
        return []

    # -- members -----------------------------------------------------------------------------------

    def _part(self, kind: str, **fields: Any) -> Any:
        return self._face.part("streams_group_heartbeat", 0, kind, **fields)

    async def _topology(self, name: str, epoch: str, *subtopologies: str) -> list[str]:
        self._topologies[name] = self._part(
            "Topology",
            epoch=int(epoch),
            subtopologies=tuple(map(self._subtopology, subtopologies)),
        )
        return []

    def _subtopology(self, said: str) -> Any:
        name, _, rest = said.partition(":")
        fields = dict(one.split("=", 1) for one in rest.split(",") if one)

        def several(field: str) -> list[str]:
            return [one for one in fields.get(field, "").split("+") if one]

        groups = []
        if "with" in fields:
            sources, _, repartition = fields["with"].partition("/")
            groups.append(
                self._part(
                    "CopartitionGroup",
                    source_topics=tuple(map(int, sources.split("+"))) if sources else (),
                    repartition_source_topics=(
                        tuple(map(int, repartition.split("+"))) if repartition else ()
                    ),
                )
            )
        return self._part(
            "Subtopology",
            subtopology_id=name,
            source_topics=tuple(map(self._full, several("reads"))),
            source_topic_regex=tuple(several("regex")),
            state_changelog_topics=tuple(map(self._internal, several("keeps"))),
            repartition_sink_topics=tuple(map(self._full, several("writes"))),
            repartition_source_topics=tuple(map(self._internal, several("from"))),
            copartition_groups=tuple(groups),
        )

    def _internal(self, said: str) -> Any:
        name, count, *configs = said.split("/")
        return self._part(
            "TopicInfo",
            name=self._full(name),
            partitions=int(count),
            replication_factor=0,
            topic_configs=tuple(
                self._part("KeyValue", key=one.split("=")[0], value=one.split("=")[1])
                for one in configs
            ),
        )

    def _tasks(self, said: str) -> Any:
        return tuple(
            self._part(
                "TaskIds",
                subtopology_id=one.split(":")[0],
                partitions=tuple(map(int, one.split(":")[1].split("."))),
            )
            for one in said.split("+")
            if one
        )

    async def _beat(self, name: str, epoch: str, *words: str) -> list[str]:
        options = {key: value for key, _, value in (word.partition("=") for word in words)}
        roles: list[Any] = [None, None, None]
        if "has" in options:
            roles = [None if one == "!" else self._tasks(one) for one in options["has"].split(";")]
        elif "joins" in options:
            roles = [(), (), ()]
        endpoint = None
        if "at" in options:
            host, _, port = options["at"].partition(":")
            endpoint = self._part("Endpoint", host=host, port=int(port))
        joins = "joins" in options
        reply = await self._face.call(
            "streams_group_heartbeat",
            0,
            group_id=self._group_id,
            member_id="" if name == "-" else name,
            member_epoch=self._epochs[name] if epoch == "here" else int(epoch),
            endpoint_information_epoch=int(options.get("knows", 0)),
            instance_id=options.get("instance"),
            rack_id=options.get("rack"),
            rebalance_timeout=timedelta(seconds=300) if joins else NOT_SAID,
            topology=self._topologies[options["as"]] if "as" in options else None,
            active_tasks=roles[0],
            standby_tasks=roles[1],
            warmup_tasks=roles[2],
            process_id=options.get("process", f"process-{name}" if joins else None),
            user_endpoint=endpoint,
            client_tags=() if joins else None,
            task_offsets=None,
            task_end_offsets=None,
            shutdown_application="stops" in options,
        )
        if reply.error_code.value:
            return [f"{reply.error_code.name}: {reply.error_message}"]
        if reply.member_epoch > 0:
            self._epochs[name] = reply.member_epoch
        said = [f"epoch {reply.member_epoch}"]
        if reply.active_tasks is not None:
            said[0] += f", {_shown(reply)}"
        if reply.partitions_by_user_endpoint:
            said += [_endpoint(one) for one in reply.partitions_by_user_endpoint]
        if reply.endpoint_information_epoch:
            said.append(f"endpoints {reply.endpoint_information_epoch}")
        said += [
            f"status {one.status_code} {_in_order(one.status_detail)}" for one in reply.status or ()
        ]
        return said

    async def _reads(self, name: str) -> list[str]:
        reply = await self._face.call(
            "consumer_group_heartbeat",
            1,
            group_id=self._group_id,
            member_id=name,
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=MINUTE,
            subscribed_topic_names=(),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=(),
        )
        return [f"{reply.error_code.name}: {reply.error_message}"]

    async def _join(self, kind: str = "consumer") -> list[str]:
        protocol = self._face.part(
            "join_group", 9, "JoinGroupRequestProtocol", name="range", metadata=b""
        )
        fields = {
            "group_id": self._group_id,
            "session_timeout": MINUTE,
            "rebalance_timeout": MINUTE,
            "member_id": "",
            "group_instance_id": "i",
            "protocol_type": kind,
            "protocols": (protocol,),
            "reason": None,
        }
        reply = await self._face.call("join_group", 9, **fields)
        return [f"{reply.error_code.name} generation {reply.generation_id}"]

    async def _live(self) -> list[str]:
        reply = await self._face.call(
            "heartbeat",
            4,
            group_id=self._group_id,
            generation_id=1,
            member_id="m",
            group_instance_id=None,
        )
        return [reply.error_code.name]

    # -- offsets and tools -------------------------------------------------------------------------

    async def _commit(self, name: str, *words: str) -> list[str]:
        options = {key: value for key, _, value in (word.partition("=") for word in words)}
        partition = self._face.part(
            "offset_commit",
            9,
            "OffsetCommitRequestPartition",
            partition_index=int(options.get("partition", 0)),
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topic = self._face.part(
            "offset_commit",
            9,
            "OffsetCommitRequestTopic",
            name=self._full(options.get("of", "in")),
            partitions=(partition,),
        )
        reply = await self._face.call(
            "offset_commit",
            9,
            group_id=self._group_id,
            member_id="" if name == "-" else name,
            group_instance_id=None,
            generation_id_or_member_epoch=int(options.get("at", self._epochs.get(name, -1))),
            topics=(topic,),
        )
        return [reply.topics[0].partitions[0].error_code.name]

    async def _fetch(self, name: str, *words: str) -> list[str]:
        options = {key: value for key, _, value in (word.partition("=") for word in words)}
        part = self._face.part(
            "offset_fetch",
            9,
            "OffsetFetchRequestGroup",
            group_id=self._group_id,
            member_id=None if name == "-" else name,
            member_epoch=int(options.get("at", self._epochs.get(name, -1))),
            topics=None,
        )
        reply = await self._face.call("offset_fetch", 9, groups=(part,), require_stable=False)
        (found,) = reply.groups
        count = sum(len(topic.partitions) for topic in found.topics)
        return [f"{found.error_code.name} {count} offsets"]

    async def _forget(self, name: str) -> list[str]:
        partition = self._face.part(
            "offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=0
        )
        topic = self._face.part(
            "offset_delete",
            0,
            "OffsetDeleteRequestTopic",
            name=self._full(name),
            partitions=(partition,),
        )
        reply = await self._face.call("offset_delete", 0, group_id=self._group_id, topics=(topic,))
        codes = [one.error_code.name for topic in reply.topics for one in topic.partitions]
        return [" ".join([reply.error_code.name, *codes])]

    async def _delete(self) -> list[str]:
        reply = await self._face.call("delete_groups", 2, groups_names=(self._group_id,))
        return [reply.results[0].error_code.name]

    async def _listed(self) -> Any:
        reply = await self._face.call("list_groups", 5, states_filter=(), types_filter=("streams",))
        return next((one for one in reply.groups if one.group_id == self._group_id), None)

    async def _list(self) -> list[str]:
        found = await self._listed()
        if found is None:
            return ["none"]
        return [f"{found.group_type.lower()} {found.group_state} {found.protocol_type or '-'}"]

    async def _until(self, state: str) -> list[str]:
        for _ in range(TRIES_MAX):
            found = await self._listed()
            if found is not None and found.group_state == state:
                return []
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self._group_id} is not {state}: {await self._list()}")

    async def _classic(self) -> list[str]:
        reply = await self._face.call(
            "describe_groups", 6, groups=(self._group_id,), include_authorized_operations=False
        )
        (found,) = reply.groups
        return [f"{found.error_code.name} {found.group_state}: {found.error_message}"]

    async def _describe(self) -> list[str]:
        reply = await self._face.call(
            "streams_group_describe",
            0,
            group_ids=(self._group_id,),
            include_authorized_operations=False,
        )
        (found,) = reply.groups
        if found.error_code.value:
            return [f"{found.error_code.name}: {found.error_message}"]
        said = [f"{found.group_state} epoch {found.group_epoch} target {found.assignment_epoch}"]
        said[0] += f" topology {found.topology.epoch}"
        for one in found.topology.subtopologies:
            internal = " ".join(
                f"{word}={_topics(topics)}"
                for word, topics in (
                    ("from", one.repartition_source_topics),
                    ("keeps", one.state_changelog_topics),
                )
            )
            reads = "+".join(one.source_topics)
            writes = "+".join(one.repartition_sink_topics)
            said.append(f"{one.subtopology_id}: reads={reads} writes={writes} {internal}")
        for member in sorted(found.members, key=lambda one: one.member_id):
            where = member.user_endpoint
            at = "" if where is None else f" at {where.host}:{where.port}"
            rack = "" if member.rack_id is None else f" rack {member.rack_id}"
            said.append(
                f"{member.member_id} epoch {member.member_epoch} of {member.process_id} topology"
                f" {member.topology_epoch}{at}{rack} classic {member.is_classic}:"
                f" {_shown(member.assignment)} -> {_shown(member.target_assignment)}"
            )
        return said


def _in_order(detail: str) -> str:
    """Sort the names of missing topics, which Kafka says in the order of their hashes."""
    said, colon, names = detail.partition("are missing: ")
    return said + colon + ", ".join(sorted(names.split(", ")))


def _shown(one: Any) -> str:
    roles = (one.active_tasks, one.standby_tasks, one.warmup_tasks)
    return "tasks " + ";".join(map(_role, roles))


def _role(tasks: Sequence[Any]) -> str:
    return "+".join(
        f"{one.subtopology_id}:{'.'.join(map(str, sorted(one.partitions)))}"
        for one in sorted(tasks, key=lambda one: one.subtopology_id)
    )


def _topics(topics: Sequence[Any]) -> str:
    return "+".join(
        "/".join(
            (
                topic.name,
                str(topic.partitions),
                *sorted(f"{config.key}={config.value}" for config in topic.topic_configs),
            )
        )
        for topic in topics
    )


def _endpoint(one: Any) -> str:
    def read(topics: Sequence[Any]) -> str:
        return "+".join(
            sorted(f"{topic.topic}:{'.'.join(map(str, topic.partitions))}" for topic in topics)
        )

    where = f"{one.user_endpoint.host}:{one.user_endpoint.port}"
    return f"endpoint {where} {read(one.active_partitions)};{read(one.standby_partitions)}"
