"""Topics of a running server for tests that write a lot and read by other ways than Kafka's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from support.waiting import eventually

_NUMBERS = itertools.count()
CREATE_TIME = 1


class Topics:
    """Makes topics, fills them, and takes away from them, by a real client."""

    def __init__(self, bootstrap: str, *, idempotent: bool = True) -> None:
        """`idempotent`: a producer of librdkafka then waits half a second for its id, at each
        `write`; not needed where the server neither goes away nor loses replies."""
        self.bootstrap = bootstrap
        self.idempotent = idempotent
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def make(self, partitions: int = 1, *, name: str = "", **configs: str) -> str:
        """A new topic; `configs` with `_` for each dot. Returns: its name."""
        name = name or f"topic-{os.getpid()}-{next(_NUMBERS)}"
        # Records of tests may be years old, and the server looks for such every five minutes.
        wanted = {"retention.ms": "-1"}
        wanted |= {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, partitions, config=wanted)
        for future in self.admin.create_topics([new]).values():
            future.result(90)
        eventually(lambda: len(self.known(name)) == partitions)
        return name

    def known(self, name: str) -> dict[int, Any]:
        """The partitions that the server tells of; none without the topic."""
        topics = self.admin.list_topics(timeout=60).topics
        return dict(topics[name].partitions) if name in topics else {}

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until the server says so."""
        for future in self.admin.delete_topics([name]).values():
            future.result(90)
        eventually(lambda: not self.known(name))

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions, up to so many."""
        for future in self.admin.create_partitions([NewPartitions(name, partitions)]).values():
            future.result(90)
        eventually(lambda: len(self.known(name)) == partitions)

    def trim(self, name: str, partition: int, offset: int) -> None:
        """Delete the records before an offset."""
        answers = self.admin.delete_records([TopicPartition(name, partition, offset)])
        for future in answers.values():
            future.result(90)

    def write(
        self,
        name: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[list[tuple[str, bytes | None]]] | None = None,
        **settings: Any,
    ) -> None:
        """Write records to a partition, in order, and wait until all are acknowledged.

        Args:
            settings: of librdkafka, with `_` for each dot.
        """
        errors: list[Any] = []
        # In one batch, as far as that holds them: `flush` waits for no linger.
        config = {"enable.idempotence": self.idempotent, "queue.buffering.max.messages": 10**6}
        config["linger.ms"] = 5000
        producer = Producer(
            {"bootstrap.servers": self.bootstrap}
            | config
            | {key.replace("_", "."): value for key, value in settings.items()}
        )

        def note(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        for index, value in enumerate(values):
            more: dict[str, Any] = {}
            if timestamps is not None:
                more["timestamp"] = timestamps[index]
            if headers is not None:
                more["headers"] = headers[index]
            producer.produce(
                name,
                value=value,
                key=keys[index] if keys is not None else key,
                partition=partition,
                on_delivery=note,
                **more,
            )
            producer.poll(0)
        assert producer.flush(180) == 0, f"{name}: records weren't acknowledged"
        assert not errors, errors[:3]
