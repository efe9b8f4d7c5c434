"""`penstock quota` on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("served"), {}) as server:
        yield server


def quota(server: ServerProcess, *words: str) -> Result:
    return CliRunner().invoke(root, ["quota", *words, "--server", server.bootstrap])


def test_quotas_are_set_listed_and_removed(served: ServerProcess) -> None:
    rates = ("producer_byte_rate=1048576", "request_percentage=12.5")
    done = quota(served, "set", *rates, "--user", "alice", "--default-client-id")
    assert done.stdout == f"set {', '.join(rates)} of user alice, client-id default\n"
    quota(served, "set", "connection_creation_rate=20", "--ip", "10.0.0.7")
    shown = quota(served, "list").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["USER", "CLIENT-ID", "IP", "KEY", "VALUE"],
        ["-", "-", "10.0.0.7", "connection_creation_rate", "20"],
        ["alice", "(default)", "-", "producer_byte_rate", "1048576"],
        ["alice", "(default)", "-", "request_percentage", "12.5"],
    ]
    found = json.loads(quota(served, "list", "--json", "--user", "alice").stdout)
    assert found == [
        {
            "entity": {"user": "alice", "client-id": None},
            "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
        }
    ]
    gone = quota(served, "remove", "request_percentage", "--user", "alice", "--default-client-id")
    assert gone.stdout == "removed request_percentage of user alice, client-id default\n"
    quota(served, "remove", "producer_byte_rate", "--user", "alice", "--default-client-id")
    quota(served, "remove", "connection_creation_rate", "--ip", "10.0.0.7")
    assert json.loads(quota(served, "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["set", "producer_byte_rate=1"], "the entity is empty"),
        (["set", "producer_byte_rate", "--user", "u"], "is not KEY=VALUE"),
        (["set", "producer_byte_rate=fast", "--user", "u"], "is not KEY=VALUE"),
        (["set", "producer_byte_rate=0", "--user", "u"], "above 0"),
        (["set", "nope=1", "--user", "u"], "unknown"),
        (["set", "producer_byte_rate=1", "--user", "u", "--default-user"], "not both"),
        (["set", "producer_byte_rate=1", "--user", ""], "--default-user"),
        (["set", "connection_creation_rate=1", "--ip", "db1"], "IP address"),
        (["set", "producer_byte_rate=1", "--ip", "10.0.0.1", "--user", "u"], "alone"),
        (["remove", "nope", "--user", "u"], "is not one of"),
    ],
)
def test_what_means_nothing_is_refused_before_it_is_sent(
    served: ServerProcess, words: list[str], text: str
) -> None:
    refused = quota(served, *words)
    assert refused.exit_code == 2
    assert text in refused.output
