"""Clients of other languages on one server: what they are told is what they sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peers.line_clients import franz_go
from support.line_client import LineClient, LineProgram
from support.server import ServerProcess
from support.waiting import eventually

TOPIC = "lines"
PARTITIONS = 3
RECORDS = 30


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from confluent_kafka.admin import AdminClient, NewTopic

    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
        created.result(20)
    del admin
    yield server.bootstrap
    assert server.stop() == 0, server.tail()


@pytest.fixture(params=[franz_go], ids=["franz-go"])
def program(request: pytest.FixtureRequest) -> LineProgram:
    found = request.param()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_a_member_reads_commits_and_finds_what_was_acknowledged(
    bootstrap: str, program: LineProgram
) -> None:
    producer = LineClient(program, "produce", bootstrap, TOPIC)
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
    member = LineClient(program, "member", bootstrap, TOPIC, group)
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
    member = LineClient(program, "member", bootstrap, TOPIC, group)
    eventually(
        lambda: member.ask("poll 300")["assignments"], lambda count: count > 0, timeout_seconds=30
    )
    assert member.ask("poll 300")["records"] == []
    assert member.ask("committed")["offsets"] == ends
    assert member.end() == 0
