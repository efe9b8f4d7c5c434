"""Batches of transactions, produced through every kind of log: what is stored, and each refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.model.broker_configs import PARTITIONS_MAX_CONFIG
from penstock.state.commands import AlterClusterConfigs, CreateTopic
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.transaction_commands import AddToTransaction, EndTransaction, InitTransaction
from support.api_client import ApiClient
from support.cluster_rig import Cluster
from support.log_rig import Rig

V1, V1_ABORTABLE, V2 = 9, 11, 12
ONCE = {"penstock_durability": "object"}


class Producing:
    """A topic of two partitions, and a transactional producer of protocol V2."""

    def __init__(self, broker: Broker, keys: list[Any]) -> None:
        self.broker = broker
        self.keys = keys
        self.client = ApiClient(broker)
        self.producer = (-1, -1)

    async def commit(self, command: Any) -> Any:
        (answer,) = await self.broker.committer.commit([command])
        return answer

    async def begin(self) -> None:
        answer = await self.commit(InitTransaction(transactional_id="x", timeout_ms=60_000))
        self.producer = answer.producer_id, answer.epoch

    async def add(self, number: int) -> None:
        await self.commit(
            AddToTransaction(
                transactional_id="x",
                producer_id=self.producer[0],
                epoch=self.producer[1],
                partitions=[self.keys[number]],
            )
        )

    async def end(self, *, commits: bool, bumps: bool) -> None:
        answer = await self.commit(
            EndTransaction(
                transactional_id="x",
                producer_id=self.producer[0],
                epoch=self.producer[1],
                commits=commits,
                bumps=bumps,
            )
        )
        self.producer = answer.producer_id, answer.epoch

    async def send(self, version: int, sequence: int = 0, **options: Any) -> tuple[str, int]:
        options = {"producer": self.producer} | options
        answer = await self.client.produce(
            "t", b"a", b"b", sequence=sequence, version=version, **options
        )
        return answer.error_code.name, answer.base_offset

    def head(self, number: int = 0) -> tuple[int, int]:
        head = self.broker.view.head(self.keys[number])
        assert head is not None
        return head.last_stable, head.next_offset


async def v2_adds_its_partition(producing: Producing) -> None:
    first = await producing.send(V2)
    assert first == ("none", 0)
    assert await producing.send(V2) == first  # a duplicate
    assert await producing.send(V2, 2) == ("none", 2)
    assert producing.head() == (0, 4)
    await producing.end(commits=True, bumps=True)
    assert producing.head() == (5, 5)
    assert await producing.send(V2, 4) == ("out_of_order_sequence_number", -1)
    assert await producing.send(V2) == ("none", 5)
    await producing.end(commits=False, bumps=True)
    assert producing.head() == (8, 8)


async def v1_waits_for_its_partition(producing: Producing) -> None:
    assert await producing.send(V1) == ("invalid_txn_state", -1)
    assert await producing.send(V1_ABORTABLE) == ("transaction_abortable", -1)
    await producing.add(0)
    assert await producing.send(V1) == ("none", 0)
    assert await producing.send(V1, partition=1) == ("invalid_txn_state", -1)
    assert producing.head() == (0, 2)
    await producing.end(commits=True, bumps=False)
    assert await producing.send(V1, 2) == ("invalid_txn_state", -1)
    await producing.add(0)
    assert await producing.send(V1, 2) == ("none", 3)


async def others_are_refused(producing: Producing) -> None:
    old = producing.producer
    await producing.begin()
    for version in (V1, V2):
        assert await producing.send(version, producer=old) == ("invalid_producer_epoch", -1)
        unknown = await producing.send(version, producer=(old[0] + 1000, 0))
        assert unknown == ("invalid_txn_state", -1)
        nameless = await producing.send(version, transactional_id=None)
        assert nameless == ("transactional_id_authorization_failed", -1)
    most = AlterClusterConfigs(set={PARTITIONS_MAX_CONFIG: "1"})
    await producing.commit(most)
    assert await producing.send(V2) == ("none", 0)
    assert await producing.send(V2, partition=1) == ("transaction_abortable", -1)


async def a_plain_batch_waits_for_the_end(producing: Producing) -> None:
    """Kafka: ProducerAppendInfo.appendDataBatch; the error is the same in all versions."""
    assert await producing.send(V2) == ("none", 0)
    plain = {"transactional": False, "transactional_id": None}
    for version in (V1, V1_ABORTABLE, V2):
        assert await producing.send(version, 2, **plain) == ("invalid_txn_state", -1)
    # Where nothing is open of it, and of other producers, all is as ever.
    assert await producing.send(V2, 0, partition=1, **plain) == ("none", 0)
    assert producing.head() == (0, 2)
    await producing.end(commits=True, bumps=True)
    assert await producing.send(V2, 0, **plain) == ("none", 3)
    assert await producing.send(V2, 2, **plain) == ("none", 5)


SCENARIOS = pytest.mark.parametrize(
    "scenario",
    [
        v2_adds_its_partition,
        v1_waits_for_its_partition,
        others_are_refused,
        a_plain_batch_waits_for_the_end,
    ],
)
Scenario = Callable[[Producing], Awaitable[None]]


@pytest.mark.slow
@SCENARIOS
@pytest.mark.parametrize("configs", [{}, ONCE], ids=["wal", "object"])
async def test_of_an_embedded_server(rig: Rig, scenario: Scenario, configs: dict[str, str]) -> None:
    producing = Producing(rig.agent.broker, await rig.topic("t", 2, **configs))
    await producing.begin()
    await scenario(producing)


@SCENARIOS
@pytest.mark.parametrize("wal", [False, True])
async def test_of_an_agent_of_a_cluster(cluster: Cluster, scenario: Scenario, wal: bool) -> None:
    agent = await cluster.agent(1, wal=wal)
    producing = Producing(agent.agent.broker, await agent.topic("t", 2))
    await producing.begin()
    await scenario(producing)


async def test_a_stored_batch_shows_that_its_connection_is_no_late_one(rig: Rig) -> None:
    producing = Producing(rig.agent.broker, await rig.topic("t", 2))
    connection = producing.client.connection
    await producing.begin()
    await producing.add(0)
    begun, seen = rig.order.position, connection.seen_position
    assert seen < begun
    await producing.send(V1, partition=1)
    assert connection.seen_position == seen
    await producing.send(V1)
    assert connection.seen_position > begun


async def test_no_batch_is_taken_below_the_feature_level(broker: Broker) -> None:
    committer: Any = broker.committer
    committer.apply(CreateTopic(name="t", topic_id=bytes(16), partitions=1, configs={}))
    assert broker.view.feature_level < TRANSACTIONS_LEVEL
    client = ApiClient(broker)
    answer = await client.produce("t", b"a", producer=(1, 0))
    assert answer.error_code.name == "invalid_txn_state"
    assert answer.error_message == (
        f"transactions need feature level {TRANSACTIONS_LEVEL}, {broker.view.feature_level} is on:"
        " upgrade the agents that know less"
    )
