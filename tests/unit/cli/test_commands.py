"""The commands, run on a real server; one runs for all tests of this file."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.app.server import Server
from penstock.cli.commands import transaction
from penstock.cli.main import root
from penstock.config.settings import ServerSettings
from penstock.model.errors import PenstockError
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom


class RunningServer:
    """A server on a thread with a loop of its own."""

    def __init__(self, data: Path) -> None:
        self._settings = ServerSettings(
            data=str(data),
            kafka="127.0.0.1:0",
            http="127.0.0.1:0",
            auto_create_topics=True,
            default_partitions=2,
            group_initial_rebalance_delay_ms=0,
            drain_timeout_ms=1000,
            wal_bytes_max=16 << 20,
            wal_file_bytes=4 << 20,
            segment_bytes=1 << 20,
        )
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(120)
        assert self._error is None, self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = Server(self._settings, clock=SystemClock(), random=SystemRandom())
        await server.start()
        self.kafka, self.http = str(server.kafka_address), f"http://{server.http_address}"
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("data"))
    yield running
    running.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "t-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[-40:]


def run(server: RunningServer, *arguments: str, text: str | None = None) -> Result:
    """Run a command that must succeed."""
    result = attempt(server, *arguments, text=text)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def attempt(server: RunningServer, *arguments: str, text: str | None = None) -> Result:
    environment = {"PENSTOCK_SERVER": server.kafka, "PENSTOCK_STATUS_URL": server.http}
    return CliRunner().invoke(root, arguments, input=text, env=environment)


def run_json(server: RunningServer, *arguments: str) -> Any:
    return json.loads(run(server, *arguments, "--json").stdout)


def test_a_topic_is_created_listed_described_altered_and_deleted(
    server: RunningServer, topic: str
) -> None:
    created = run(
        server, "topic", "create", topic, "--partitions", "3", "--config", "retention.ms=5000"
    )
    assert created.stdout == f"created {topic} with 3 partitions\n"
    assert topic in [row["name"] for row in run_json(server, "topic", "list")]
    run(server, "topic", "alter", topic, "--partitions", "4", "--config", "retention.bytes=9")
    (described,) = run_json(server, "topic", "describe", topic)
    assert described["configs"] == {"retention.bytes": "9", "retention.ms": "5000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2, 3]
    run(server, "topic", "alter", topic, "--delete-config", "retention.ms")
    text = run(server, "topic", "describe", topic).stdout
    assert "retention.bytes = 9" in text
    assert "retention.ms" not in text
    run(server, "topic", "delete", topic, "--yes")
    assert topic not in [row["name"] for row in run_json(server, "topic", "list")]


def test_a_refusal_is_our_error_with_the_codes_name(server: RunningServer, topic: str) -> None:
    run(server, "topic", "create", topic)
    for arguments, code in (
        (("topic", "create", topic), "TOPIC_ALREADY_EXISTS"),
        (("topic", "describe", topic + "-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topic", "create", "not/a/name"), "INVALID_TOPIC_EXCEPTION"),
        (("topic", "create", topic + "2", "--config", "no.such=1"), "INVALID_CONFIG"),
        (("topic", "alter", topic, "--partitions", "1"), "INVALID_PARTITIONS"),
        (("consume", topic + "-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        result = attempt(server, *arguments)
        assert isinstance(result.exception, PenstockError), arguments
        assert code in str(result.exception)
    assert "already exists" in run(server, "topic", "create", topic, "--if-not-exists").stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_are_consumed_as_they_were_produced(
    server: RunningServer, topic: str, codec: str
) -> None:
    lines = [f"key{number % 7}:value {number}" for number in range(500)]
    produced = run(
        server, "produce", topic, "--key-separator", ":", "--compression", codec,
        "--batch-bytes", "2000", "--header", "a=b", text="\n".join(lines) + "\n",
    )  # fmt: skip
    assert produced.stderr == "500 records\n"
    arguments = ("consume", topic, "--from-beginning", "--until-end")
    text = run(server, *arguments, "--key-separator", ":").stdout
    assert sorted(text.splitlines()) == sorted(lines)
    for key in {line.partition(":")[0] for line in lines}:
        of_key = [line for line in lines if line.startswith(key + ":")]
        assert [line for line in text.splitlines() if line.startswith(key + ":")] == of_key
    rows = [
        json.loads(line) for line in run(server, *arguments, "--format", "json").stdout.splitlines()
    ]
    assert all(row["headers"] == [["a", "b"]] for row in rows)
    assert run(server, *arguments, "--max-messages", "3").stdout.count("\n") == 3


def test_files_are_produced_to_one_partition_and_read_from_an_offset(
    server: RunningServer, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a\nb\nc\nd\n")
    run(server, "produce", topic, str(file), "--partition", "1")
    read = ("consume", topic, "--until-end", "--partition", "1")
    assert run(server, *read, "--offset", "2").stdout == "c\nd\n"
    assert run(server, *read, "--offset", "-1").stdout == "d\n"
    assert run(server, *read, "--from-time", "2020-01-01").stdout == "a\nb\nc\nd\n"
    assert run(server, *read, "--from-time", "2200-01-01").stdout == ""
    assert (
        run(server, "consume", topic, "--from-beginning", "--partition", "0", "--until-end").stdout
        == ""
    )
    beyond = attempt(server, *read, "--offset", "99")
    assert "offset 99 is not in 0 to 4" in str(beyond.exception)


def test_records_printed_as_json_can_be_produced_again(server: RunningServer, topic: str) -> None:
    run(server, "produce", topic, text="one\ntwo\n")
    printed = run(server, "consume", topic, "--from-beginning", "--until-end", "--format", "json")
    run(server, "topic", "create", topic + "-2", "--partitions", "2")
    run(server, "produce", topic + "-2", "--format", "json", text=printed.stdout)
    again = run(server, "consume", topic + "-2", "--from-beginning", "--until-end")
    assert sorted(again.stdout.splitlines()) == ["one", "two"]


def test_groups_of_every_type_are_listed_and_described(server: RunningServer, topic: str) -> None:
    from confluent_kafka import Consumer

    group = topic + "-new"
    run(server, "topic", "create", topic, "--partitions", "2")
    run(server, "produce", topic, text="a\n")
    consumer = Consumer(
        {
            "bootstrap.servers": server.kafka,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "client.id": "newest",
        }
    )
    try:
        consumer.subscribe([topic])
        while consumer.poll(30) is None:
            pass
        consumer.commit(asynchronous=False)
        (row,) = [row for row in run_json(server, "group", "list") if row["group"] == group]
        assert row == {
            "group": group,
            "state": "Stable",
            "type": "consumer",
            "protocol_type": "consumer",
        }
        assert group in run(server, "group", "list", "--type", "consumer").stdout
        assert group not in run(server, "group", "list", "--type", "classic").stdout
        described = run_json(server, "group", "describe", group)
        assert (described["type"], described["state"]) == ("consumer", "Stable")
        (member,) = described["members"]
        assert member["client_id"] == "newest"
        assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
        assert [row["member"] for row in described["offsets"]] == [member["member_id"]] * 2
        shown = run(server, "group", "describe", group).stdout
        assert shown.startswith(f"{group}  consumer, Stable, 1 member")
    finally:
        consumer.close()


def test_a_group_goes_on_where_it_left_off_and_can_be_reset(
    server: RunningServer, topic: str
) -> None:
    group = topic + "-group"
    run(server, "topic", "create", topic, "--partitions", "1")
    run(server, "produce", topic, text="a\nb\nc\n")
    read = ("consume", topic, "--group", group, "--from-beginning", "--max-messages")
    assert run(server, *read, "1").stdout == "a\n"
    assert run(server, *read, "2").stdout == "b\nc\n"
    assert group in [row["group"] for row in run_json(server, "group", "list")]
    described = run_json(server, "group", "describe", group)
    assert (described["state"], described["members"]) == ("Empty", [])
    (offsets,) = described["offsets"]
    assert (offsets["committed"], offsets["end"], offsets["lag"]) == (3, 3, 0)
    dry = run(server, "group", "reset", group, "--to-earliest")
    assert "nothing was changed" in dry.stderr
    assert run_json(server, "group", "describe", group)["offsets"] == [offsets]
    for option, after in (
        (("--to-earliest",), 0),
        (("--shift-by", "2"), 2),
        (("--shift-by", "-9"), 0),
        (("--to-offset", "1"), 1),
        (("--to-latest",), 3),
        (("--to-time", "2020-01-01T00:00:00"), 0),
    ):
        done = run_json(server, "group", "reset", group, *option, "--execute")
        assert [row["after"] for row in done["offsets"]] == [after], option
    assert run(server, *read, "3").stdout == "a\nb\nc\n"
    run(server, "group", "delete", group, "--yes")
    assert group not in [row["group"] for row in run_json(server, "group", "list")]


def test_status_shows_what_the_server_says(server: RunningServer) -> None:
    status = run_json(server, "status")
    assert status["kafka"] == server.kafka
    shown = run(server, "status").stdout
    assert re.search(rf"^kafka +{re.escape(server.kafka)}$", shown, re.MULTILINE), shown
    assert status["pipeline"] == {
        "jobs": {},
        "tables": {},
        "retention": {"partitions_waiting": 0, "lost_to_tables": {}},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "alter", "t"),
        ("topic", "delete", "t"),
        ("topic", "create", "t", "--config", "novalue"),
        ("consume", "t", "--from-beginning", "--offset", "1"),
        ("consume", "t", "--group", "g", "--until-end"),
        ("produce", "t", "--format", "json", "--key-separator", ":"),
        ("group", "reset", "g"),
        ("group", "reset", "g", "--to-earliest", "--to-latest"),
        ("nonsense",),
    ],
)
def test_wrong_usage_has_status_2(server: RunningServer, arguments: tuple[str, ...]) -> None:
    assert attempt(server, *arguments).exit_code == 2


def console(
    *arguments: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the console script in a process of its own."""
    source = str(Path(__file__).resolve().parents[3] / "src")
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_error_is_one_line_on_standard_error_and_status_1() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        result = console("topic", "list", "--server", f"127.0.0.1:{port}")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"penstock: connect 127.0.0.1:{port}:")
    assert result.stderr.count("\n") == 1


def test_a_misspelt_setting_ends_serve_with_the_nearest_name() -> None:
    result = console("serve", environment={"PENSTOCK_FSINC": "false"})
    assert result.returncode == 1
    assert "did you mean PENSTOCK_FSYNC?" in result.stderr
    assert result.stderr.count("\n") == 1


def test_transactions_are_listed_described_and_aborted(
    server: RunningServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import KafkaException, Producer

    run(server, "topic", "create", topic, "--partitions", "2")
    name = topic + "-id"
    producer = Producer({"bootstrap.servers": server.kafka, "transactional.id": name})
    producer.init_transactions(30)
    listed = ("transaction", "list", "--pattern", name)
    (row,) = run_json(server, *listed)
    assert (row["transactional_id"], row["state"]) == (name, "Empty")
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(30) == 0
    assert run_json(server, *listed, "--state", "Ongoing", "--longer-than", "0") == [
        row | {"state": "Ongoing"}
    ]
    assert run_json(server, *listed, "--longer-than", "3600") == []
    assert run_json(server, *listed, "--producer-id", str(row["producer_id"] + 1)) == []
    described = run_json(server, "transaction", "describe", name)
    assert described["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert (described["timeout_ms"], described["producer_id"]) == (60_000, row["producer_id"])
    lines = run(server, "transaction", "describe", name).stdout.splitlines()
    assert lines[0] == f"{name}  Ongoing, producer {row['producer_id']} epoch 0"
    assert lines[1].startswith("open for ")
    assert lines[2].split() == ["TOPIC", "PARTITION"]
    quiet = run(server, "transaction", "hanging", "--topic", topic, "--max-timeout", "0")
    assert (quiet.stdout, quiet.stderr) == ("", "no hanging transactions\n")
    # A coordinator that knows nothing of it, as Kafka's may.
    with monkeypatch.context() as patched:
        patched.setattr(transaction, "list_transactions", lambda *_, **__: [])
        hanging = ("transaction", "hanging", "--topic", topic, "--max-timeout", "0")
        found = run_json(server, *hanging)
        assert [(one["partition"], one["start_offset"]) for one in found] == [(0, 0), (1, 0)]
        assert "2 hanging transactions" in run(server, *hanging).stderr
    aborts = ("transaction", "abort")
    where = ("--topic", topic, "--partition")
    for refused, why in (
        ((*where, "0", "--start-offset", "7"), "no open transaction begins at offset 7"),
        ((*where, "5", "--start-offset", "0"), "the topic has 2 partitions"),
        ((topic + "-missing",), "there is no such transactional id"),
    ):
        assert why in str(attempt(server, *aborts, *refused).exception)
    for wrong in ((), ("--topic", topic), (name, "--topic", topic)):
        assert attempt(server, *aborts, *wrong).exit_code == 2
    done = run(server, *aborts, *where, "1", "--start-offset", "0")
    assert done.stdout == f"aborted the transaction that began at offset 0 of {topic}-1\n"
    assert run_json(server, *listed) == [row | {"state": "CompleteAbort"}]
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    producer = Producer({"bootstrap.servers": server.kafka, "transactional.id": name})
    producer.init_transactions(30)
    assert "no open transaction" in str(attempt(server, *aborts, name).exception)
    producer.begin_transaction()
    producer.produce(topic, b"y", partition=0)
    assert producer.flush(30) == 0
    assert run(server, *aborts, name).stdout == f"aborted the transaction of {name}\n"
    assert "Ongoing" not in run(server, *listed).stdout
    refused = attempt(server, "transaction", "list", "--state", "ongoing")
    assert "there is no such state" in str(refused.exception)
    refused = attempt(server, "transaction", "list", "--pattern", "(")
    assert "INVALID_REGULAR_EXPRESSION" in str(refused.exception)


def test_help_and_version_read_well() -> None:
    assert "Create, list, describe, alter and delete topics." in console("--help").stdout
    assert console("--version").stdout == "penstock 0.1.0\n"
    assert console("topic", "bogus").returncode == 2
