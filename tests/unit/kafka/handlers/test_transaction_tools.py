"""What `kafka-transactions` asks: DescribeTransactions, ListTransactions, DescribeProducers and
WriteTxnMarkers, with the answers of Kafka 4.3.1."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers import list_transactions
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.transaction_states import lister
from penstock.kafka.wire import schema
from penstock.model.steps import at_once
from penstock.state.command import OffsetWrite
from penstock.state.commands import DeleteTopic
from penstock.state.transaction_commands import CommitToTransaction
from support.api_client import ApiClient
from support.log_rig import NOW, Rig
from support.replies import encoded as encoded_answer
from support.transactional_producer import TransactionalProducer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Tool:
    """An administrator's client."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.client = ApiClient(rig.agent.broker)

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        """By the project's own reader, since kio's can't read that there is no time."""
        entry, client = BY_MODULE[api], self.client
        context = RequestContext(
            entry.key, version, 1, "tool", "127.0.0.1", client.broker, client.connection
        )
        request_type = schema._entity_type(api, version, "Request")
        body = memoryview(schema.encode_request(schema.build(request_type, **fields)))
        decoded = at_once(schema.taken_steps(api, version, body))
        answer = await encoded_answer(await entry.load().handle(context, decoded))
        return schema.decode_response(api, version, answer)

    async def describe(self, *ids: str) -> list[Any]:
        answer = await self.ask("describe_transactions", 0, transactional_ids=ids)
        return list(answer.transaction_states)

    async def list(self, version: int = 2, **filters: Any) -> tuple[int, list[str], list[str]]:
        """Error, unknown filters, and id:state of each."""
        fields = {
            "state_filters": (),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        answer = await self.ask("list_transactions", version, **(fields | filters))
        return (
            int(answer.error_code),
            list(answer.unknown_state_filters),
            [
                f"{row.transactional_id}:{row.transaction_state}"
                for row in answer.transaction_states
            ],
        )

    async def producers(self, *topics: tuple[str, tuple[int, ...]]) -> dict[Any, Any]:
        types = schema.request_types("describe_producers", 0)
        answer = await self.ask(
            "describe_producers",
            0,
            topics=tuple(
                types.TopicRequest(name=name, partition_indexes=numbers) for name, numbers in topics
            ),
        )
        return {
            (topic.name, partition.partition_index): partition
            for topic in answer.topics
            for partition in topic.partitions
        }

    async def mark(
        self, version: int, *marker: Any, commits: bool = False, **topics: tuple[int, ...]
    ) -> dict[Any, str]:
        """Errors by topic and partition."""
        types = schema.request_types("write_txn_markers", version)
        producer_id, epoch = marker
        made = schema.build(
            types.WritableTxnMarker,
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commits,
            coordinator_epoch=0,
            transaction_version=2,
            topics=tuple(
                types.WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
                for name, numbers in topics.items()
            ),
        )
        answer = await self.ask("write_txn_markers", version, markers=(made,))
        (result,) = answer.markers
        assert result.producer_id == producer_id
        return {
            (topic.name, partition.partition_index): partition.error_code.name.lower()
            for topic in result.topics
            for partition in topic.partitions
        }


@pytest.fixture
def tool(rig: Rig) -> Tool:
    return Tool(rig)


async def begun(rig: Rig, name: str, *keys: Any) -> TransactionalProducer:
    producer = TransactionalProducer(rig, name)
    await producer.begin()
    for key in keys:
        producer.sequence = 0
        await producer.write(key, b"a")
    return producer


# -- DescribeTransactions ----------------------------------------------------------------------


async def test_a_transaction_is_described_in_each_of_its_states(rig: Rig, tool: Tool) -> None:
    keys = await rig.topic("t", partitions=3)
    (other,) = await rig.topic("s")
    producer = await begun(rig, "x")
    (state,) = await tool.describe("x")
    assert (state.error_code.name.lower(), state.transaction_state) == ("none", "Empty")
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, 0)
    assert (state.transaction_timeout, state.transaction_start_time) == (timedelta(minutes=1), None)
    assert state.topics == ()
    for key in (keys[2], other, keys[0]):
        producer.sequence = 0
        await producer.write(key, b"a")
    topic = rig.view.topic("t")
    assert topic is not None
    # A group isn't a partition.
    pending = CommitToTransaction(
        transactional_id="x",
        producer_id=producer.producer_id,
        epoch=producer.epoch,
        group_id="g",
        offsets=[OffsetWrite(topic_id=topic.topic_id, partition=0, offset=1)],
        adds_group=True,
    )
    await rig.log.commit([pending])
    (state,) = await tool.describe("x", "x")
    assert state.transaction_state == "Ongoing"
    assert state.transaction_start_time == EPOCH + timedelta(milliseconds=NOW)
    assert [(one.topic, one.partitions) for one in state.topics] == [("s", (0,)), ("t", (0, 2))]
    await rig.log.commit([DeleteTopic(topic_id=topic.topic_id)])
    (state,) = await tool.describe("x")
    assert [one.topic for one in state.topics] == ["s"]
    for commits, name in ((True, "CompleteCommit"), (False, "CompleteAbort")):
        await producer.end(commits=commits)
        (state,) = await tool.describe("x")
        assert (state.transaction_state, state.producer_epoch) == (name, producer.epoch)
        assert (state.transaction_start_time, state.topics) == (None, ())
        await producer.write(other, b"b")


async def test_ids_that_are_not_there_are_errors_with_empty_fields(tool: Tool) -> None:
    nothing = ("", timedelta(0), EPOCH, 0, 0, ())
    errors = {}
    for state in await tool.describe("nope", ""):
        errors[state.transactional_id] = state.error_code.name.lower()
        assert nothing == (
            state.transaction_state,
            state.transaction_timeout,
            state.transaction_start_time,
            state.producer_id,
            state.producer_epoch,
            state.topics,
        )
    assert errors == {"nope": "transactional_id_not_found", "": "invalid_request"}
    assert await tool.describe() == []


# -- ListTransactions --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_transactions_are_listed_by_state_and_producer(
    rig: Rig, tool: Tool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_transactions, "PAGE_ROWS", 2)
    (key,) = await rig.topic("t")
    assert await tool.list(version) == (0, [], [])
    one = await begun(rig, "open", key)
    await begun(rig, "empty")
    done = await begun(rig, "done", key)
    await done.end(commits=True)
    everything = ["open:Ongoing", "empty:Empty", "done:CompleteCommit"]
    assert await tool.list(version) == (0, [], everything)
    found = await tool.list(version, state_filters=("Ongoing", "Empty", "bogus", "bogus", "Dead"))
    assert found == (0, ["bogus"], everything[:2])
    # Kafka looks at upper and lower case here, and a filter of unknown states passes nothing.
    found = await tool.list(version, state_filters=("ongoing", "PrepareEpochFence"))
    assert found == (0, ["ongoing"], [])
    found = await tool.list(version, producer_id_filters=(one.producer_id, 12345))
    assert found == (0, [], everything[:1])


async def test_transactions_are_listed_by_how_long_they_are_open(rig: Rig, tool: Tool) -> None:
    (key,) = await rig.topic("t")
    await begun(rig, "old", key)
    rig.clock.advance(60)
    await begun(rig, "young", key)
    await begun(rig, "empty")
    rig.clock.advance(1)
    everything = ["old:Ongoing", "young:Ongoing", "empty:Empty"]
    assert await tool.list(1, duration_filter=0) == (0, [], everything)
    assert await tool.list(1, duration_filter=1000) == (0, [], [everything[0], everything[2]])
    assert await tool.list(1, duration_filter=3_600_000) == (0, [], everything[2:])


async def test_a_pattern_matches_whole_ids_in_linear_time(rig: Rig, tool: Tool) -> None:
    for name in ("e1", "e2", "f1"):
        await begun(rig, name)
    assert (await tool.list(transactional_id_pattern="e"))[2] == []
    assert (await tool.list(transactional_id_pattern="e."))[2] == ["e1:Empty", "e2:Empty"]
    assert len((await tool.list(transactional_id_pattern=""))[2]) == 3
    for pattern in ("e(", r"(e)\1"):
        found = await tool.list(transactional_id_pattern=pattern, state_filters=("bogus",))
        assert found == (128, [], [])
    await begun(rig, "a" * 2_000)
    assert (await tool.list(transactional_id_pattern="(a*)*b"))[2] == []


def test_each_id_is_listed_by_one_broker() -> None:
    class Several:
        def all(self) -> Any:
            return [Named(1), Named(2), Named(3)]

    class Named:
        def __init__(self, node_id: int) -> None:
            self.node_id = node_id

    nodes: Any = Several()
    listers = [lister(nodes, me) for me in (1, 2, 3)]
    for number in range(100):
        assert sum(is_mine(f"x{number}") for is_mine in listers) == 1


# -- DescribeProducers -------------------------------------------------------------------------


async def test_producers_of_partitions_are_described(rig: Rig, tool: Tool) -> None:
    first, second, _ = await rig.topic("t", partitions=3)
    await rig.append(first, b"a")
    producer = await begun(rig, "x", first, second)
    await rig.append(first, b"b", producer=(900, 3, 7))
    found = await tool.producers(("t", (0, 1, 0)), ("t", (2, 7)), ("nope", (0,)), ("", (0,)))
    rows = {
        key: [
            (
                one.producer_id,
                one.producer_epoch,
                one.last_sequence,
                one.last_timestamp,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )
            for one in partition.active_producers
        ]
        for key, partition in found.items()
    }
    mine = producer.producer_id, 0, 0, NOW, -1
    assert rows == {
        ("t", 0): [(*mine, 1), (900, 3, 7, NOW, -1, -1)],
        ("t", 1): [(*mine, 0)],
        ("t", 2): [],
        ("t", 7): [],
        ("nope", 0): [],
        ("", 0): [],
    }
    errors = {key: (one.error_code.name.lower(), one.error_message) for key, one in found.items()}
    assert errors == {
        ("t", 0): ("none", None),
        ("t", 1): ("none", None),
        ("t", 2): ("none", None),
        ("t", 7): ("unknown_topic_or_partition", None),
        ("nope", 0): (
            "unknown_topic_or_partition",
            "This server does not host this topic-partition.",
        ),
        ("", 0): ("invalid_topic_exception", "the topic name is empty"),
    }
    await producer.end(commits=True)
    found = await tool.producers(("t", (1,)))
    (state,) = found["t", 1].active_producers
    assert state.current_txn_start_offset == -1


async def test_after_an_end_of_protocol_v2_a_producer_has_the_markers_epoch(
    rig: Rig, tool: Tool
) -> None:
    """As Kafka's appendEndTxnMarker: the sequences of the former epoch are gone."""
    (key,) = await rig.topic("t", partitions=1)
    producer = await begun(rig, "x", key)
    await producer.end(commits=True)
    found = await tool.producers(("t", (0,)))
    (state,) = found["t", 0].active_producers
    assert (state.producer_epoch, state.last_sequence) == (1, -1)


# -- WriteTxnMarkers ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_an_operator_aborts_a_transaction_by_one_of_its_partitions(
    rig: Rig, tool: Tool, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await rig.topic("t", partitions=2)
    producer = await begun(rig, "x", first, second)
    mine = producer.producer_id, producer.epoch
    errors = await tool.mark(version, *mine, t=(0, 9), nope=(0,))
    assert errors == {
        ("t", 0): "none",
        ("t", 9): "unknown_topic_or_partition",
        ("nope", 0): "unknown_topic_or_partition",
    }
    (state,) = await tool.describe("x")
    assert (state.transaction_state, state.producer_epoch) == ("CompleteAbort", 1)
    for key in (first, second):
        head = rig.view.head(key)
        assert head is not None
        assert (head.next_offset, head.last_stable) == (2, 2)
    assert "client 'tool' at 127.0.0.1 aborted the open transaction of 'x'" in caplog.text
    # Once more: nothing is open, and nothing is written.
    assert await tool.mark(version, *mine, t=(0,)) == {("t", 0): "none"}
    head = rig.view.head(first)
    assert head is not None
    assert head.next_offset == 2


async def test_what_does_not_end_a_transaction(rig: Rig, tool: Tool) -> None:
    first, second = await rig.topic("t", partitions=2)
    producer = await begun(rig, "x", first)
    await producer.end(commits=False)
    await producer.write(first, b"b")
    mine = producer.producer_id, producer.epoch
    # Of an epoch that is over, of another partition or producer, and a commit.
    assert await tool.mark(1, mine[0], mine[1] - 1, t=(0,)) == {("t", 0): "invalid_producer_epoch"}
    assert await tool.mark(1, *mine, t=(1,)) == {("t", 1): "none"}
    assert await tool.mark(1, 4711, 3, t=(0, 1)) == {("t", 0): "none", ("t", 1): "none"}
    assert await tool.mark(1, *mine, commits=True, t=(0,)) == {("t", 0): "invalid_request"}
    (state,) = await tool.describe("x")
    assert state.transaction_state == "Ongoing"
    head = rig.view.head(second)
    assert head is not None
    assert head.next_offset == 0
