"""`penstock consume` goes on after what passes, and ends in good order."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from penstock.cli import reading
from penstock.cli.client.admin import EARLIEST
from penstock.cli.client.cluster import Client
from penstock.cli.client.patience import Patience
from penstock.cli.client.topic_partition import TopicPartition
from penstock.cli.main import root
from penstock.cli.reading import Batches, Reader, Start, read_as_member
from penstock.config.addresses import Address, parse_address
from penstock.kafka.wire.schema import build
from penstock.model.errors import RetryableError
from support.commands import SECONDS_MAX, running_command
from support.connection import Connection
from support.probe import SILENT
from support.server import ServerProcess, running_server
from support.waiting import eventually


def produce(broker: ServerProcess, topic: str, text: str) -> None:
    done = CliRunner().invoke(root, ["produce", topic, "--server", broker.bootstrap], input=text)
    assert done.exit_code == 0, done.exception


@pytest.fixture
def client(broker: ServerProcess) -> Iterator[Client]:
    address = parse_address(broker.bootstrap, setting="bootstrap")
    with Client(address, timeout_s=SECONDS_MAX) as client:
        yield client


def members(client: Client, group: str) -> set[str]:
    return {member.member_id for member in client.admin.describe_group(group).members}


@pytest.fixture
def connection(broker: ServerProcess) -> Iterator[Connection]:
    address = parse_address(broker.bootstrap, setting="bootstrap")
    with contextlib.closing(Connection(address, timeout_s=SECONDS_MAX)) as connection:
        yield connection


def join(connection: Connection, group: str, topic: str) -> str:
    """Have a group a member that is never heard of again; its id."""
    name = topic.encode()
    subscription = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)
    member_id = ""
    while True:
        joined = connection.request(
            "join_group",
            lambda types, member_id=member_id: build(
                types.JoinGroupRequest,
                group_id=group,
                session_timeout=timedelta(seconds=60),
                rebalance_timeout=timedelta(seconds=60),
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=(
                    build(types.JoinGroupRequestProtocol, name="range", metadata=subscription),
                ),
                reason=None,
            ),
        )
        if not joined.error_code:
            return str(joined.member_id)
        member_id = joined.member_id


@pytest.mark.slow
def test_an_interrupt_while_joining_leaves_the_group(
    broker: ServerProcess, topic: str, client: Client, connection: Connection
) -> None:
    produce(broker, topic, "one\n")
    group = topic + "-group"
    other = join(connection, group, topic)
    arguments = ("consume", topic, "--group", group, "--server", broker.bootstrap)
    with running_command(*arguments) as command:
        # It waits for the other one, which doesn't join again.
        eventually(lambda: members(client, group) - {other})
        assert command.interrupted() == (0, b"", "")
    assert members(client, group) <= {other}


def test_an_interrupt_while_a_member_reads_commits(
    broker: ServerProcess, topic: str, client: Client
) -> None:
    produce(broker, topic, "one\n")
    group = topic + "-group"
    arguments = ("consume", topic, "--group", group, "--from-beginning")
    with running_command(*arguments, "--server", broker.bootstrap) as command:
        assert command.read_line() == b"one\n"
        produce(broker, topic, "two\n")
        assert command.read_line() == b"two\n"
        assert command.interrupted() == (0, b"", "")
    # The last line was out a moment before the command knew that it was.
    (committed,) = client.admin.committed_offsets(group).values()
    assert committed in {1, 2}
    assert members(client, group) == set()


def evict(client: Client, connection: Connection, group: str) -> None:
    """As the end of their sessions does."""
    for member_id in members(client, group):
        connection.request(
            "leave_group",
            lambda types, member_id=member_id: build(
                types.LeaveGroupRequest,
                group_id=group,
                members=(
                    build(
                        types.MemberIdentity,
                        member_id=member_id,
                        group_instance_id=None,
                        reason=None,
                    ),
                ),
            ),
        )


def read(batches: Batches, reader: Reader) -> list[bytes | None]:
    """The next records that come, which count as printed."""
    records = next(records for records in batches if records)
    reader.printed(records)
    return [record.value() for record in records]


def impatient() -> Patience:
    return Patience(pytest.fail)


@pytest.mark.slow
@pytest.mark.parametrize("commit_interval_s", [3600.0, 0.0], ids=["heartbeat", "commit"])
def test_a_member_that_its_group_went_on_without_joins_again(
    broker: ServerProcess,
    topic: str,
    client: Client,
    connection: Connection,
    commit_interval_s: float,
) -> None:
    produce(broker, topic, "one\n")
    group = topic + "-group"
    reader = Reader(client, group, Start(timestamp=EARLIEST))
    batches = read_as_member(
        reader, (topic,), patience=impatient(), commit_interval_s=commit_interval_s
    )
    assert read(batches, reader) == [b"one"]
    evict(client, connection, group)
    assert read(batches, reader) == [b"one"]
    batches.close()
    assert client.admin.committed_offsets(group) == {TopicPartition(topic, 0): 1}
    assert members(client, group) == set()


def test_a_member_that_its_group_went_on_without_ends_without_a_word(
    broker: ServerProcess, topic: str, client: Client, connection: Connection
) -> None:
    produce(broker, topic, "one\n")
    group = topic + "-group"
    reader = Reader(client, group, Start(timestamp=EARLIEST))
    batches = read_as_member(reader, (topic,), patience=impatient())
    assert read(batches, reader) == [b"one"]
    evict(client, connection, group)
    batches.close()
    assert client.admin.committed_offsets(group) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("committed", "goes_on_at"), [(99, 3), (0, 2)], ids=["ahead", "deleted"])
def test_where_a_committed_offset_is_gone_the_nearest_record_is_next(
    broker: ServerProcess,
    topic: str,
    client: Client,
    capsys: pytest.CaptureFixture[str],
    committed: int,
    goes_on_at: int,
) -> None:
    produce(broker, topic, "one\ntwo\nthree\n")
    place, group = TopicPartition(topic, 0), topic + "-group"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "logger": SILENT})
    (deleted,) = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 2)]).values()
    deleted.result()
    client.admin.commit_offsets(group, {place: committed})
    reader = Reader(client, group, Start(timestamp=EARLIEST))
    batches = read_as_member(reader, (topic,), patience=impatient())
    told = ""
    while not told:
        records = next(batches)
        told = capsys.readouterr().err
    assert told == f"{place}: offset {committed} is gone, going on at {goes_on_at}\n"
    produce(broker, topic, "four\n")
    found = list(records)
    while not found or found[-1].value() != b"four":
        found += next(batches)
    assert [record.offset() for record in found] == list(range(goes_on_at, 4))
    reader.printed(found)
    batches.close()
    assert client.admin.committed_offsets(group) == {place: 4}


@pytest.mark.slow
def test_an_advertised_address_that_is_wrong_is_named(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        wrong = f"127.0.0.1:{unused.getsockname()[1]}"
        with running_server(tmp_path, {"ADVERTISED": wrong}) as broker:
            address = parse_address(broker.bootstrap, setting="bootstrap")
            with Client(address, timeout_s=SECONDS_MAX) as client:
                client.topic("t", create=True)
                with pytest.raises(RetryableError, match=f"{wrong}: Connection refused"):
                    client.admin.delete_topic("t")
            arguments = ("consume", "t", "--group", "g", "--server", broker.bootstrap)
            with running_command(*arguments) as command:
                told = command.stderr.readline().decode()
    assert told.startswith(f"penstock: connect {wrong}: Connection refused")


@pytest.mark.slow
@pytest.mark.parametrize("group", [(), ("--group", "readers")])
def test_a_topic_that_is_deleted_meanwhile_ends_the_reading(
    broker: ServerProcess, topic: str, client: Client, group: tuple[str, ...]
) -> None:
    produce(broker, topic, "one\n")
    arguments = ("consume", topic, "--from-beginning", *group, "--server", broker.bootstrap)
    with running_command(*arguments) as command:
        assert command.read_line() == b"one\n"
        client.admin.delete_topic(topic)
        assert command.process.wait(SECONDS_MAX) == 1
        assert "there is no such topic" in command.stderr.read().decode()


@pytest.mark.slow
def test_an_interrupt_while_reading_is_no_failure(broker: ServerProcess, topic: str) -> None:
    produce(broker, topic, "one\n")
    arguments = ("consume", topic, "--from-beginning", "--server", broker.bootstrap)
    with running_command(*arguments) as command:
        assert command.read_line() == b"one\n"
        assert command.interrupted() == (0, b"", "")


@pytest.mark.parametrize(
    "group", [pytest.param((), marks=pytest.mark.slow), ("--group", "readers")]
)
def test_a_server_that_starts_again_is_read_on(tmp_path: Path, group: tuple[str, ...]) -> None:
    with running_server(tmp_path, {"DEFAULT_PARTITIONS": "3"}) as broker:
        produce(broker, "t", "one\n")
        arguments = ("consume", "t", "--from-beginning", *group, "--server", broker.bootstrap)
        with running_command(*arguments) as command:
            assert command.read_line() == b"one\n"
            broker.kill()
            told = command.stderr.readline().decode()
            assert told.startswith("penstock: ")
            broker.start()
            produce(broker, "t", "two\n")
            # A member reads again what it had not committed when the server was killed.
            while (line := command.read_line()) == b"one\n":
                assert group
            assert line == b"two\n"
            status, output, errors = command.interrupted()
            assert (status, output) == (0, b"")
            assert all("trying again" in line for line in errors.splitlines())


def test_where_the_named_node_is_gone_another_one_is_asked(
    broker: ServerProcess, client: Client
) -> None:
    client.metadata([])
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = Address("127.0.0.1", unused.getsockname()[1])
        with Client(gone, timeout_s=SECONDS_MAX) as stranger:
            with pytest.raises(RetryableError, match=str(gone.port)):
                stranger.metadata([])
            stranger._nodes = client._nodes
            assert stranger.metadata([]) == []


@pytest.mark.parametrize("is_in_doubt", [True, False])
def test_a_reader_in_doubt_does_not_wait_long_for_its_group(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_in_doubt: bool
) -> None:
    waits: list[float] = []

    def within(wait_s: float, _operation: str, _subject: str, call: Any, _log: Any) -> None:
        waits.append(wait_s)
        call()

    monkeypatch.setattr(reading, "within", within)
    reader = Reader(client, "g", Start())
    reader._doubts_seen = reader._log.doubt_count - is_in_doubt
    reader.close()
    assert waits == [reading.ENDING_IN_DOUBT_S if is_in_doubt else reading.ENDING_S]


def test_patience_ends_with_the_error_and_begins_anew_after_a_success() -> None:
    told: list[str] = []
    patience = Patience(told.append, most_s=0.0, pause_s=0.0)
    error = RetryableError("read", "t-0", "not there")
    for _ in range(2):
        patience.bear(error)
        with pytest.raises(RetryableError) as raised:
            patience.bear(error)
        assert raised.value is error
        patience.succeeded()
    assert told == ["penstock: read t-0: not there; trying again for 0 s"] * 2


def test_within_patience_only_the_first_failure_is_told() -> None:
    told: list[str] = []
    patience = Patience(told.append, most_s=3600.0, pause_s=0.0)
    for number in range(1, 6):
        patience.bear(RetryableError("read", "t-0", f"{number}"))
    assert told == ["penstock: read t-0: 1; trying again for 3600 s"]
