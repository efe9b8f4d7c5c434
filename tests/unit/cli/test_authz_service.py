"""`penstock authz environment|key|explain` against a service's process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.authz import POLICY, AuthzProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthzProcess]:
    folder = tmp_path_factory.mktemp("authz-cli")
    server = AuthzProcess(folder / "data", folder / "log")
    server.start()
    yield server
    assert server.stop() == 0, server.tail()


def run(server: AuthzProcess, *arguments: str, key: str = "") -> Result:
    options = ["--http", f"127.0.0.1:{server.port}"]
    if not key:
        options += ["--key-file", str(server.data / "key")]
    environment = {"PENSTOCK_AUTHZ_KEY": key}
    return CliRunner().invoke(root, ["authz", *arguments, *options], env=environment)


def test_the_start_says_where_it_serves_and_where_the_key_is(server: AuthzProcess) -> None:
    first = next(line for line in server.tail().splitlines() if "authorizes at" in line)
    assert f"http://127.0.0.1:{server.port}, environment default, key {server.data}/key" in first


def test_environments_are_made_and_listed(server: AuthzProcess) -> None:
    assert run(server, "environment", "create", "staging").output == "created environment staging\n"
    assert run(server, "environment", "list").output.splitlines() == ["default", "staging"]
    refused = run(server, "environment", "create", "staging")
    assert "the environment staging exists already" in str(refused.exception)


def test_a_key_is_made_listed_and_revoked(server: AuthzProcess) -> None:
    key = run(
        server, "key", "create", "default", "--scope", "read", "--name", "of CI"
    ).output.strip()
    assert server.call("GET", "/api/policy", key=key)[0] == 200
    rows = json.loads(run(server, "key", "list", "--json").output)["keys"]
    (number,) = [row["number"] for row in rows if row["name"] == "of CI"]
    assert key not in json.dumps(rows)
    assert "of CI" in run(server, "key", "list").output
    refused = run(server, "key", "list", key=key)
    assert "this key has the scope read; the call needs admin" in str(refused.exception)
    assert run(server, "key", "revoke", number).output == f"revoked key {number}\n"
    assert server.call("GET", "/api/policy", key=key)[0] == 401


def test_explain_shows_the_derivation_or_what_would_allow_it(server: AuthzProcess) -> None:
    key = (server.data / "key").read_text().strip()
    assert server.call("POST", "/api/policy", {"src": POLICY}, key=key)[0] in (200, 202)
    values = (("User", "alice"), ("String", "reader"), ("Repository", "anvil"))
    fact = {"predicate": "has_role", "args": [{"type": kind, "id": id_} for kind, id_ in values]}
    assert server.call("POST", "/api/batch", [{"inserts": [fact]}], key=key)[0] == 200
    allowed = run(server, "explain", "User:alice", "read", "Repository:anvil").output.splitlines()
    assert allowed[0] == "allowed:"
    assert allowed[-1].strip() == ('has_role(User{"alice"}, "reader", Repository{"anvil"})  [fact]')
    denied = run(server, "explain", "User:bob", "push", "Repository:anvil").output
    assert denied.startswith("denied\neach of these would allow it:\n")
    assert 'has_role(User{"bob"}, "maintainer", Repository{"anvil"})' in denied
    wrong = run(server, "explain", "alice", "read", "Repository:anvil")
    assert "it isn't TYPE:ID" in str(wrong.exception)


def test_an_earlier_position_is_recovered_beside_the_running_service(
    server: AuthzProcess, tmp_path: Path
) -> None:
    key = (server.data / "key").read_text().strip()
    server.call("POST", "/api/policy", {"src": POLICY}, key=key)
    arguments = ["authz", "recover", "--data", str(server.data), "--to-position", "2"]
    output = tmp_path / "before.sqlite"
    result = CliRunner().invoke(root, [*arguments, str(output)])
    assert result.output == f"recovered environment default at position 2 in {output}\n"
    assert output.stat().st_size > 0
    both = CliRunner().invoke(root, [*arguments, "--to-time", "2026-01-01", str(output)])
    assert "give one of both" in str(both.exception)


@pytest.mark.slow
def test_without_a_key_the_error_says_what_to_do(server: AuthzProcess) -> None:
    result = CliRunner().invoke(root, ["authz", "key", "list"], env={"PENSTOCK_AUTHZ_KEY": ""})
    assert "use --key-file DIR/key, or set PENSTOCK_AUTHZ_KEY" in str(result.exception)
