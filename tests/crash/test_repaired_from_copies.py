"""Under a real server: what was damaged comes back from a copy, and clients read every record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from crash.test_accepted_loss import with_kafka_python, with_librdkafka
from crash.test_damage import COUNT, damaged, flip_in_partition_0, http, remove_object, value
from penstock.cli.main import root
from support.raw_fetch import fetch_from
from support.server import ServerProcess

__all__ = ["damaged"]


def with_a_backup(data: Path) -> None:
    """The object is lost, a copy of all objects is kept elsewhere, and WAL files are used again."""
    shutil.copytree(data / "objects", data.parent / "kept")
    for path in (data / "wal").glob("*.wal"):
        path.unlink()
    remove_object(data)


def repair(server: ServerProcess, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(
        root, ["repair", "--http", f"http://{server.http}", "--json", *arguments]
    )
    return done.exit_code, json.loads(done.output)


@pytest.mark.parametrize(
    ("damaged", "source"),
    [(flip_in_partition_0, ""), (remove_object, ""), (with_a_backup, "kept")],
    indirect=["damaged"],
    ids=["bit", "object", "backup"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_has_a_copy_comes_back(damaged: ServerProcess, source: str) -> None:
    assert fetch_from(damaged.bootstrap, "t", 0, COUNT - 10).error == "CORRUPT_MESSAGE"
    arguments = ["--scan"]
    if source:
        status, found = repair(damaged, *arguments)
        assert status == 1
        assert {run["copy"] for run in found["runs"]} == {""}
        arguments += ["--from", str(damaged.data.parent / source)]
    status, found = repair(damaged, *arguments)
    assert status == 1
    assert {run["state"] for run in found["runs"]} == {"damaged"}
    for run in found["runs"]:
        assert run["copy"].startswith(str(damaged.data.parent / source) if source else "WAL 0")
    status, found = repair(damaged, *arguments, "--yes")
    assert status == 0, found
    assert {run["state"] for run in found["runs"]} == {"restored"}
    expected = [value(number) for number in range(COUNT)]
    for read in (with_librdkafka, with_kafka_python):
        assert read(damaged.bootstrap, COUNT) == expected
    _, text = http(damaged, "/v1/status")
    assert json.loads(text)["damage"]["known"] == 0
    assert json.loads(text)["lost_ranges"] == {"known": 0, "ranges": []}
    damaged.kill()
    damaged.start()
    assert with_kafka_python(damaged.bootstrap, COUNT) == expected
    assert repair(damaged, "--scan")[1]["runs"] == []
