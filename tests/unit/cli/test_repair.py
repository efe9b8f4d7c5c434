"""`penstock repair`: what is asked of the agent, what is printed, and the exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from support.http_stub import Agent
from support.repair_stub import Servers

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
    "damaged": ["segments/0a/3-9-1.seg"],
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
        "segments/0a/3-9-1.seg is damaged",
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
        ["--dry-run", "--yes"],
        ["--from-table", "penstock.t"],
        ["--topic", "t"],
        ["--history", "--from-table", "penstock.t", "--topic", "t"],
        ["--history", "--yes"],
        ["--history", "--from", "x"],
        ["--history", "--accept-loss"],
        ["--history", "--scan"],
        ["--history", "--only"],
        ["--history", "--dry-run", "--give-up"],
    ],
)
def test_wrong_usage_asks_nothing(arguments: list[str]) -> None:
    status, _, asked = run(*arguments, reports=[])
    assert (status, asked) == (2, [])


def damage_run(state: str, **others: Any) -> dict[str, Any]:
    return {
        "partition": "t-0",
        "partition_key": 4096,
        "start": 0,
        "end": 10,
        "place": "segments/aa/1-1-1.seg",
        "state": state,
        "lost": [[5, 6]],
        "kept_batches": 9,
        "note": "",
        "copy": "",
        **others,
    }


LOOKED = ("/v1/repair/damage", {"action": "find", "places": None, "source": ""})


def answering(found: dict[str, Any], done: str) -> Any:
    """A server that finds one run, and does what it is asked to."""

    def answer(_: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"runs": [found if body["action"] == "find" else found | {"state": done}]}

    return answer


@pytest.mark.parametrize(
    ("arguments", "copy", "actions", "status"),
    [
        ([], "", [], 1),
        ([], "WAL 0", [], 1),
        (["--dry-run"], "WAL 0", [], 1),
        (["--yes"], "WAL 0", ["restore"], 0),
        (["--yes"], "", [], 1),
        (["--accept-loss"], "", ["accept_loss"], 0),
        # What has a copy is not given up.
        (["--accept-loss"], "WAL 0", [], 1),
        (["--accept-loss", "--yes"], "WAL 0", ["restore"], 0),
        (["--yes", "--json"], "WAL 0", ["restore"], 0),
    ],
)
def test_damage_is_listed_and_changed_only_when_asked(
    arguments: list[str], copy: str, actions: list[str], status: int
) -> None:
    run = damage_run("damaged", note="a note", copy=copy)
    servers = Servers(answering(run, "lost" if actions == ["accept_loss"] else "restored"))
    try:
        found = servers.run(*arguments)
        asked = servers.asked()
    finally:
        servers.close()
    assert asked[0] == LOOKED
    assert [body["action"] for _, body in asked[1:]] == actions
    assert all(body["places"] == [[4096, 0]] for _, body in asked[1:])
    assert found.exit_code == status
    if "--json" not in arguments:
        assert "0 to 9" in found.output
        assert "5 to 5" in found.output
        assert "a note" in found.output
        assert (copy or " - ") in found.output + " - "
        assert ("give --yes to bring back" in found.output) is bool(copy and not actions)


def test_a_source_is_handed_on_as_it_is_found_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, asked in (("kept", str(tmp_path / "kept")), ("s3://b/p", "s3://b/p")):
        servers = Servers(answering(damage_run("damaged", copy="there"), "restored"))
        try:
            assert servers.run("--from", given, "--yes").exit_code == 0
            assert [body["source"] for _, body in servers.asked()] == [asked, asked]
        finally:
            servers.close()


def test_a_person_is_asked_before_anything_is_brought_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cli.commands.repair._is_terminal", lambda: True)
    for said, actions in (("n\n", []), ("y\n", ["restore"])):
        servers = Servers(answering(damage_run("damaged", copy="WAL 0"), "restored"))
        try:
            found = servers.run(stdin=said)
            assert "bring back 1 run from copies?" in found.output
            assert [body["action"] for _, body in servers.asked()[1:]] == actions
        finally:
            servers.close()


def test_what_one_agent_lost_another_has_a_copy_of() -> None:
    def one(_: str, __: dict[str, Any]) -> dict[str, Any]:
        return {"runs": [damage_run("damaged")]}

    def two(_: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["places"] is None:
            return {"runs": []}
        state = "damaged" if body["action"] == "find" else "restored"
        return {"runs": [damage_run(state, copy="this agent's tail cache")]}

    servers = Servers(one, two, agents=True)
    try:
        assert servers.run("--yes").exit_code == 0
        assert [body["action"] for _, body in servers.asked(1)] == ["find"]
        assert [body["action"] for _, body in servers.asked(2)] == ["find", "find", "restore"]
    finally:
        servers.close()


def test_where_no_damage_is_known_it_says_what_makes_it_known() -> None:
    """`penstock verify` reads the files itself: the servers don't know what it has found."""
    servers = Servers(lambda _path, _body: {"runs": []})
    try:
        found = servers.run()
    finally:
        servers.close()
    assert found.exit_code == 0
    assert "--scan lets them read everything stored" in found.output


def test_what_only_another_agent_knows_is_listed_and_done_there() -> None:
    runs = [damage_run("damaged", start=start, place=f"place {start}") for start in (0, 20, 40)]

    def one(_: str, body: dict[str, Any]) -> dict[str, Any]:
        # Run 20 lies in the second agent's WAL.
        mine = [runs[0], runs[1] | {"state": "unknown", "note": "another agent's WAL"}]
        return {"runs": mine if body["places"] is None else mine[:1]}

    def two(_: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["places"] is None:
            return {"runs": [runs[0], runs[2]]}
        return {"runs": [run for run in runs if [4096, run["start"]] in body["places"]]}

    servers = Servers(one, two, agents=True)
    try:
        found = servers.run("--json")
        listed = json.loads(found.output)["runs"]
        assert [(run["start"], run["state"], run["server"]) for run in listed] == [
            (0, "damaged", "agent 1"),
            (20, "damaged", "agent 2"),
            (40, "damaged", "agent 2"),
        ]
        assert servers.asked(2)[1] == (
            "/v1/repair/damage",
            {"action": "find", "places": [[4096, 0], [4096, 20]], "source": ""},
        )
        servers.run("--accept-loss")
        assert servers.asked(1)[-1][1] == {"action": "accept_loss", "places": [[4096, 0]]}
        assert servers.asked(2)[-1][1] == {
            "action": "accept_loss",
            "places": [[4096, 20], [4096, 40]],
        }
        before = len(servers.asked(2))
        servers.run("--only")
        assert len(servers.asked(2)) == before
    finally:
        servers.close()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"status": "fenced", "http": "x", "wal_runs": 7}, "its WAL holds 7 runs"),
        (
            {"status": "live", "http": "", "wal_runs": 0},
            "the address of its HTTP port is not known",
        ),
        ({"status": "live", "http": "127.0.0.1:9", "wal_runs": 0}, "refused"),
        ({"status": "fenced", "http": "x", "wal_runs": 0}, None),
    ],
)
def test_an_agent_that_was_not_asked_is_named(other: dict[str, Any], reason: str | None) -> None:
    servers = Servers(lambda *_: {"runs": []}, agents=True, others=[other | {"id": 9}])
    try:
        found = servers.run()
    finally:
        servers.close()
    if reason is None:
        assert (found.exit_code, "not asked" in found.output) == (0, False)
    else:
        assert found.exit_code == 1
        (line,) = [line for line in found.output.splitlines() if line.startswith("not asked: ")]
        assert "agent 9" in line
        assert reason in line


def test_a_scan_lets_one_agent_read_the_objects_and_adds_up() -> None:
    def answer(path: str, _: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/repair/scan":
            return {"scanned": {"bytes": 5, "runs": 2, "damaged": 1}}
        return {"runs": [damage_run("damaged")]}

    servers = Servers(answer, answer, agents=True)
    try:
        found = servers.run("--scan", "--rate", "3", "--json")
        assert json.loads(found.output)["scanned"] == {"bytes": 10, "runs": 4, "damaged": 2}
        assert found.stderr == "", "no progress where there is no terminal"
        asked = [servers.asked(number)[0] for number in (1, 2)]
        assert asked == [
            ("/v1/repair/scan", {"bytes_per_s": 3 << 20, "objects": True}),
            ("/v1/repair/scan", {"bytes_per_s": 3 << 20, "objects": False}),
        ]
    finally:
        servers.close()


def test_a_scan_that_ends_in_an_error_is_no_scan() -> None:
    servers = Servers(lambda *_: {"error": "the store is away"})
    try:
        found = servers.run("--scan")
    finally:
        servers.close()
    assert found.exit_code == 1
    assert "the store is away" in str(found.exception)
