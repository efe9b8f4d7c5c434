"""Iceberg's own runtime, on Spark 4.1, reads our tables and maintains them, and we go on after it,
each record once."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.iceberg import build, jars
from peers.spark import is_built, python_of
from penstock.lake.tables.offsets import OFFSETS_PROPERTY
from penstock.pipeline.tables.catalog import ancestry, summary_of
from support.door import Door, serve_in_thread
from support.server import REPOSITORY
from support.tables import Lake, follow, new_record, produce

SECONDS_MAX = 600
RELEASE = "4.1"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    if not is_built(RELEASE):
        pytest.skip(f"{python_of(RELEASE)} is not there: python tests/peers/spark.py")
    problem = build()
    if problem:
        pytest.skip(f"no Iceberg for Spark: {problem}")
    return Lake(tmp_path / "warehouse")


@pytest.fixture
def door(lake: Lake, tmp_path: Path) -> Iterator[Door]:
    """With the topic."""
    with serve_in_thread(tmp_path / "data") as door:
        door.create("flights", 2)
        yield door


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_native_maintenance_changes_nothing(lake: Lake, door: Door, mode: str) -> None:
    expected: dict[object, list[str]] = {}
    for number in range(3):
        write(door, number, expected, mode)
        follow(door, lake, "flights", mode=mode, buckets=2)
    told = maintain(lake)
    assert told["before"] == told["after"] == sorted(expected.values())
    assert told["rewritten"] > told["added"] > 0 or mode == "upsert"
    assert told["rewritten"] > 0
    assert told["snapshots"][0] > told["snapshots"][1] == 1
    # The snapshots with offsets are gone: the table's property holds them.
    (left,) = ancestry(lake.table("flights"))
    assert OFFSETS_PROPERTY not in summary_of(left)
    assert follow(door, lake, "flights", mode=mode).commits == 0
    write(door, 3, expected, mode)
    assert follow(door, lake, "flights", mode=mode).commits == 1
    rows = lake.table("flights").scan().to_arrow().to_pylist()
    found = sorted([row["key"].decode(), row["value"].decode()] for row in rows)
    assert found == sorted(expected.values())
    assert maintain(lake)["after"] == found


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_command_maintains_by_iceberg_s_procedures(lake: Lake, door: Door, mode: str) -> None:
    expected: dict[object, list[str]] = {}
    for number in range(5):
        write(door, number, expected, mode)
        follow(door, lake, "flights", mode=mode, buckets=1)
    files = len(list(lake.table("flights").scan().plan_files()))
    done = penstock_maintain(door, lake, jars())
    assert done.returncode == 0, done.stderr[-5000:]
    told = json.loads(done.stdout)
    left = len(list(lake.table("flights").scan().plan_files()))
    assert told["files_joined"] - told["files_written"] == files - left
    assert (told["files_joined"] > 1) == (mode == "append"), told
    assert len(lake.table("flights").snapshots()) == 1
    assert told["snapshots_expired"] >= 4
    write(door, 5, expected, mode)
    assert follow(door, lake, "flights", mode=mode).commits == 1
    rows = lake.table("flights").scan().to_arrow().to_pylist()
    found = sorted([row["key"].decode(), row["value"].decode()] for row in rows)
    assert found == sorted(expected.values())
    if mode == "upsert":
        return  # as with append
    # Rolled back, the table's property is of offsets that its rows don't reach.
    table = lake.table("flights")
    current = table.current_snapshot()
    assert current is not None
    write(door, 6, expected, mode)
    follow(door, lake, "flights", mode=mode)
    lake.table("flights").manage_snapshots().rollback_to_snapshot(current.snapshot_id).commit()
    told = json.loads(penstock_maintain(door, lake, jars()).stdout)
    assert told["snapshots_expired"] == 0
    assert "rolled back" in told["not_expired"]
    assert follow(door, lake, "flights", mode=mode).commits == 1
    without = penstock_maintain(door, lake, [])
    assert without.returncode != 0
    assert "Spark doesn't find it by Iceberg's runtime" in without.stderr
    assert "iceberg-spark-runtime-4.1" in without.stderr


def penstock_maintain(door: Door, lake: Lake, jars: list[Path]) -> subprocess.CompletedProcess[str]:
    arguments = ["pipeline", "table", "--topic", "flights", "--maintain", "--native", "--json"]
    arguments += ["--url", door.client.options.urls[0], "--warehouse", str(lake.folder)]
    arguments += ["--master", "local[2]", "--snapshot-age-hours", "0"]
    added = f"--jars {','.join(map(str, jars))} " if jars else ""
    return subprocess.run(
        [str(python_of(RELEASE)), "-c", "import penstock.cli; penstock.cli.main()", *arguments],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{added}pyspark-shell"},
        cwd=lake.folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def write(door: Door, number: int, expected: dict[object, list[str]], mode: str) -> None:
    for partition in range(2):
        records = []
        for key in range(20):
            text, value = f"{partition}-{key}", f"{number}"
            records.append(new_record(text.encode(), value.encode()))
            place = text if mode == "upsert" else (number, text)
            expected[place] = [text, value]
        produce(door, "flights", partition, records)


def maintain(lake: Lake) -> dict[str, list[object]]:
    script = str(REPOSITORY / "tests" / "peers" / "native_iceberg.py")
    done = subprocess.run(
        [str(python_of(RELEASE)), script, str(lake.folder), "penstock.flights", *map(str, jars())],
        cwd=lake.folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("at ")]
    assert done.returncode == 0, "\n".join(lines)[-5000:]
    told: dict[str, list[object]] = json.loads(done.stdout.splitlines()[-1])
    return told
