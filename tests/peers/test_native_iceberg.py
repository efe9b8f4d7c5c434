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
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.catalog import ancestry, open_catalog, summary_of
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.offsets import OFFSETS_PROPERTY
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from support.api_server import ApiServer, serve_in_thread
from support.rest_catalog import serve_rest_catalog
from support.s3 import S3Server
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
def api(lake: Lake, tmp_path: Path) -> Iterator[ApiServer]:
    """With the topic."""
    with serve_in_thread(tmp_path / "data") as api:
        api.create("flights", 2)
        yield api


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_native_maintenance_changes_nothing(lake: Lake, api: ApiServer, mode: str) -> None:
    expected = grow(api, lake.settings("flights", mode=mode, buckets=2), commits=3)
    told = maintain(lake)
    assert told["before"] == told["after"] == sorted(expected.values())
    assert told["rewritten"] > told["added"] > 0 or mode == "upsert"
    assert told["rewritten"] > 0
    assert told["snapshots"][0] > told["snapshots"][1] == 1
    # The snapshots with offsets are gone: the table's property holds them.
    (left,) = ancestry(lake.table("flights"))
    assert OFFSETS_PROPERTY not in summary_of(left)
    assert follow(api, lake, "flights", mode=mode).commits == 0
    goes_on(api, lake.settings("flights", mode=mode), expected)
    assert maintain(lake)["after"] == sorted(expected.values())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_command_maintains_by_iceberg_s_procedures(
    lake: Lake, api: ApiServer, mode: str
) -> None:
    settings = lake.settings("flights", mode=mode, buckets=1)
    check_the_command(api, settings, joins=mode == "append")
    if mode == "upsert":
        return  # as with append
    # Rolled back, the table's property is of offsets that its rows don't reach.
    table = lake.table("flights")
    current = table.current_snapshot()
    assert current is not None
    grow(api, settings, commits=1)
    lake.table("flights").manage_snapshots().rollback_to_snapshot(current.snapshot_id).commit()
    told = json.loads(penstock_maintain(api, settings, jars()).stdout)
    assert told["snapshots_expired"] == 0
    assert "rolled back" in told["not_expired"]
    assert follow(api, lake, "flights", mode=mode).commits == 1
    without = penstock_maintain(api, settings, [])
    assert without.returncode != 0
    assert "Spark doesn't find it by Iceberg's runtime" in without.stderr
    assert "iceberg-spark-runtime-4.1" in without.stderr


def test_a_table_of_a_catalog_over_rest(lake: Lake, api: ApiServer, tmp_path: Path) -> None:
    lake.folder.mkdir()
    with serve_rest_catalog(tmp_path, lake.folder.as_uri()) as rest:
        catalog = CatalogSettings(
            warehouse=str(lake.folder), properties={"type": "rest", "uri": rest.url}
        )
        check_the_command(api, TableSettings(topic="flights", catalog=catalog), joins=True)


def test_a_table_in_s3(
    lake: Lake, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server(tmp_path / "s3.log").start()
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        catalog = CatalogSettings(
            warehouse=f"s3://{server.make_bucket()}/lake",
            properties={"uri": f"sqlite:///{tmp_path / 'catalog.db'}"},
        )
        check_the_command(api, TableSettings(topic="flights", catalog=catalog), joins=True)
    finally:
        server.stop()


def check_the_command(api: ApiServer, settings: TableSettings, *, joins: bool) -> None:
    """It joins files, if there are any to be joined, and expires, and we go on behind it."""
    expected = grow(api, settings, commits=5)
    before, _ = files_and_snapshots(settings)
    done = penstock_maintain(api, settings, jars())
    assert done.returncode == 0, done.stderr[-5000:]
    told = json.loads(done.stdout)
    left, snapshots = files_and_snapshots(settings)
    assert told["files_joined"] - told["files_written"] == before - left
    assert (told["files_joined"] > 1) == joins, told
    assert snapshots == 1
    assert told["snapshots_expired"] >= 4
    goes_on(api, settings, expected)


def penstock_maintain(
    api: ApiServer, settings: TableSettings, jars: list[Path]
) -> subprocess.CompletedProcess[str]:
    catalog = settings.catalog
    arguments = ["pipeline", "table", "--topic", settings.topic, "--maintain", "--native", "--json"]
    arguments += ["--url", api.client.options.urls[0], "--warehouse", catalog.warehouse]
    arguments += ["--master", "local[2]", "--snapshot-age-hours", "0"]
    for key, value in catalog.properties.items():
        arguments += ["--catalog-property", f"{key}={value}"]
    added = f"--jars {','.join(map(str, jars))} " if jars else ""
    return subprocess.run(
        [str(python_of(RELEASE)), "-c", "import penstock.cli; penstock.cli.main()", *arguments],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{added}pyspark-shell"},
        cwd="/", capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def grow(api: ApiServer, settings: TableSettings, *, commits: int) -> dict[object, list[str]]:
    """Write to the topic and follow it so often. Returns: by row's identity key and value."""
    expected: dict[object, list[str]] = {}
    for number in range(commits):
        write(api, number, expected, settings.mode)
        run_table_once(api.client, LocalEngine(1), settings)
    return expected


def goes_on(api: ApiServer, settings: TableSettings, expected: dict[object, list[str]]) -> None:
    """What is written next is all that the next run adds."""
    write(api, len(expected), expected, settings.mode)
    assert run_table_once(api.client, LocalEngine(1), settings).commits == 1
    with open_catalog(settings.catalog) as catalog:
        rows = catalog.load_table(settings.identifier).scan().to_arrow().to_pylist()
    found = sorted([row["key"].decode(), row["value"].decode()] for row in rows)
    assert found == sorted(expected.values())


def files_and_snapshots(settings: TableSettings) -> tuple[int, int]:
    """How many a table has."""
    with open_catalog(settings.catalog) as catalog:
        table = catalog.load_table(settings.identifier)
        return len(list(table.scan().plan_files())), len(table.snapshots())


def write(api: ApiServer, number: int, expected: dict[object, list[str]], mode: str) -> None:
    for partition in range(2):
        records = []
        for key in range(20):
            text, value = f"{partition}-{key}", f"{number}"
            records.append(new_record(text.encode(), value.encode()))
            place = text if mode == "upsert" else (number, text)
            expected[place] = [text, value]
        produce(api, "flights", partition, records)


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
