"""`penstock consume` goes on after what passes, and ends in good order."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.client import member as member_module
from penstock.cli.client.cluster import Client
from penstock.cli.client.groups import committed_offsets, describe_group
from penstock.cli.client.member import Member
from penstock.cli.client.offsets import EARLIEST, TopicPartition
from penstock.cli.client.patience import Patience
from penstock.cli.group_reading import read_as_member
from penstock.cli.main import root
from penstock.cli.reading import Batches, Reading, Start
from penstock.config.addresses import Address, parse_address
from penstock.kafka.wire.schema import build
from penstock.model.errors import RetryableError
from support.commands import SECONDS_MAX, running_command
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
    return {member.member_id for member in describe_group(client, group).members}


def test_an_interrupt_while_joining_leaves_the_group(
    broker: ServerProcess, topic: str, client: Client
) -> None:
    produce(broker, topic, "one\n")
    group = topic + "-group"
    other = Member(client, group, [topic])
    other.join()
    arguments = ("consume", topic, "--group", group, "--server", broker.bootstrap)
    with running_command(*arguments) as command:
        # It waits for the other one, which doesn't join again.
        eventually(lambda: members(client, group) - {other.member_id})
        assert command.interrupted() == (0, b"", "")
    assert members(client, group) <= {other.member_id}
    other.close()


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
    (committed,) = committed_offsets(client.coordinator(group), group, None).values()
    assert committed in {1, 2}
    assert members(client, group) == set()


def evict(client: Client, group: str) -> None:
    """As the end of their sessions does."""
    for member_id in members(client, group):
        client.coordinator(group).request(
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


def read(batches: Batches, reading: Reading) -> list[bytes | None]:
    """The next records that come, which count as printed."""
    records = next(records for records in batches if records)
    for record in records:
        reading.printed[record.partition] = record.offset + 1
    return [record.value for record in records]


def impatient() -> Patience:
    return Patience(pytest.fail)


@pytest.mark.parametrize(
    ("heartbeat_s", "commit_interval_s"),
    [(0.0, 3600.0), (3600.0, 0.0), (0.0, 0.0)],
    ids=["heartbeat", "commit", "both"],
)
def test_a_member_that_its_group_went_on_without_joins_again(
    broker: ServerProcess,
    topic: str,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    heartbeat_s: float,
    commit_interval_s: float,
) -> None:
    monkeypatch.setattr(member_module, "HEARTBEAT_S", heartbeat_s)
    produce(broker, topic, "one\n")
    group, reading = topic + "-group", Reading()
    batches = read_as_member(
        client,
        reading,
        (topic,),
        group,
        Start(timestamp=EARLIEST),
        patience=impatient(),
        commit_interval_s=commit_interval_s,
    )
    assert read(batches, reading) == [b"one"]
    evict(client, group)
    assert read(batches, reading) == [b"one"]
    batches.close()
    assert committed_offsets(client.coordinator(group), group, None) == {
        TopicPartition(topic, 0): 1
    }
    assert members(client, group) == set()


def test_a_member_that_its_group_went_on_without_ends_without_a_word(
    broker: ServerProcess, topic: str, client: Client
) -> None:
    produce(broker, topic, "one\n")
    group, reading = topic + "-group", Reading()
    start = Start(timestamp=EARLIEST)
    batches = read_as_member(client, reading, (topic,), group, start, patience=impatient())
    assert read(batches, reading) == [b"one"]
    evict(client, group)
    batches.close()
    assert committed_offsets(client.coordinator(group), group, None) == {}


def test_a_commit_that_comes_too_late_is_no_error(
    broker: ServerProcess, topic: str, client: Client
) -> None:
    produce(broker, topic, "one\n")
    group, offsets = topic + "-group", {TopicPartition(topic, 0): 1}
    member = Member(client, group, [topic])
    assert member.join() == [TopicPartition(topic, 0)]
    member.generation += 1
    assert not member.commit(offsets)  # ILLEGAL_GENERATION
    assert member.join()
    assert member.commit(offsets)
    # The group waits for what its leader, this one, assigns.
    while member._join_once() is None:
        pass
    assert not member.commit(offsets)  # REBALANCE_IN_PROGRESS
    assert member.join()
    evict(client, group)
    assert not member.commit(offsets)  # UNKNOWN_MEMBER_ID
    assert not member.commit(offsets)
    assert member.commit({})
    member.close()


def test_an_interrupt_while_reading_is_no_failure(broker: ServerProcess, topic: str) -> None:
    produce(broker, topic, "one\n")
    arguments = ("consume", topic, "--from-beginning", "--server", broker.bootstrap)
    with running_command(*arguments) as command:
        assert command.read_line() == b"one\n"
        assert command.interrupted() == (0, b"", "")


@pytest.mark.parametrize("group", [(), ("--group", "readers")])
def test_a_server_that_starts_again_is_read_on(tmp_path: Path, group: tuple[str, ...]) -> None:
    with running_server(tmp_path, {"DEFAULT_PARTITIONS": "3"}) as broker:
        produce(broker, "t", "one\n")
        arguments = ("consume", "t", "--from-beginning", *group, "--server", broker.bootstrap)
        with running_command(*arguments) as command:
            assert command.read_line() == b"one\n"
            broker.kill()
            assert command.process.stderr is not None
            told = command.process.stderr.readline().decode()
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
    nodes = client.metadata([]).nodes
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = Address("127.0.0.1", unused.getsockname()[1])
        with Client(gone, timeout_s=SECONDS_MAX) as stranger:
            with pytest.raises(RetryableError, match=str(gone.port)):
                stranger.metadata([])
            stranger._nodes = dict(nodes)
            assert stranger.metadata([]).nodes == nodes


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
