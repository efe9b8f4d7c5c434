"""Transactions of librdkafka, kafka-python and aiokafka, on one server and on a cluster of two
agents: commit, abort, readers of committed records, a fenced instance, and exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.agents import PATIENCE, Agents
from support.metrics import scrape
from support.postgres import database_url
from support.server import ServerProcess
from support.transactional_clients import CLIENTS, END, SECONDS_MAX, TransactionalClient
from support.waiting import eventually

PARTITIONS = 2
ClientType = type[TransactionalClient]

each_client = pytest.mark.parametrize("client_type", CLIENTS, ids=lambda one: one.__name__)


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """host:port of all of them."""
    if request.param == "embedded":
        yield request.getfixturevalue("bootstrap")
        return
    if os.environ.get("PENSTOCK_TEST_BOOTSTRAP"):
        pytest.skip("another server is under test")
    folder: Path = tmp_path_factory.mktemp("cluster")
    with (
        database_url() as journal,
        Agents(
            folder,
            journal,
            (folder / "objects").as_uri(),
            settings={**PATIENCE, "CLUSTER_NAME": f"transactions{os.getpid()}"},
            zones=("a",),
        ) as agents,
    ):
        agents.add()
        agents.add()
        agents.wait_live()
        yield agents.bootstrap
        assert agents.stop() == [0, 0]


@pytest.fixture
def topic(servers: str, name: Callable[[str], str]) -> Callable[[], str]:
    """Makes topics."""

    def make() -> str:
        made = name("topic")
        admin = AdminClient({"bootstrap.servers": servers})
        for future in admin.create_topics([NewTopic(made, PARTITIONS, 1)]).values():
            future.result(60)
        return made

    return make


def write(client: TransactionalClient, topic: str, *values: bytes, commits: bool = True) -> None:
    """One transaction, with each value in every partition."""
    client.begin()
    for partition in range(PARTITIONS):
        for value in values:
            client.send(topic, partition, value)
    (client.commit if commits else client.abort)()


def everywhere(*values: bytes) -> list[bytes]:
    return sorted(value for value in values for _ in range(PARTITIONS))


@each_client
def test_committed_records_alone_are_read_by_those_who_ask_for_them(
    servers: str, topic: Callable[[], str], name: Callable[[str], str], client_type: ClientType
) -> None:
    written = topic()
    client = client_type(servers, name("producer"))
    write(client, written, b"a", b"b")
    write(client, written, b"aborted", commits=False)
    write(client, written, b"c")
    write(client, written, END)
    client.close()
    for reader in CLIENTS:
        read = reader.read(servers, written, PARTITIONS, committed=True)
        assert read == everywhere(b"a", b"b", b"c"), reader
        read = reader.read(servers, written, PARTITIONS, committed=False)
        assert read == everywhere(b"a", b"b", b"c", b"aborted"), reader


@each_client
def test_an_instance_is_fenced_by_the_next_one(
    servers: str, topic: Callable[[], str], name: Callable[[str], str], client_type: ClientType
) -> None:
    written, transactional_id = topic(), name("producer")
    first = client_type(servers, transactional_id)
    first.begin()
    first.send(written, 0, b"of a fenced one")
    second = client_type(servers, transactional_id)
    write(second, written, b"a")
    with pytest.raises(Exception) as raised:
        first.commit()
    assert client_type.is_fenced(raised.value), raised.value
    write(second, written, END)
    assert client_type.read(servers, written, PARTITIONS, committed=True) == everywhere(b"a")
    for client in (first, second):
        client.close()


@each_client
def test_each_record_is_transformed_once(
    servers: str, topic: Callable[[], str], name: Callable[[str], str], client_type: ClientType
) -> None:
    source, target, group = topic(), topic(), name("group")
    client = client_type(servers, name("producer"))
    values = [b"%d" % number for number in range(4)]
    write(client, source, *values)
    half = len(values) * PARTITIONS // 2
    # The second instance goes on where the first one has committed.
    client_type.transform(servers, source, target, group, count=half)
    client_type.transform(servers, source, target, group, count=half)
    write(client, target, END)
    client.close()
    assert client_type.read(servers, target, PARTITIONS, committed=True) == everywhere(*values)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    places = [TopicPartition(source, number) for number in range(PARTITIONS)]
    committed = [found.offset for found in consumer.committed(places, SECONDS_MAX)]
    consumer.close()
    assert committed == [len(values)] * PARTITIONS


def test_offsets_that_go_out_before_the_batches_cost_no_connection(tmp_path: Path) -> None:
    """librdkafka sends them by the connection of its batches, which still wait for `linger.ms`; it
    waits half a second where that is closed."""
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log")
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(60)
        member = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
        member.subscribe(["t"])
        eventually(lambda: member.poll(0.1) or member.assignment(), bool, timeout_seconds=60)
        producer = Producer(
            {"bootstrap.servers": server.bootstrap, "transactional.id": "x", "linger.ms": 50}
        )
        producer.init_transactions(SECONDS_MAX)
        for number in range(1, 6):
            producer.begin_transaction()
            producer.produce("t", b"%d" % number, partition=0)
            offsets = [TopicPartition("t", 0, number)]
            metadata = member.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, metadata, SECONDS_MAX)
            producer.commit_transaction(SECONDS_MAX)
        (committed,) = member.committed([TopicPartition("t", 0)], SECONDS_MAX)
        assert committed.offset == 5
        late = scrape(server.http)["penstock_late_transaction_requests_total", ""]
        assert late == 0
        member.close()
    finally:
        status = server.stop()
    assert status == 0, server.tail()
