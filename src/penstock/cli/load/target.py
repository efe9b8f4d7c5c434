"""A target is the server that is measured; it makes topics there, and clients of librdkafka.

Everything that a workload claims is checked against the server's own offsets (`stored`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock.cli.client.errors import translated
from penstock.cli.client.librdkafka import Log, confluent_kafka, settings
from penstock.config.addresses import Address
from penstock.model.errors import InvalidRequestError, PenstockError, RetryableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import TopicMetadata

    _Client = Producer | Consumer | AdminClient

_T = TypeVar("_T")

LEADERS_S: Final = 30.0
_POLL_S: Final = 0.05


class Target:
    """A server of Kafka's protocol.

    Args:
        bootstrap: the address of any node.
        timeout_s: the longest time that one request may take.
        client_settings: librdkafka's settings for every client, for example `security.protocol`.
        producer_settings: librdkafka's settings for producers; a workload's own settings win.
    """

    def __init__(
        self,
        bootstrap: Address,
        *,
        timeout_s: float,
        client_settings: Mapping[str, str],
        producer_settings: Mapping[str, str],
    ) -> None:
        self.log = Log()
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._client_settings = dict(client_settings)
        self._producer_settings = dict(producer_settings)
        self._settings = {**settings(bootstrap, timeout_s, self.log), **client_settings}
        self._kafka = confluent_kafka()

    def __reduce__(self) -> tuple[object, ...]:
        settings = (self._client_settings, self._producer_settings)
        return _made_again, (self._bootstrap, self._timeout_s, *settings)

    def producer(self, **more: object) -> Producer:
        """Make a connected producer.

        Args:
            more: librdkafka's settings with `_` for `.`; `client_settings` win over them.

        Raises:
            InvalidRequestError: librdkafka refuses a setting.
            RetryableError: no node answers.
        """
        given = {name.replace("_", "."): value for name, value in more.items()}
        made: Producer = self._made(self._kafka.Producer, {**given, **self._producer_settings})
        self._connect(made)
        return made

    def consumer(self, group: str, **more: object) -> Consumer:
        """Make a consumer that commits nothing; it connects when it is assigned partitions."""
        given = {name.replace("_", "."): value for name, value in more.items()}
        made: Consumer = self._made(
            self._kafka.Consumer, {"group.id": group, "enable.auto.commit": False, **given}
        )
        return made

    def make_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic, and wait until each partition has a leader.

        Raises:
            PenstockError: the server refuses the topic, or names no leaders in `LEADERS_S`.
        """
        admin = self._admin()
        self._connect(admin)
        topic = self._kafka.admin.NewTopic(name, partitions, -1, config=dict(configs))
        try:
            for created in admin.create_topics([topic], request_timeout=self._timeout_s).values():
                created.result()
        except self._kafka.KafkaException as error:
            raise self._as_ours(error, admin, "create", f"topic {name}") from error
        end_s = time.monotonic() + LEADERS_S
        led = 0
        while time.monotonic() < end_s:
            found = self._metadata(admin, name)
            led = sum(partition.leader >= 0 for partition in found.partitions.values())
            if found.error is None and led == partitions:
                return
            time.sleep(_POLL_S)
        raise RetryableError(
            "create",
            f"topic {name}",
            f"{led} of {partitions} partitions have a leader after {LEADERS_S:g} s",
            self.log.failure,
        )

    def drop_topic(self, name: str) -> None:
        """Delete a topic. Raises: PenstockError, where the server refuses."""
        admin = self._admin()
        try:
            for deleted in admin.delete_topics([name], request_timeout=self._timeout_s).values():
                deleted.result()
        except self._kafka.KafkaException as error:
            raise self._as_ours(error, admin, "delete", f"topic {name}") from error

    def partitions(self, name: str) -> int:
        """Return a topic's number of partitions. Raises: InvalidRequestError: there is no such
        topic."""
        found = self._metadata(self._admin(), name)
        if found.error is not None:
            raise InvalidRequestError("read", f"topic {name}", found.error.str())
        return len(found.partitions)

    def stored(self, name: str) -> int:
        """Return how many offsets a topic's partitions span, as the server says now."""
        consumer = self.consumer("penstock-bench-count")
        try:
            total = 0
            for partition in range(self.partitions(name)):
                place = self._kafka.TopicPartition(name, partition)
                low, high = consumer.get_watermark_offsets(
                    place, timeout=self._timeout_s, cached=False
                )
                total += high - low
            return total
        except self._kafka.KafkaException as error:
            raise self._as_ours(error, consumer, "read", f"offsets of {name}") from error
        finally:
            consumer.close()

    def places(self, name: str, partitions: int) -> list[TopicPartition]:
        """The start of each partition of a topic, for `Consumer.assign`."""
        return [self._kafka.TopicPartition(name, partition, 0) for partition in range(partitions)]

    def _admin(self) -> AdminClient:
        made: AdminClient = self._made(self._kafka.admin.AdminClient, {})
        return made

    def _made(self, kind: Callable[[dict[str, object]], _T], more: Mapping[str, object]) -> _T:
        try:
            return kind({**self._settings, **more})
        except self._kafka.KafkaException as error:
            why = error.args[0].str()
            hint = "--client takes the names and values of librdkafka's CONFIGURATION.md"
            raise InvalidRequestError("set up", "a client", why, hint) from error

    def _connect(self, client: _Client) -> None:
        """Connect a client now, before the measured time, and raise the reason if that fails."""
        try:
            client.list_topics(timeout=self._timeout_s)
        except self._kafka.KafkaException as error:
            raise self._as_ours(error, client, "reach", "the server") from error

    def _metadata(self, client: _Client, name: str) -> TopicMetadata:
        try:
            return client.list_topics(name, timeout=self._timeout_s).topics[name]
        except self._kafka.KafkaException as error:
            raise self._as_ours(error, client, "describe", f"topic {name}") from error

    def _as_ours(
        self,
        error: Exception,
        client: _Client,
        operation: str,
        subject: str,
    ) -> PenstockError:
        client.poll(0)  # passes on log lines, one of which says why no connection was made
        return translated(error.args[0], operation, subject, failure=self.log.failure)


def _made_again(
    bootstrap: Address,
    timeout_s: float,
    client_settings: dict[str, str],
    producer_settings: dict[str, str],
) -> Target:
    """Make a target again in a process that gets one, since processes can't share clients."""
    return Target(
        bootstrap,
        timeout_s=timeout_s,
        client_settings=client_settings,
        producer_settings=producer_settings,
    )


class Failures:
    """Counts the errors of delivery reports, and keeps the first error's reason."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def note(self, error: object) -> None:
        """Take the error of one record."""
        self.count += 1
        self.first = self.first or str(error)


class Report(msgspec.Struct, kw_only=True):
    """A workload's report. `ok`: the server has, or gave, exactly the records of the workload."""

    workload: str
    ok: bool
    topic: str
    record_count: int
    failed_count: int
    first_failure: str
