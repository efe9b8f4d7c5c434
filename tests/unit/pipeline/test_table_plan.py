"""What `penstock pipeline plan` says of tables: what a run would read, and why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from penstock.model.errors import ConflictError, NotFoundError
from penstock.pipeline.api_messages import Range, TableProgress
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.job_runs import run_job
from penstock.pipeline.jobs import Intervals, JobSettings, find_jobs
from penstock.pipeline.table_plan import plan_tables
from penstock.pipeline.tables import job
from penstock.pipeline.tables.settings import CatalogSettings
from support.api_server import ApiServer, serve_in_thread

ENABLED = {"penstock.table": "iceberg"}
SCHEMAS = "http://schemas.test:8081"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data") as found:
        yield found


def run_jobs(api: ApiServer, folder: Path) -> None:
    """What `penstock pipeline run` would run now."""
    catalog = CatalogSettings(warehouse=str(folder / "warehouse"))
    intervals = Intervals(compaction_s=0, maintenance_s=0)
    for found, _ in find_jobs(api.client.topics().topics, intervals):
        run_job(found, api.client, LocalEngine(1), JobSettings(catalog=catalog), Never())


class Never:
    def is_set(self) -> bool:
        return False


@pytest.mark.slow
def test_it_says_what_the_next_run_reads(api: ApiServer, tmp_path: Path) -> None:
    topic_id = api.create("a.b", 2, ENABLED)
    api.create("plain")
    api.produce("plain", 0, count=9)
    (planned,) = plan_tables(api.client)
    assert (planned.topic, planned.table, planned.mode) == ("a.b", "penstock.a_b", "append")
    assert (planned.ranges, planned.reason) == ([], "no table and no records yet")
    api.produce("a.b", 1, count=5)
    (planned,) = plan_tables(api.client)
    assert planned.ranges == [Range(topic_id, 1, 0, 5)]
    assert planned.reason == "no table yet"
    run_jobs(api, tmp_path)
    (planned,) = plan_tables(api.client)
    assert (planned.ranges, planned.records, planned.reason) == ([], 0, "up to date")
    api.produce("a.b", 0, count=2)
    api.produce("a.b", 1, count=3)
    (planned,) = plan_tables(api.client, ["a.b"])
    assert planned.ranges == [Range(topic_id, 0, 0, 2), Range(topic_id, 1, 5, 8)]
    assert (planned.records, planned.reason) == (5, "5 records behind")
    assert planned.size_bytes > 0
    run_jobs(api, tmp_path)
    assert plan_tables(api.client)[0].reason == "up to date"


@pytest.mark.slow
def test_it_shows_what_the_tables_job_knows(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    schema = {"penstock.table.schema": "text", "penstock.table.schema.text": text}
    api.create("t", 1, ENABLED | schema)
    api.create("t.dlq", 1)
    real, first = job.commit_change, [True]

    def second_at_first(*arguments: Any) -> int:
        if first:
            first.clear()
            raise ConflictError("commit", "penstock.t", "another one was first")
        return real(*arguments)

    monkeypatch.setattr(job, "commit_change", second_at_first)
    for value in (b'{"a": 1}', b"bad"):
        api.produce("t", 0, count=2, value=value)
        run_jobs(api, tmp_path)
    (planned,) = plan_tables(api.client)
    state = planned.state
    assert (state.rows, state.files, state.snapshots) == (2, 1, 2)
    assert (state.bad_records, state.bad_share, state.conflicts) == (2, 0.5, 1)
    assert planned.seconds == 0, "it lacks nothing"
    api.produce("t", 0, count=1)
    assert plan_tables(api.client)[0].seconds > 0
    url = f"--url={api.client.options.urls[0]}"
    shown = CliRunner().invoke(root, ["pipeline", "plan", url]).stdout.splitlines()[-1]
    assert "2 (50.00%)" in shown
    assert shown.endswith("1 record behind")


def test_it_says_what_is_lost_and_what_has_stopped(api: ApiServer) -> None:
    topic_id = api.create("t", 1, ENABLED)
    for _ in range(2):
        api.produce("t", 0, count=10)
    state = json.dumps({"status": "stopped", "error": "columns differ", "lost": []})
    api.client.save_table(
        TableProgress(topic_id=topic_id, table="penstock.t", offsets=[(0, 4)], state=state)
    )
    api.trim("t", 0, 10)
    (planned,) = plan_tables(api.client)
    assert planned.lost == [Range(topic_id, 0, 4, 10)]
    assert planned.ranges == [Range(topic_id, 0, 10, 20)]
    assert planned.reason == (
        "stopped, would be tried again: columns differ; 10 records behind; "
        "6 records are gone before they were read"
    )


def test_a_table_that_cannot_be_says_why(api: ApiServer) -> None:
    api.create("t", 1, ENABLED | {"penstock.table.schema": "registry"})
    (planned,) = plan_tables(api.client)
    assert "needs the registry's URL" in planned.reason
    (planned,) = plan_tables(api.client, registry=SCHEMAS)
    assert planned.table == "penstock.t"


def test_a_topic_that_is_not_there_is_told(api: ApiServer) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        plan_tables(api.client, ["nothing"])


def test_the_command_shows_tables_beside_compaction(api: ApiServer) -> None:
    api.create("t", 1, ENABLED)
    api.produce("t", 0, count=5)
    url = f"--url={api.client.options.urls[0]}"
    shown = CliRunner().invoke(root, ["pipeline", "plan", url])
    assert shown.exit_code == 0, shown.output
    header, row = shown.stdout.splitlines()[-2:]
    names = "TABLE TOPIC PARTITIONS RECORDS SECONDS BYTES ROWS FILES SNAPSHOTS BAD CONFLICTS WHY"
    assert header.split() == names.split()
    assert row.split()[:4] == ["penstock.t", "t", "1", "5"]
    assert row.endswith("no table yet")
    told: dict[str, Any] = json.loads(
        CliRunner().invoke(root, ["pipeline", "plan", url, "--json"]).stdout
    )
    (table,) = told["tables"]
    assert table.pop("bytes") > 0
    assert table == {
        "topic": "t",
        "table": "penstock.t",
        "mode": "append",
        "reason": "no table yet",
        "records": 5,
        "seconds": 0.0,
        "rows": None,
        "files": None,
        "snapshots": None,
        "bad_records": 0,
        "bad_share": 0.0,
        "conflicts": 0,
        "ranges": [{"partition": 0, "start": 0, "end": 5}],
        "lost": [],
    }
