"""`penstock user` on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.server import ServerProcess

PASSWORD = "a word of bob's"


def user(server: ServerProcess, *words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(root, ["user", *words, "--server", server.bootstrap], input=typed)


def listed(server: ServerProcess, *words: str) -> list[dict[str, object]]:
    found = user(server, "list", "--json", *words)
    assert found.exit_code == 0, found.output
    rows: list[dict[str, object]] = json.loads(found.stdout)
    return rows


def test_users_are_made_listed_and_deleted(broker: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    made = user(broker, "create", "bob", "--password-file", str(file))
    assert made.stdout == "saved 2 credentials of bob\n"
    more = ["--mechanism", "SCRAM-SHA-256", "--iterations", "16384", "--password-file", "-"]
    again = user(broker, "create", "bob", *more, typed=PASSWORD)
    assert again.stdout == "saved 1 credential of bob\n"
    assert listed(broker, "bob", "nobody") == [
        {"user": "bob", "mechanism": "SCRAM-SHA-256", "iterations": 16384},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    shown = user(broker, "list", "bob").stdout
    assert shown.splitlines()[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    one = user(broker, "delete", "bob", "--mechanism", "SCRAM-SHA-256", "--yes")
    assert one.stdout == "deleted 1 credential of bob\n"
    assert user(broker, "delete", "bob", "--yes").stdout == "deleted 1 credential of bob\n"
    assert listed(broker, "bob") == []
    assert "the user has none" in str(user(broker, "delete", "bob", "--yes").exception)


def test_wrong_calls_are_refused(broker: ServerProcess, tmp_path: Path) -> None:
    for words in (
        ["create", "bob"],  # no terminal
        ["create", "bob", "--iterations", "4095", "--password-file", "-"],
        ["create", "bob", "--mechanism", "PLAIN", "--password-file", "-"],
    ):
        assert user(broker, *words, typed="x").exit_code == 2, words
    for words in (
        ["create", "bob", "--password-file", "-"],
        ["create", "bob", "--password-file", str(tmp_path / "absent")],
    ):
        assert user(broker, *words, typed="\n").exit_code == 1, words
    assert listed(broker, "bob") == []


def test_a_name_that_no_user_may_have_is_the_server_s_to_refuse(broker: ServerProcess) -> None:
    found = user(broker, "create", "", "--password-file", "-", typed=PASSWORD)
    assert found.exit_code == 1
    assert "UNACCEPTABLE_CREDENTIAL" in str(found.exception)


@pytest.mark.parametrize("lines", ["", "security.protocol=PLAINTEXT"])
def test_a_listener_of_plaintext_takes_a_file_without_secrets(
    broker: ServerProcess, tmp_path: Path, lines: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(lines)
    assert user(broker, "list", "--command-config", str(file)).exit_code == 0
