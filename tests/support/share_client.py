"""A member of a share group by raw requests: what exactly a server answers to each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock.cli.client import connection
from penstock.config.addresses import Address, parse_address
from penstock.records.batch import stored_header
from penstock.records.decode import decode_batch
from support.waiting import eventually

SPOKEN: Final[Mapping[str, tuple[int, int]]] = {
    **connection.SPOKEN,
    "share_group_heartbeat": (1, 1),
    "share_group_describe": (1, 1),
    "share_fetch": (1, 2),
    "share_acknowledge": (1, 2),
    "describe_share_group_offsets": (0, 1),
    "alter_share_group_offsets": (0, 0),
    "delete_share_group_offsets": (0, 0),
    "incremental_alter_configs": (1, 1),
}
GROUP_RESOURCE: Final = 32
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
Acks = Mapping[int, Sequence[tuple[int, int, Sequence[int]]]]
"""By partition: first offset, last offset and types."""


class Given(NamedTuple):
    """What a ShareFetch gave of one partition."""

    error: str
    acknowledge_error: int
    acquired: list[tuple[int, int, int]]
    values: list[bytes]
    """Of the records that were acquired."""


class ShareMember:
    """One member and its session, at one topic. Not for several threads."""

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        topic: str,
        *,
        member_id: str = "",
        timeout_s: float = 30,
    ) -> None:
        address: Address = parse_address(bootstrap, setting="bootstrap")
        self.group_id = group_id
        self.topic = topic
        self.member_id = member_id or str(uuid.uuid4())
        self.epoch = 0
        self.session_epoch = 0
        self.connection = connection.Connection(address, timeout_s=timeout_s, spoken=SPOKEN)
        self.topic_id = self._topic_id()

    def close(self) -> None:
        self.connection.close()

    def beat(self, *, epoch: int | None = None, topics: tuple[str, ...] | None = None) -> Any:
        """Send a heartbeat; the first one joins."""
        epoch = self.epoch if epoch is None else epoch
        named = (self.topic,) if epoch == 0 and topics is None else topics
        reply = self.connection.request(
            "share_group_heartbeat",
            lambda types: types.ShareGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=epoch,
                subscribed_topic_names=named,
            ),
        )
        if not reply.error_code.value:
            self.epoch = reply.member_epoch
        return reply

    def fetch_reply(
        self,
        partitions: Sequence[int] = (),
        *,
        acks: Acks | None = None,
        epoch: int | None = None,
        wait_s: float = 5.0,
        max_records: int = 500,
        strict: bool = False,
        renews: bool = False,
        max_bytes: int = 1 << 20,
        batch_size: int = 0,
    ) -> Any:
        """Send a ShareFetch; the answer as it came."""
        epoch = self.session_epoch if epoch is None else epoch
        acks = acks or {}
        numbers = sorted({*partitions, *acks})

        def make(types: Any) -> Any:
            return types.ShareFetchRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                share_session_epoch=epoch,
                max_wait=timedelta(seconds=wait_s),
                min_bytes=0 if renews else 1,
                max_bytes=max_bytes,
                max_records=max_records,
                batch_size=batch_size,
                share_acquire_mode=int(strict),
                is_renew_ack=renews,
                topics=(
                    types.FetchTopic(
                        topic_id=self.topic_id,
                        partitions=tuple(
                            types.FetchPartition(
                                partition_index=number,
                                acknowledgement_batches=_batches(types, acks.get(number, ())),
                            )
                            for number in numbers
                        ),
                    ),
                )
                if numbers
                else (),
                forgotten_topics_data=(),
            )

        reply = self.connection.request("share_fetch", make, wait_s=wait_s)
        if not reply.error_code.value:
            self.session_epoch = epoch + 1 if epoch >= 0 else 0
        return reply

    def fetch(self, partitions: Sequence[int] = (), **options: Any) -> dict[int, Given]:
        """Send a ShareFetch; what it gave, by partition."""
        reply = self.fetch_reply(partitions, **options)
        assert reply.error_code.value == 0, reply
        found = {}
        for topic in reply.responses:
            for one in topic.partitions:
                acquired = [
                    (int(each.first_offset), int(each.last_offset), int(each.delivery_count))
                    for each in one.acquired_records
                ]
                values = [
                    value
                    for offset, value in values_of(bytes(one.records or b""))
                    if any(first <= offset <= last for first, last, _ in acquired)
                ]
                found[one.partition_index] = Given(
                    one.error_code.name.lower(), one.acknowledge_error_code, acquired, values
                )
        return found

    def acknowledge(
        self, acks: Acks, *, epoch: int | None = None, renews: bool = False
    ) -> tuple[str, dict[int, str]]:
        """Send a ShareAcknowledge: the error of all, and of each partition."""
        epoch = self.session_epoch if epoch is None else epoch

        def make(types: Any) -> Any:
            return types.ShareAcknowledgeRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                share_session_epoch=epoch,
                is_renew_ack=renews,
                topics=(
                    types.AcknowledgeTopic(
                        topic_id=self.topic_id,
                        partitions=tuple(
                            types.AcknowledgePartition(
                                partition_index=number,
                                acknowledgement_batches=_batches(types, batches),
                            )
                            for number, batches in acks.items()
                        ),
                    ),
                )
                if acks
                else (),
            )

        reply = self.connection.request("share_acknowledge", make)
        if not reply.error_code.value:
            self.session_epoch = epoch + 1 if epoch >= 0 else 0
        return reply.error_code.name.lower(), {
            one.partition_index: one.error_code.name.lower()
            for topic in reply.responses
            for one in topic.partitions
        }

    def offsets(self, *numbers: int) -> dict[int, tuple[int, int]]:
        """The start and lag of partitions, by DescribeShareGroupOffsets."""
        reply = self.connection.request(
            "describe_share_group_offsets",
            lambda types: types.DescribeShareGroupOffsetsRequest(
                groups=(
                    types.DescribeShareGroupOffsetsRequestGroup(
                        group_id=self.group_id,
                        topics=(
                            types.DescribeShareGroupOffsetsRequestTopic(
                                topic_name=self.topic, partitions=numbers
                            ),
                        ),
                    ),
                )
            ),
        )
        (group,) = reply.groups
        assert group.error_code.value == 0, group
        return {
            one.partition_index: (int(one.start_offset), int(one.lag))
            for topic in group.topics
            for one in topic.partitions
        }

    def start(self, number: int) -> int:
        """The start of a partition; -1: it is not known, or there is no group yet."""
        try:
            return self.offsets(number)[number][0]
        except AssertionError:
            return -1

    def configure(self, **values: str) -> str:
        """Set configs of the group, by their names with `_` for `.`; the error, if there is one."""
        reply = self.connection.request(
            "incremental_alter_configs",
            lambda types: types.IncrementalAlterConfigsRequest(
                resources=(
                    types.AlterConfigsResource(
                        resource_type=GROUP_RESOURCE,
                        resource_name=self.group_id,
                        configs=tuple(
                            types.AlterableConfig(
                                name=name.replace("_", "."), config_operation=0, value=value
                            )
                            for name, value in values.items()
                        ),
                    ),
                ),
                validate_only=False,
            ),
        )
        return str(reply.responses[0].error_code.name.lower())

    def alter(self, starts: Mapping[int, int]) -> tuple[str, dict[int, str]]:
        """Send AlterShareGroupOffsets."""
        reply = self.connection.request(
            "alter_share_group_offsets",
            lambda types: types.AlterShareGroupOffsetsRequest(
                group_id=self.group_id,
                topics=(
                    types.AlterShareGroupOffsetsRequestTopic(
                        topic_name=self.topic,
                        partitions=tuple(
                            types.AlterShareGroupOffsetsRequestPartition(
                                partition_index=number, start_offset=start
                            )
                            for number, start in starts.items()
                        ),
                    ),
                ),
            ),
        )
        return reply.error_code.name.lower(), {
            one.partition_index: one.error_code.name.lower()
            for topic in reply.responses
            for one in topic.partitions
        }

    def delete(self) -> tuple[str, list[str]]:
        """Send DeleteShareGroupOffsets of the topic."""
        reply = self.connection.request(
            "delete_share_group_offsets",
            lambda types: types.DeleteShareGroupOffsetsRequest(
                group_id=self.group_id,
                topics=(types.DeleteShareGroupOffsetsRequestTopic(topic_name=self.topic),),
            ),
        )
        return reply.error_code.name.lower(), [
            topic.error_code.name.lower() for topic in reply.responses
        ]

    def _topic_id(self) -> uuid.UUID:
        reply = self.connection.request(
            "metadata",
            lambda types: types.MetadataRequest(
                topics=(types.MetadataRequestTopic(topic_id=None, name=self.topic),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
        )
        (topic,) = reply.topics
        assert topic.topic_id is not None, topic
        found: uuid.UUID = topic.topic_id
        return found


def _batches(types: Any, batches: Sequence[tuple[int, int, Sequence[int]]]) -> tuple[Any, ...]:
    return tuple(
        types.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=tuple(kinds)
        )
        for first, last, kinds in batches
    )


def values_of(data: bytes) -> list[tuple[int, bytes]]:
    """Offsets and values of the records in batches."""
    found = []
    at = 0
    while at < len(data):
        header = stored_header(data, at)
        batch = memoryview(data)[at : at + header.length]
        found += [
            (header.base_offset + record.offset_delta, bytes(record.value or b""))
            for record in decode_batch(batch)
        ]
        at += header.length
    return found


def led_elsewhere(bootstrap: str, prefix: str) -> str:
    """Make topics of one partition until the agent that leads one is not the coordinator of the
    group named after it, TOPIC-readers; that topic's name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    eventually(lambda: len(admin.list_topics(timeout=30).brokers), lambda count: count > 1)
    address = bootstrap.split(",", maxsplit=1)[0]
    for number in range(100):
        topic = f"{prefix}{number}"
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        leader = _leader(admin, topic)
        while leader < 0:
            leader = _leader(admin, topic)
        if owner_of(address, f"{topic}-readers")[0] != leader:
            return topic
    raise AssertionError("the coordinators of 100 groups lead the partitions that these read")


def owner_of(address: str, group_id: str) -> tuple[int, str]:
    """The id and the address of a group's coordinator, as one agent names it."""
    asking = connection.Connection(
        parse_address(address, setting="bootstrap"), timeout_s=30, spoken=SPOKEN
    )

    def ask() -> tuple[int, str]:
        found = asking.request(
            "find_coordinator",
            lambda types: types.FindCoordinatorRequest(key=group_id, key_type=0),
        )
        return int(found.node_id), f"{found.host}:{int(found.port)}"

    try:
        return eventually(ask, lambda found: found[0] >= 0)
    finally:
        asking.close()


def _leader(admin: AdminClient, topic: str) -> int:
    shown = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return int(shown[0].leader) if 0 in shown else -1
