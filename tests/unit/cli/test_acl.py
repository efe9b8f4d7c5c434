"""`penstock acl` on a real server, whose anonymous clients are super users."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"AUTHORIZER": "acl", "SUPER_USERS": "User:root; User:ANONYMOUS"}
    with running_server(tmp_path_factory.mktemp("guarded"), settings) as server:
        yield server


def acl(server: ServerProcess, *words: str) -> Result:
    return CliRunner().invoke(root, ["acl", *words, "--server", server.bootstrap])


def listed(server: ServerProcess, *words: str) -> list[dict[str, str]]:
    found = acl(server, "list", "--json", *words)
    assert found.exit_code == 0, found.output
    rows: list[dict[str, str]] = json.loads(found.stdout)
    return rows


def test_rules_are_added_listed_and_deleted(guarded: ServerProcess) -> None:
    words = ["--allow", "User:alice", "--operation", "read", "--operation", "Write"]
    added = acl(guarded, "add", *words, "--topic", "flights", "--host", "10.0.0.0/8")
    assert added.stdout == "added 2 rules\n"
    acl(guarded, "add", "--deny", "User:*", "--operation", "all", "--group", "g", "--prefixed")
    acl(guarded, "add", "--allow", "User:a", "--operation", "idempotent-write", "--cluster")
    assert len(listed(guarded)) == 4
    assert listed(guarded, "--topic", "flights", "--operation", "read") == [
        {
            "principal": "User:alice",
            "host": "10.0.0.0/8",
            "permission": "allow",
            "operation": "read",
            "resource": "topic",
            "pattern": "literal",
            "name": "flights",
        }
    ]
    assert [row["pattern"] for row in listed(guarded, "--group", "gates", "--about")] == [
        "prefixed"
    ]
    assert listed(guarded, "--group", "gates") == []
    shown = acl(guarded, "list", "--principal", "User:alice")
    assert shown.stdout.splitlines()[0].split() == [
        *["PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "RESOURCE", "PATTERN", "NAME"]
    ]
    gone = acl(guarded, "delete", "--topic", "flights", "--yes", "--json")
    assert [row["operation"] for row in json.loads(gone.stdout)] == ["read", "write"]
    assert len(listed(guarded)) == 2


def test_wrong_calls_are_refused_before_anything_is_asked(guarded: ServerProcess) -> None:
    for words in (
        ["add", "--allow", "User:a", "--operation", "read"],
        ["add", "--operation", "read", "--topic", "t"],
        ["add", "--allow", "alice", "--operation", "read", "--topic", "t"],
        ["delete", "--yes"],
        ["delete", "--topic", "t"],
        ["list", "--about"],
        ["list", "--topic", "t", "--about", "--prefixed"],
    ):
        assert acl(guarded, *words).exit_code == 2, words


def test_a_server_without_an_authorizer_says_so(broker: ServerProcess) -> None:
    found = acl(broker, "list")
    assert found.exit_code == 1
    assert "SECURITY_DISABLED" in str(found.exception)
