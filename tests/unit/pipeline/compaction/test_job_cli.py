"""`penstock pipeline plan` and `compact`, as a person and as a program use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.api_server import ApiServer, serve_in_thread

LOCAL = ("--engine", "local")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as api:
        for topic in ("flights", "planes"):
            api.create(topic, 2)
        for number in range(6):
            for topic in ("flights", "planes"):
                for partition in range(2):
                    api.produce(topic, partition, count=number + 1)
            api.drain()
        yield api


def run(api: ApiServer, *arguments: str) -> Result:
    (url,) = api.client.options.urls
    return CliRunner().invoke(root, ["pipeline", *arguments, f"--url={url}"])


@pytest.mark.slow
def test_a_plan_says_what_and_why_and_does_nothing(api: ApiServer) -> None:
    done = run(api, "plan")
    assert done.exit_code == 0, done.output
    header, row, summary = done.stdout.splitlines()
    assert header.split() == ["KIND", "PARTITIONS", "RUNS", "OBJECTS", "BYTES", "WHY"]
    assert row.startswith("join")
    assert "and 1 more" in row
    assert "4 grow 4-fold" in row
    assert summary.startswith("1 item: 24 of 24 runs")
    planned = json.loads(run(api, "plan", "--json").stdout)
    (item,) = planned.pop("items")
    assert sorted(item["partitions"]) == ["flights-0", "flights-1", "planes-0", "planes-1"]
    assert item["runs"] == planned["runs"] == planned["planned_runs"] == 24
    assert planned["bytes"] == planned["planned_bytes"] == item["bytes"] > 0
    assert json.loads(run(api, "plan", "--json").stdout)["planned_runs"] == 24


@pytest.mark.slow
def test_compaction_of_one_topic_then_of_all(api: ApiServer) -> None:
    done = run(api, "compact", *LOCAL, "--topic", "planes", "--workers=1")
    assert done.exit_code == 0, done.output
    first, second, third = done.stdout.splitlines()
    assert "12 runs of 2 partitions became 2 runs" in first
    assert second.startswith("read ")
    assert third == "merged 12 small batches into larger ones"
    # Without a terminal there is no progress bar, only the line that says what runs.
    assert done.stderr == (
        f"penstock: engine local, 1 threads, agents {api.client.options.urls[0]}\n"
    )
    summary = json.loads(run(api, "compact", *LOCAL, "--json").stdout)
    assert (summary["partitions"], summary["runs_before"], summary["runs_after"]) == (2, 12, 2)
    assert (summary["refused"], summary["failures"], summary["left_items"]) == ([], [], 0)
    assert json.loads(run(api, "plan", "--json").stdout)["items"] == []


@pytest.mark.slow
def test_an_unknown_topic_is_an_error(api: ApiServer) -> None:
    done = run(api, "compact", *LOCAL, "--topic", "nothing")
    assert done.exit_code == 1
    assert "no such topic" in str(done.exception)


@pytest.mark.slow
def test_damage_gives_status_1_and_names_the_place(api: ApiServer, tmp_path: Path) -> None:
    for path in (tmp_path / "data" / "objects").rglob("*.seg"):
        body = bytearray(path.read_bytes())
        body[16 + 70] ^= 1
        path.chmod(0o600)
        path.write_bytes(body)
    done = run(api, "compact", *LOCAL)
    assert done.exit_code == 1
    assert "CRC-32C of the batch of offset 0 differs" in done.stderr
    assert json.loads(run(api, "plan", "--json").stdout)["planned_runs"] == 24


def test_an_engine_that_is_none_is_wrong_usage(api: ApiServer) -> None:
    assert run(api, "compact", "--engine", "flink").exit_code == 2
    assert run(api, "compact", "--engine", "local", "--master", "local[2]").exit_code == 1
