"""A word count of Kafka Streams, whose group has the streams protocol (KIP-1071) or the classic
one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.line_clients import kafka_java
from support.server import ServerProcess

SECONDS_MAX = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    made = ServerProcess(folder / "data", folder / "server.log")
    made.start()
    try:
        yield made
    finally:
        status = made.stop()
    assert status == 0, made.tail()


@pytest.mark.parametrize(
    ("protocol", "guarantee"),
    [
        ("streams", "at_least_once"),
        ("streams", "exactly_once_v2"),
        ("classic", "at_least_once"),
    ],
)
def test_words_are_counted_on_after_a_restart(
    server: ServerProcess, protocol: str, guarantee: str, tmp_path: Path
) -> None:
    program = kafka_java()
    if isinstance(program, str):
        pytest.skip(program)
    arguments = [server.bootstrap, protocol, guarantee, str(tmp_path)]
    said = subprocess.run(
        [*program.command[:-1], "WordCount", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    described = ["described 2 members of 2"] if protocol == "streams" else []
    assert said.stdout.splitlines() == [
        "first {a=2, is=1, rose=2}",
        "then {a=4, daisy=1, is=2, rose=3}",
        *described,
        "topics [counts-changelog, words-repartition]",
        f"listed {protocol.capitalize()}",
    ], said.stderr
