"""`penstock repair`: what is asked of the agent, what is printed, and the exit status."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from support.http_stub import Agent

PARTITION = {
    "topic": "t",
    "partition": 0,
    "records": 5,
    "first_offset": 3,
    "end_offset": 8,
    "unread": 2,
    "duplicates": 1,
    "appended": 4,
    "notes": ["only in the WAL with key 3, of another agent"],
}
REPORT = {
    "history": 1,
    "start": 10,
    "end": 20,
    "reason": "replica",
    "agent": 7,
    "noted_ms": 5,
    "held_end": 18,
    "closed": False,
    "moves": 6,
    "topics": ["gone"],
    "partitions": [PARTITION],
}


def run(*arguments: str, reports: list[dict[str, Any]]) -> tuple[int, str, list[dict[str, Any]]]:
    body = json.dumps({"histories": reports}).encode()
    agent = Agent(lambda _number, _request, _body: (200, body))
    try:
        found = CliRunner().invoke(root, ["repair", *arguments, "--http", agent.url])
        return found.exit_code, found.output, [json.loads(asked[3]) for asked in agent.asked]
    finally:
        agent.close()


def test_records_are_listed_by_partition_with_what_could_not_be_read() -> None:
    status, output, asked = run("--history", reports=[REPORT])
    assert asked == [{"action": "append", "history": None}]
    assert status == 1, "it is still open"
    for text in (
        "positions 10 to 20",
        "up to position 18",
        "topic gone",
        "6 runs",
        "3 to 7",
        "key 3",
    ):
        assert text in output
    assert next(line for line in output.splitlines() if line.startswith("t-0")).split() == [
        "t-0",
        "5",
        "3",
        "to",
        "7",
        "4",
        "1",
        "2",
    ]


@pytest.mark.parametrize(
    ("arguments", "asked", "closed", "status"),
    [
        (["--dry-run"], {"action": "look", "history": None}, False, 0),
        (["--give-up", "--number", "3"], {"action": "give_up", "history": 3}, True, 0),
        ([], {"action": "append", "history": None}, True, 0),
        ([], {"action": "append", "history": None}, False, 1),
    ],
)
def test_what_is_asked_and_the_exit_status(
    arguments: list[str], asked: dict[str, Any], closed: bool, status: int
) -> None:
    found, output, sent = run(
        "--history", "--json", *arguments, reports=[REPORT | {"closed": closed}]
    )
    assert (found, sent) == (status, [asked])
    assert json.loads(output)["histories"][0]["closed"] is closed


def test_no_open_history_is_no_error() -> None:
    assert run("--history", reports=[])[:2] == (0, "no lost history is open\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--give-up"],
        ["--number", "1"],
        ["--dry-run", "--accept-loss"],
        ["--history", "--accept-loss"],
        ["--history", "--dry-run", "--give-up"],
    ],
)
def test_wrong_usage_asks_nothing(arguments: list[str]) -> None:
    status, _, asked = run(*arguments, reports=[])
    assert (status, asked) == (2, [])


def damage_run(state: str, **others: Any) -> dict[str, Any]:
    return {
        "partition": "t-0",
        "start": 0,
        "end": 10,
        "place": "segments/aa/1-1-1.seg",
        "state": state,
        "lost": [[5, 6]],
        "kept_batches": 9,
        "note": "",
        **others,
    }


@pytest.mark.parametrize(
    ("arguments", "action", "state", "status"),
    [
        ([], "look", "damaged", 1),
        (["--dry-run"], "look", "right", 0),
        (["--accept-loss"], "accept_loss", "lost", 0),
        (["--accept-loss"], "accept_loss", "unknown", 1),
    ],
)
def test_damage_is_listed_and_given_up_only_when_asked(
    arguments: list[str], action: str, state: str, status: int
) -> None:
    body = json.dumps({"runs": [damage_run(state, note="ask agent 3")]}).encode()
    agent = Agent(lambda _number, _request, _body: (200, body))
    try:
        found = CliRunner().invoke(root, ["repair", *arguments, "--http", agent.url])
        asked = [(one[1], json.loads(one[3])) for one in agent.asked]
    finally:
        agent.close()
    assert asked == [("/v1/repair/damage", {"action": action})]
    assert found.exit_code == status
    assert "0 to 9" in found.output
    assert "5 to 5" in found.output
    assert "ask agent 3" in found.output


def test_where_no_damage_is_known_it_says_what_makes_it_known() -> None:
    """`penstock verify` reads the files itself: the server doesn't know what it has found."""
    agent = Agent(lambda _number, _request, _body: (200, b'{"runs": []}'))
    try:
        found = CliRunner().invoke(root, ["repair", "--http", agent.url])
    finally:
        agent.close()
    assert found.exit_code == 0
    assert "known here once it was read here" in found.output
