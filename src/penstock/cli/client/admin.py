"""librdkafka's AdminClient makes requests about topics, their configs, offsets and groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.client.errors import translated
from penstock.cli.client.librdkafka import Log, confluent_kafka
from penstock.cli.client.topic_partition import TopicPartition
from penstock.model.errors import RetryableError

DEFAULT_COUNT: Final = -1
"""The server chooses the number of partitions or replicas by its settings (KIP-464)."""
EARLIEST: Final = -2
LATEST: Final = -1
FAILING_S: Final = 2.0
"""An answer is waited for only this long after a connection failed. librdkafka would try again
until its deadline, but most failures are a wrong address or a server that isn't running."""
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One config of a topic; `is_own` if it was set on the topic itself."""

    name: str
    value: str
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member and the partitions that are assigned to it."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members. The state of a group that does not exist is "Dead"; `type` is
    Kafka's."""

    group_id: str
    type: str = "classic"
    state: str
    protocol: str
    members: tuple[GroupMember, ...]


class Admin:
    """Makes requests, one at a time.

    Args:
        settings: made by `librdkafka.settings`.
        timeout_s: the longest time that one request may take.
        log: the log in `settings`.

    Every method raises:
        RetryableError: no answer in time, or no connection.
        RefusedError: the server refuses the request.
    """

    def __init__(self, settings: Mapping[str, object], timeout_s: float, log: Log) -> None:
        self._kafka = confluent_kafka()
        self._client = self._kafka.admin.AdminClient(dict(settings))
        self._timeout_s = timeout_s
        self._log = log

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = DEFAULT_COUNT,
    ) -> None:
        """Create a topic; both numbers may be DEFAULT_COUNT."""
        topic = self._kafka.admin.NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(configs),
        )
        self._ask("create topic", name, self._client.create_topics, [topic])

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        self._ask("delete topic", name, self._client.delete_topics, [name])

    def add_partitions(self, name: str, *, total: int) -> None:
        """Raise a topic's number of partitions to `total`."""
        wanted = self._kafka.admin.NewPartitions(name, total)
        self._ask("add partitions", name, self._client.create_partitions, [wanted])

    def alter_configs(
        self, name: str, *, set_values: Mapping[str, str], delete_names: Sequence[str]
    ) -> None:
        """Set some configs of a topic and reset others to their defaults."""
        admin = self._kafka.admin
        kinds = admin.AlterConfigOpType
        changes = [(key, value, kinds.SET) for key, value in set_values.items()]
        changes += [(key, "", kinds.DELETE) for key in delete_names]
        entries = [
            admin.ConfigEntry(key, value, incremental_operation=kind)
            for key, value, kind in changes
        ]
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, name, incremental_configs=entries)
        self._ask("alter configs", name, self._client.incremental_alter_configs, [resource])

    def describe_configs(self, name: str) -> list[ConfigValue]:
        """List a topic's configs in effect, by name."""
        admin = self._kafka.admin
        own = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, name)
        found = self._ask("describe configs", name, self._client.describe_configs, [resource])
        return [
            ConfigValue(name=key, value=entry.value or "", is_own=entry.source == own)
            for key, entry in sorted(found.items())
        ]

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Look up an offset for each partition.

        Args:
            timestamp: EARLIEST, LATEST, or a time in ms since the epoch: the offset of the first
                record that has this timestamp or a later one.

        Returns:
            Offsets; -1 for a partition without such a record.
        """
        kind = self._kafka.admin.OffsetSpec
        spec = {EARLIEST: kind.earliest, LATEST: kind.latest}.get(
            timestamp, lambda: kind.for_timestamp(timestamp)
        )()
        wanted = {self._kafka.TopicPartition(*partition): spec for partition in partitions}
        if not wanted:
            return {}
        futures = self._client.list_offsets(wanted, request_timeout=self._timeout_s)
        return {
            TopicPartition(key.topic, key.partition): self._result(
                "look up offset", f"{key.topic}-{key.partition}", future
            ).offset
            for key, future in futures.items()
        }

    def describe_group(self, group_id: str) -> GroupDescription:
        """Describe one group."""
        found = self._ask(
            "describe group", group_id, self._client.describe_consumer_groups, [group_id]
        )
        return GroupDescription(
            group_id=group_id,
            state=_state(found.state.name),
            protocol=found.partition_assignor,
            members=tuple(
                GroupMember(
                    member_id=row.member_id,
                    instance_id=row.group_instance_id or "",
                    client_id=row.client_id,
                    host=row.host,
                    partitions=tuple(
                        TopicPartition(part.topic, part.partition)
                        for part in row.assignment.topic_partitions
                    ),
                )
                for row in found.members
            ),
        )

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Look up a group's committed offsets; partitions without one are left out."""
        group = self._kafka.ConsumerGroupTopicPartitions(group_id)
        found = self._ask(
            "fetch offsets of group", group_id, self._client.list_consumer_group_offsets, [group]
        )
        return {
            TopicPartition(part.topic, part.partition): part.offset
            for part in self._checked("fetch offset", group_id, found.topic_partitions)
            if part.offset >= 0
        }

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members."""
        parts = [self._kafka.TopicPartition(*key, offset) for key, offset in offsets.items()]
        group = self._kafka.ConsumerGroupTopicPartitions(group_id, parts)
        found = self._ask(
            "commit offsets of group", group_id, self._client.alter_consumer_group_offsets, [group]
        )
        self._checked("commit offset", group_id, found.topic_partitions)

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, with its offsets."""
        self._ask("delete group", group_id, self._client.delete_consumer_groups, [group_id])

    def _checked(self, operation: str, group_id: str, parts: list[Any]) -> list[Any]:
        for part in parts:
            if part.error is not None:
                subject = f"{part.topic}-{part.partition} of group {group_id}"
                raise translated(part.error, operation, subject)
        return parts

    def _ask(
        self, operation: str, subject: str, call: Callable[..., Mapping[Any, Any]], what: list[Any]
    ) -> Any:
        """Make a call for one topic or group, whose answer is a mapping from it to a future."""
        (future,) = call(what, request_timeout=self._timeout_s).values()
        return self._result(operation, subject, future)

    def _result(self, operation: str, subject: str, future: Future[Any]) -> Any:
        log = self._log
        failed_before, failing_s = log.failure_count, None
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                self._client.poll(0)  # librdkafka passes its log lines on in this call
                if log.failure_count == failed_before:
                    continue
                if failing_s is None:
                    failing_s = time.monotonic()
                elif time.monotonic() - failing_s >= FAILING_S:
                    raise RetryableError(operation, subject, log.failure) from None
            except self._kafka.KafkaException as error:
                raise translated(error.args[0], operation, subject, failure=log.failure) from error


def _state(name: str) -> str:
    """Return the protocol's name of a group's state for librdkafka's: Stable for STABLE."""
    return "".join(word.title() for word in name.replace("REBALANCING", "REBALANCE").split("_"))
