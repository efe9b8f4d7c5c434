"""Clients of other languages on one server: what they are told is what they sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peers.line_clients import franz_go, kafka_java
from support.line_client import LineClient, LineProgram
from support.server import ServerProcess
from support.waiting import eventually

PARTITIONS = 3
RECORDS = 30


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    yield server.bootstrap
    assert server.stop() == 0, server.tail()


@pytest.fixture
def topic(bootstrap: str, program: LineProgram) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"lines-{program.library}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, PARTITIONS)]).values():
        created.result(20)
    return name


@pytest.fixture(params=[franz_go, kafka_java], ids=["franz-go", "java"])
def program(request: pytest.FixtureRequest) -> LineProgram:
    found = request.param()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_a_member_reads_commits_and_finds_what_was_acknowledged(
    bootstrap: str, program: LineProgram, topic: str
) -> None:
    producer = LineClient(program, "produce", bootstrap, topic)
    for number in range(RECORDS):
        producer.tell(f"{number % PARTITIONS} {program.library}-{number}")
    producer.close_input()
    acknowledged = {}
    for answer in producer.answers():
        assert not answer["error"]
        acknowledged[answer["value"]] = answer["offset"]
    assert producer.end() == 0
    assert len(acknowledged) == RECORDS

    group = f"group-{program.library}"
    member = LineClient(program, "member", bootstrap, topic, group)
    read: dict[str, int] = {}
    ends: dict[str, int] = {}

    def poll() -> dict[str, int]:
        for record in member.ask("poll 300")["records"]:
            read[record["value"]] = record["offset"]
            ends[str(record["partition"])] = record["offset"] + 1
        return read

    eventually(poll, lambda found: found == acknowledged, timeout_seconds=30)
    committed = member.ask("commit")
    assert committed == {"offsets": ends, "error": ""}
    assert member.ask("committed") == committed
    assert member.end() == 0

    # The next one begins where this one ended.
    member = LineClient(program, "member", bootstrap, topic, group)
    eventually(
        lambda: member.ask("poll 300")["assignments"], lambda count: count > 0, timeout_seconds=30
    )
    assert member.ask("poll 300")["records"] == []
    assert member.ask("committed")["offsets"] == ends
    assert member.end() == 0
