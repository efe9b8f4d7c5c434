"""A broker without disks: metadata in dictionaries, a log that answers what a test sets.

The handlers' own work is what these tests look at; the real order and log have their own, and
tests of the whole server run them together.
"""

import asyncio
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kio.serial import entity_reader

from penstock.kafka import schema
from penstock.kafka.broker import Broker
from penstock.kafka.context import ConnectionState, RequestContext
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.settings import KafkaSettings
from penstock.metadata.commands import (
    AlterClusterConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Done,
    Refusal,
    Refused,
    TopicCreated,
)
from penstock.model.ids import PartitionKey, TopicKey


class StandInView:
    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self.cluster_configs: dict[str, str] = {}
        self.generation = 0

    def topic(self, name: str) -> Any:
        return self.by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> Any:
        return next((t for t in self.by_name.values() if t.topic_id == topic_id), None)

    def topics(self) -> Any:
        return list(self.by_name.values())


class StandInCommitter:
    def __init__(self, view: StandInView) -> None:
        self.view = view
        self.keys = 0
        self.failure: Exception | None = None
        self.calls = 0

    async def commit(self, commands: Sequence[Any]) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        self.calls += 1
        return [self.apply(command) for command in commands]

    def apply(self, command: Any) -> Any:
        view = self.view
        view.generation += 1
        if isinstance(command, CreateTopic):
            if command.name in view.by_name:
                return Refused(Refusal.TOPIC_EXISTS)
            self.keys += 1
            view.by_name[command.name] = SimpleNamespace(
                topic_key=TopicKey(self.keys),
                topic_id=command.topic_id,
                name=command.name,
                partitions=command.partitions,
                configs=dict(command.configs),
            )
            return TopicCreated(self.keys)
        if isinstance(command, AlterClusterConfigs):
            view.cluster_configs.update(command.set)
            for name in command.unset:
                view.cluster_configs.pop(name, None)
            return Done()
        topic = view.topic_by_id(command.topic_id)
        if topic is None:
            return Refused(Refusal.UNKNOWN_TOPIC)
        if isinstance(command, DeleteTopic):
            del view.by_name[topic.name]
        elif isinstance(command, CreatePartitions):
            topic.partitions = command.partitions
        elif isinstance(command, AlterTopicConfigs):
            topic.configs.update(command.set)
            for name in command.unset:
                topic.configs.pop(name, None)
        return Done()


class StandInLog:
    def __init__(self) -> None:
        self.starts: dict[PartitionKey, int] = {}
        self.ends: dict[PartitionKey, int] = {}
        self.times: dict[PartitionKey, list[tuple[int, int]]] = {}
        self.producer_ids = 1000
        self.failure: Exception | None = None

    def high_watermark(self, key: PartitionKey) -> int:
        return self.ends.get(key, 0)

    last_stable_offset = high_watermark

    def log_start(self, key: PartitionKey) -> int:
        return self.starts.get(key, 0)

    async def offset_for_time(self, key: PartitionKey, timestamp_ms: int) -> Any:
        if self.failure is not None:
            raise self.failure
        return next((at for at in self.times.get(key, []) if at[1] >= timestamp_ms), None)

    async def offset_of_max_timestamp(self, key: PartitionKey) -> Any:
        return max(self.times.get(key, []), key=lambda at: at[1], default=None)

    async def allocate_producer_id(self) -> tuple[int, int]:
        if self.failure is not None:
            raise self.failure
        self.producer_ids += 1
        return self.producer_ids, 0

    async def delete_records(self, items: Sequence[tuple[PartitionKey, int]]) -> list[int]:
        answers = []
        for key, offset in items:
            end = self.high_watermark(key)
            wanted = end if offset == -1 else offset
            if wanted > end:
                answers.append(-Refusal.OFFSET_OUT_OF_RANGE)
                continue
            self.starts[key] = max(self.log_start(key), wanted)
            answers.append(self.starts[key])
        return answers

    def partition_bytes(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        return {key: 100 * self.high_watermark(key) for key in keys}


class TestClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_s(self) -> float:
        return self.seconds


class SystemRandom:
    def token_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def below(self, bound: int) -> int:
        return 0


class NoSink:
    def unsent_bytes(self) -> int:
        return 0

    def reply_room_bytes(self) -> int:
        return 1 << 20

    def reserve_reply(self, byte_count: int) -> None:
        pass


def make_broker(**settings: Any) -> Broker:
    view = StandInView()
    fields: dict[str, Any] = {
        "view": view,
        "committer": StandInCommitter(view),
        "log": StandInLog(),
        "groups": None,
        "clock": TestClock(),
        "random": SystemRandom(),
    }
    return Broker(
        **fields,
        cluster_id="Yz2BjVWrSSyv9UxQ8nMBhQ",
        node_id=7,
        advertised_host="127.0.0.1",
        advertised_port=9092,
        settings=KafkaSettings(**settings),
    )


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture
def broker_with() -> Any:
    return make_broker


@pytest.fixture
def add_topic(broker: Broker) -> Any:
    def add(name: str, partitions: int = 1, **configs: str) -> Any:
        committer: Any = broker.committer
        committer.apply(
            CreateTopic(
                name=name,
                topic_id=os.urandom(16),
                partitions=partitions,
                configs={key.replace("_", "."): value for key, value in configs.items()},
            )
        )
        return broker.view.topic(name)

    return add


def call_handler(broker: Broker, api: str, version: int, request: Any) -> Any:
    """Send a kio request through decoding, the handler and encoding; read it back with kio."""
    entry = BY_MODULE[api]
    context = RequestContext(
        entry.key, version, 1, "test", "127.0.0.1", broker, ConnectionState(1, NoSink())
    )
    body = memoryview(schema.encode_request(request))
    handler = entry.load()

    async def run() -> bytes:
        if entry.raw:
            reply = handler.serve(context, body)
            if asyncio.isfuture(reply):
                reply = await reply
            return b"".join(bytes(part) for part in reply)
        decoded = schema.decode_request(api, version, body)
        assert decoded == request
        return schema.encode_response(await handler.handle(context, decoded))

    encoded = asyncio.run(run())
    response_type = type(request).__name__.replace("Request", "Response")
    types = schema.response_types(api, version)
    response, length = entity_reader(getattr(types, response_type))(encoded, 0)
    assert length == len(encoded)
    return response


@pytest.fixture
def call(broker: Broker) -> Any:
    def run(api: str, version: int, request: Any) -> Any:
        return call_handler(broker, api, version, request)

    return run


@pytest.fixture
def call_on() -> Any:
    return call_handler


@pytest.fixture
def request_of() -> Any:
    """Build a request of an API's version; nested entities by (class name, fields)."""

    def make(api: str, version: int, **fields: Any) -> Any:
        types = schema.request_types(api, version)
        name = BY_MODULE[api].name + "Request"
        return schema.build(getattr(types, name), **fields)

    return make


@pytest.fixture
def part_of() -> Any:
    def make(api: str, version: int, kind: str, /, **fields: Any) -> Any:
        return schema.build(getattr(schema.request_types(api, version), kind), **fields)

    return make
