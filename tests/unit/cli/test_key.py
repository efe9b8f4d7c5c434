"""`penstock key` against an HTTP port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from click.testing import CliRunner

from penstock.cli.commands.key import command
from support.http_stub import Agent

KEY = {
    "id": "0123456789abcdef",
    "principal": "User:nightly",
    "note": "",
    "expires_ms": 1_700_000_000_000,
    "expired": True,
}


@pytest.fixture
def server() -> Iterator[Agent]:
    def answer(_: int, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        if handler.command == "POST":
            return 200, json.dumps({**KEY, "key": "psk_0123456789abcdef_x"}).encode()
        return 200, json.dumps({"keys": [KEY]} if handler.command == "GET" else {}).encode()

    server = Agent(answer)
    yield server
    server.close()


def run(server: Agent, *arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments, "--http", server.url])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_key_is_shown_once(server: Agent) -> None:
    output = run(server, "create", "User:nightly", "--expires", "90d", "--note", "n")
    assert output == "psk_0123456789abcdef_x\n"
    method, path, _, body = server.asked[-1]
    assert (method, path) == ("POST", "/v1/keys")
    assert json.loads(body) == {
        "principal": "User:nightly",
        "note": "n",
        "seconds": 90 * 86_400,
    }
    made = json.loads(run(server, "create", "User:nightly", "--json"))
    assert made["key"] == "psk_0123456789abcdef_x"
    assert json.loads(server.asked[-1][3])["seconds"] == 0


def test_keys_are_listed(server: Agent) -> None:
    output = run(server, "list")
    assert "2023-11-14T22:13:20+00:00 (over)" in output
    assert json.loads(run(server, "list", "--json")) == [KEY]


def test_a_key_is_revoked_by_its_id_or_its_text(server: Agent) -> None:
    for shown in ("0123456789abcdef", "psk_0123456789abcdef_secret"):
        assert run(server, "revoke", shown) == "revoked 0123456789abcdef\n"
        assert server.asked[-1][:2] == ("DELETE", "/v1/keys/0123456789abcdef")
    assert json.loads(run(server, "revoke", shown, "--json")) == {"revoked": "0123456789abcdef"}


@pytest.mark.parametrize("age", ["0d", "90", "x", "1w", "-1d", "9999999d"])
def test_an_age_that_is_none_is_a_wrong_call(server: Agent, age: str) -> None:
    result = CliRunner().invoke(
        command, ["create", "User:a", "--expires", age, "--http", server.url]
    )
    assert result.exit_code == 2
    assert server.asked == []


def test_what_is_no_id_is_not_sent(server: Agent) -> None:
    result = CliRunner().invoke(command, ["revoke", "../backup", "--http", server.url])
    assert result.exit_code == 1
    assert server.asked == []
