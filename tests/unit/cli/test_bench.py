"""`penstock bench` against a server of ours: its figures agree with the server's own offsets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from penstock.cli.load.target import Target
from penstock.cli.main import root
from support.commands import ends
from support.server import ServerProcess, run_penstock


def run(broker: ServerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(
        root, ("bench", *arguments), env={"PENSTOCK_SERVER": broker.bootstrap}
    )


def report(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + str(result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["ok"]
    return found


def topics(broker: ServerProcess) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics)


def test_what_is_sent_is_counted_by_the_server_and_the_topic_goes(broker: ServerProcess) -> None:
    found = report(run(broker, "produce", "--records", "5000", "--value-bytes", "200", "--json"))
    assert found["record_count"] == 5000
    assert found["failed_count"] == 0
    assert found["mb_s"] == pytest.approx(found["records_s"] * 200 / 1e6, abs=0.1)
    assert found["topic"] not in topics(broker)


def test_a_named_topic_stays_and_is_read_whole(broker: ServerProcess, topic: str) -> None:
    sent = ("--topic", topic, "--records", "3000", "--partitions", "3")
    report(run(broker, "produce", *sent, "--json"))
    assert sum(ends(broker.bootstrap, topic).values()) == 3000
    found = report(run(broker, "consume", "--topic", topic, "--json"))
    assert (found["record_count"], found["value_bytes"]) == (3000, 1024)
    assert topic in topics(broker)


def test_a_reading_without_a_topic_fills_one(broker: ServerProcess) -> None:
    found = report(run(broker, "consume", "--records", "2000", "--json"))
    assert found["record_count"] == 2000


def test_an_empty_topic_is_refused(broker: ServerProcess, topic: str) -> None:
    result = run(broker, "consume", "--topic", topic)
    assert result.exit_code == 1
    assert "it holds no records" in str(result.exception)


@pytest.mark.slow
def test_latencies_count_what_is_measured_alone(broker: ServerProcess) -> None:
    # By the console script: the consumer is a process that starts from the same main module.
    done = run_penstock(
        *("bench", "latency", "--rate", "100", "--seconds", "1", "--warmup", "0.5", "--json"),
        *("--server", broker.bootstrap),
    )
    found = json.loads(done.stdout)
    assert found["ok"], done.stderr
    assert found["record_count"] == 150
    assert found["acknowledged"]["count"] == found["received"]["count"] == 100
    assert 0 < found["acknowledged"]["p50_ms"] <= found["acknowledged"]["max_ms"]


@pytest.mark.slow
def test_producers_of_a_fan_have_a_partition_each(broker: ServerProcess, topic: str) -> None:
    options = ("--producers", "4", "--rate", "10", "--seconds", "1", "--warmup", "0")
    found = report(run(broker, "fan", *options, "--topic", topic, "--json"))
    assert found["record_count"] == found["acknowledged"]["count"] == 40
    # A record more each: the one that connected its producer.
    assert ends(broker.bootstrap, topic) == dict.fromkeys(range(4), 11)


@pytest.mark.slow
def test_all_consumers_are_connected_and_hear(
    broker: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.load.connections.IDLE_S", 0.1)
    monkeypatch.setattr("penstock.cli.load.connections.ROUNDS", 1)
    found = report(run(broker, "connections", "--consumers", "5", "--json"))
    assert (found["connected"], found["missed"]) == (5, 0)
    assert (found["eager"]["count"], found["slow"]["count"]) == (3, 2)


def test_people_get_a_table_of_what_could_be_measured(broker: ServerProcess) -> None:
    result = run(broker, "produce", "--records", "10")
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert lines["record_count"] == "10"
    assert "usage.client_cpu_s" in lines
    assert "usage.server_cpu_s" not in lines
    assert "first_failure" not in lines


def test_a_server_that_holds_less_than_was_sent_is_named(
    broker: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "stored", lambda _self, _topic: 9)
    result = run(broker, "produce", "--records", "10")
    assert result.exit_code == 1
    assert "the server holds other records" in str(result.exception)


def test_records_that_are_refused_are_counted_with_the_first_reason(broker: ServerProcess) -> None:
    result = run(
        broker,
        *("produce", "--records", "20", "--topic-config", "max.message.bytes=100", "--json"),
        *("--client", "batch.num.messages=1"),
    )
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["record_count"], found["failed_count"]) == (False, 0, 20)
    assert "too large" in found["first_failure"].lower()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("produce", "--acks", "1"), "--acks 1 needs --no-idempotent"),
        (("produce", "--client", "nothing=1"), "No such configuration property"),
        (("produce", "--server", "127.0.0.1:1", "--timeout", "1"), "Connection refused"),
        (("produce", "--server-pid", "4194305"), "--server-pid takes"),
    ],
)
def test_what_cant_be_measured_is_refused_first(
    broker: ServerProcess, arguments: tuple[str, ...], said: str
) -> None:
    result = run(broker, *arguments)
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)


def test_values_of_a_batch_differ(broker: ServerProcess, topic: str) -> None:
    run(broker, "produce", "--records", "100", "--topic", topic, "--partitions", "1")
    read = run_penstock(
        "consume",
        topic,
        "--from-beginning",
        "--until-end",
        "--format",
        "json",
        "--server",
        broker.bootstrap,
    )
    assert len({str(json.loads(line)["value"]) for line in read.stdout.splitlines()}) == 100
