"""A broker with the real order and view, on a file without fsync, and a log that answers what a
test sets: bytes have tests of their own, and tests of the whole server run everything together.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from kio.serial import entity_reader

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.registry import APIS, BY_MODULE
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.wire import schema
from penstock.model.ids import PartitionKey
from penstock.model.steps import at_once
from penstock.state.answers import AnyAnswer, Refusal
from penstock.state.commands import AnyCommand, CreateTopic
from penstock.state.orders import LocalJournal, open_local_journal
from penstock.state.read.view import StateView
from penstock.state.rows import ActiveProducer, PartitionProducer
from penstock.state.transactions import Transaction, TransactionState
from penstock.system import SystemRandom
from support.loopback import RawHandler
from support.replies import body_of
from support.replies import encoded as encoded_answer
from support.simulated.clock import ManualClock


class OrderCommitter:
    """The real order on a file of the test's, applied at once, with its view."""

    def __init__(self, folder: Path, clock: Any) -> None:
        self.view = StateView()
        self.failure: Exception | None = None
        self.calls = 0
        self._folder = folder
        self._clock = clock
        self._order: LocalJournal | None = None

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        if self.failure is not None:
            raise self.failure
        self.calls += 1
        return self.apply(*commands)

    def apply(self, *commands: AnyCommand) -> list[AnyAnswer]:
        if self._order is None:
            # Tests of connections need none, and opening one costs milliseconds.
            self._order = open_local_journal(
                self._folder / "journal.sqlite",
                clock=self._clock,
                random=SystemRandom(),
                fsync=False,
            )
        applied = self._order.append(commands)
        self.view.apply(applied.outcome.changes)
        return applied.outcome.answers

    def close(self) -> None:
        if self._order is not None:
            self._order.close()


class StandInTransactions:
    """Every transactional id is that of an open transaction with a group, and every partition has
    its producer."""

    def __init__(self) -> None:
        self._row = Transaction(
            producer_id=0,
            transactional_id="x" * 300,
            epoch=0,
            last_epoch=-1,
            last_producer_id=-1,
            state=TransactionState.ONGOING,
            timeout_ms=1,
            since=1,
            changed_ms=0,
            added=1,
            offsets=0,
        )

    async def find(self, transactional_ids: Sequence[str]) -> list[Transaction | None]:
        return [self._row for _ in transactional_ids]

    async def page(self, after: int, *, limit: int) -> list[Transaction]:
        return [self._row] if after < 0 else []

    async def of_producer(self, producer_id: int) -> tuple[Transaction, dict[PartitionKey, int]]:
        return self._row, {}

    async def producer_count(self, key: PartitionKey) -> int:
        return 1

    async def producers(
        self, key: PartitionKey, after: int, *, limit: int
    ) -> list[PartitionProducer]:
        return [PartitionProducer(ActiveProducer(1, 1, 1, 1), -1)] if after < 0 else []

    async def epochs(self, keys: Sequence[PartitionKey], producer_id: int) -> dict[int, int]:
        return {}


class StandInLog:
    def __init__(self) -> None:
        self.transaction_reads = StandInTransactions()
        self.starts: dict[PartitionKey, int] = {}
        self.ends: dict[PartitionKey, int] = {}
        self.times: dict[PartitionKey, list[tuple[int, int]]] = {}
        self.producer_ids = 1000
        self.failure: Exception | None = None
        self.failed: list[tuple[PartitionKey, BaseException]] = []

    def hold(self) -> None:
        pass

    def settle(self, *, all_came: bool = False) -> None:
        pass

    def read_failed(self, key: PartitionKey, error: BaseException) -> None:
        self.failed.append((key, error))

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

    async def let_queries_find(self) -> None:
        """Nothing is behind."""

    def queries(self) -> Any:
        """There is no transaction."""
        return SimpleNamespace(transaction=lambda _: None)

    def partition_bytes(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        return {key: 100 * self.high_watermark(key) for key in keys}


class NoSink:
    def unsent_bytes(self) -> int:
        return 0

    def reply_room_bytes(self) -> int:
        return 1 << 20

    def is_asked_more(self) -> bool:
        return False

    def takes_files(self) -> bool:
        return False

    def reserve_answer(self, byte_count: int) -> None:
        pass


def make_broker(folder: Path, **settings: Any) -> Broker:
    clock = ManualClock(now_ms=1_000_000)
    committer = OrderCommitter(folder, clock)
    fields: dict[str, Any] = {
        "view": committer.view,
        "committer": committer,
        "log": StandInLog(),
        "groups": None,
        "clock": clock,
        "random": SystemRandom(),
    }
    return Broker(
        **fields,
        cluster_id="Yz2BjVWrSSyv9UxQ8nMBhQ",
        node_id=7,
        advertised_host="127.0.0.1",
        advertised_port=9092,
        position=lambda: 0,
        settings=KafkaSettings(**settings),
    )


@pytest.fixture
def broker_with(tmp_path: Path) -> Iterator[Any]:
    """Make brokers with settings of their own."""
    made: list[Broker] = []

    def make(**settings: Any) -> Broker:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(make_broker(folder, **settings))
        return made[-1]

    yield make
    for broker in made:
        committer: Any = broker.committer
        committer.close()


@pytest.fixture
def broker(broker_with: Any) -> Any:
    return broker_with()


@pytest.fixture
def add_topic(broker: Any) -> Any:
    """Create a topic; gives its name."""

    def add(name: str, partitions: int = 1, **configs: str) -> Any:
        broker.committer.apply(
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
            return body_of(reply)
        decoded = at_once(schema.taken_steps(api, version, body))
        return await encoded_answer(await handler.handle(context, decoded))

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


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, RawHandler], None]:
    """Put a raw handler of the test in an API's place."""

    def put(key: int, serve: RawHandler) -> None:
        monkeypatch.setattr(APIS[key], "handler", SimpleNamespace(serve=serve))
        monkeypatch.setattr(APIS[key], "raw", True)

    return put


@pytest.fixture(params=["asyncio", "uvloop"])
def either_loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], asyncio.AbstractEventLoop]:
    """A test that uses it runs on both event loops. Gives what makes the loop."""
    if request.param == "asyncio":
        return asyncio.new_event_loop

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        # Not `uvloop.run`, which calls `asyncio.run` where that takes a loop factory.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)

    monkeypatch.setattr(asyncio, "run", run)
    return uvloop.new_event_loop
