"""`penstock status` prints a line for each value, and JSON as the server sent it."""

import json
from typing import Any

from click.testing import CliRunner

from penstock.cli.main import root
from support.http_stub import Agent

STATUS: dict[str, Any] = {
    "version": "1",
    "listeners": [{"name": "A", "advertised": "h:1"}, {"name": "B", "advertised": "h:2"}],
    "clock": {"in_doubt": "", "off_ms": 0},
    "fsync": True,
    "upload_error": None,
    "ranges": [],
    "more": {"nested": {"is": False}},
}


def run(*arguments: str) -> str:
    agent = Agent(lambda _number, _request, _body: (200, json.dumps(STATUS).encode()))
    try:
        found = CliRunner().invoke(root, ["status", *arguments, "--http", agent.url])
    finally:
        agent.close()
    assert found.exit_code == 0, found.output
    return found.output


def test_each_value_has_a_line_and_each_item_of_a_list_its_own() -> None:
    lines = [line.split(maxsplit=1) for line in run().splitlines()]
    assert lines == [
        ["version", "1"],
        ["listeners", "name A, advertised h:1"],
        ["listeners", "name B, advertised h:2"],
        ["clock.in_doubt", "-"],
        ["clock.off_ms", "0"],
        ["fsync", "yes"],
        ["upload_error", "-"],
        ["ranges", "-"],
        ["more.nested.is", "no"],
    ]


def test_json_is_what_the_server_sent() -> None:
    assert json.loads(run("--json")) == STATUS
