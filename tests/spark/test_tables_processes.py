"""Tables whose drivers are killed, run twice at once, or write to a store that fails; the command.

Real processes and a real S3 server, no JVM: here because of the time that they take.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import RetryableError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.catalog import open_catalog
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from support.api_server import ApiServer, serve_in_thread
from support.rest_catalog import serve_rest_catalog
from support.s3 import S3Server, environment
from support.s3_proxy import Rule, S3ProxyProcess
from support.server import REPOSITORY
from support.tables import (
    Lake,
    follow,
    new_record,
    produce,
    produce_values,
    records_of,
    start_driver,
)

BEYOND_MS = 2**62
_names = itertools.count(1)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / "log").start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


@pytest.fixture
def topic(api: ApiServer) -> str:
    name = f"topic{next(_names)}"
    api.create(name, 2)
    api.create(f"{name}.dlq", 1)
    return name


@pytest.mark.parametrize("step", ["after_files", "before_commit", "after_commit", "after_letters"])
def test_killed_at_any_step_each_record_is_there_once(
    api: ApiServer, lake: Lake, topic: str, step: str
) -> None:
    """Real processes, really killed, with a bad record among the others."""
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    bad = new_record(b"bad", b"letter", timestamp_ms=BEYOND_MS)
    produce(api, topic, 0, [new_record(None, b"b"), bad, new_record(None, b"c")])
    driver = start_driver(api.client.options, lake, topic, step)
    assert driver.wait(600) == -9
    follow(api, lake, topic)
    follow(api, lake, topic)
    assert lake.rows(topic, "value") == [(b"a",), (b"b",), (b"c",)]
    assert [record.key for record in records_of(api, f"{topic}.dlq")] == [b"bad"]
    (progress,) = api.client.tables(api.topics[topic][0])
    assert progress.offsets == [(0, 4)]


def test_two_drivers_at_once(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"%d" % n for n in range(50)])
    bad = [new_record(b"%d" % n, b"", timestamp_ms=BEYOND_MS) for n in range(5)]
    produce(api, topic, 1, bad)
    drivers = [start_driver(api.client.options, lake, topic) for _ in range(2)]
    for driver in drivers:
        # One may find the catalog locked and end; the next run goes on.
        assert driver.wait(600) in (0, 1)
    follow(api, lake, topic)
    assert lake.rows(topic, "partition", "offset") == [(0, n) for n in range(50)]
    assert sorted(record.key for record in records_of(api, f"{topic}.dlq")) == [
        b"%d" % n for n in range(5)
    ]


def test_a_store_that_fails_doubles_and_loses_nothing(
    api: ApiServer, topic: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Requests are refused, cut off, and carried out without an answer, of data and metadata."""
    bucket = s3.make_bucket()
    with S3ProxyProcess(upstream=s3.endpoint, log=tmp_path / "proxy.log") as proxy:
        for name, value in environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        catalog = CatalogSettings(
            warehouse=f"s3://{bucket}/lake", properties={"uri": f"sqlite:///{tmp_path / 'c.db'}"}
        )
        settings = TableSettings(topic=topic, catalog=catalog, mode="upsert", buckets=2)
        failures = 0
        for number in range(4):
            changes = [new_record(b"%d" % key, b"%d" % number) for key in range(number, 10)]
            produce(api, topic, 0, [*changes, new_record(None, b"bad-%d" % number)])
            proxy.set_rules(
                Rule(fault="slow_down", operations=["put", "get", "delete", "head"], percent=10),
                Rule(fault="lost_reply", operations=["put"], percent=15),
                Rule(fault="cut_body", operations=["get"], percent=10),
            )
            try:
                run_table_once(api.client, LocalEngine(2), settings)
            except RetryableError:
                failures += 1
        proxy.set_rules()
        run_table_once(api.client, LocalEngine(2), settings)
        with open_catalog(catalog) as opened:
            rows = opened.load_table(("penstock", topic)).scan().to_arrow()
        found = sorted(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        assert found == [(b"%d" % key, b"%d" % min(key, 3)) for key in range(10)], failures
        letters = [record.value for record in records_of(api, f"{topic}.dlq")]
        assert letters == [b"bad-%d" % number for number in range(4)]


def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", "table", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_from_the_command_line_with_a_rest_catalog(
    api: ApiServer, topic: str, tmp_path: Path
) -> None:
    """Its token comes from the environment; without it nothing is stopped for good."""
    produce_values(api, topic, [b"a", b"b"])
    with serve_rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri()) as rest:
        rest.token = "from-the-environment"
        arguments = [
            *("--topic", topic, "--url", api.client.options.urls[0], "--catalog", "lake"),
            *("--warehouse", str(tmp_path / "warehouse"), "--catalog-property", "type=rest"),
            *("--catalog-property", f"uri={rest.url}"),
        ]
        refused = penstock(*arguments)
        assert refused.returncode == 1
        assert "UnauthorizedError" in refused.stderr
        done = penstock(*arguments, "--json", PYICEBERG_CATALOG__LAKE__TOKEN=rest.token)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["rows"], summary["offsets"]) == (2, {"0": 2})
        upkeep = penstock(*arguments, "--maintain", PYICEBERG_CATALOG__LAKE__TOKEN=rest.token)
        assert "joined 0 files into 0" in upkeep.stdout, upkeep.stderr
        assert rest.catalog.load_table(("penstock", topic)).scan().to_arrow().num_rows == 2
