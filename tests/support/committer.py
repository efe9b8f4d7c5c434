"""Commits of groups' offsets that go to exactly one agent, and what is committed."""

from __future__ import annotations

import threading
from typing import Any

from penstock.config.addresses import parse_address
from penstock.kafka.wire.schema import build
from penstock.model.errors import PenstockError
from support.connection import Connection


class Committer:
    """Commits for a group without members, or in a member's name, always to one agent, whoever
    coordinates."""

    def __init__(
        self,
        address: str,
        group_id: str,
        topic: str,
        *,
        member_id: str = "",
        generation: int = -1,
    ) -> None:
        self._group_id = group_id
        self._topic = topic
        self._member_id = member_id
        self._generation = generation
        self._connection = Connection(parse_address(address, setting="agent"), timeout_s=120)
        self._late: list[str] = []
        self._thread: threading.Thread | None = None

    def commit(self, offset: int) -> str:
        """The name of the error, "NONE", or that of what became of the connection."""

        def make(types: Any) -> Any:
            partition = build(
                types.OffsetCommitRequestPartition,
                partition_index=0,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            topic = build(types.OffsetCommitRequestTopic, name=self._topic, partitions=(partition,))
            return build(
                types.OffsetCommitRequest,
                group_id=self._group_id,
                generation_id_or_member_epoch=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
                retention_time_ms=-1,
                topics=(topic,),
            )

        try:
            answer: Any = self._connection.request("offset_commit", make)
        except PenstockError as error:
            return type(error).__name__
        return str(answer.topics[0].partitions[0].error_code.name.upper())

    def begin(self, offset: int) -> None:
        """Send a commit to an agent that is stopped: it finds it when it wakes."""
        self._thread = threading.Thread(target=lambda: self._late.append(self.commit(offset)))
        self._thread.start()

    def end(self) -> str:
        """What became of it."""
        assert self._thread is not None
        self._thread.join()
        self.close()
        return self._late[0]

    def close(self) -> None:
        self._connection.close()


def committed(bootstrap: str, group_id: str, topic: str, partitions: int) -> dict[int, int]:
    """By partition, the offset that a group's coordinator tells."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found = consumer.committed(places, timeout=90)
    consumer.close()
    return {one.partition: one.offset for one in found}
