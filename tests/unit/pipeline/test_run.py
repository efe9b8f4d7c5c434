"""`penstock pipeline run` as a process beside a server: tables appear, a signal ends it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.cli.commands.pipeline_run import shown_counts
from penstock.cli.main import root
from penstock.config.sources import load_settings
from support.api_server import ApiServer, serve_in_thread
from support.ports import free_port
from support.topics import Topics

REPOSITORY = Path(__file__).resolve().parents[3]
END_S = 180
RUN = ("pipeline", "run")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data") as found:
        yield found


def start(api: ApiServer, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {key: value for key, value in os.environ.items() if "PENSTOCK_" not in key}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", "run", "--json", "--engine", "local",
         "--url", str(api.server.http_address), "--warehouse", str(folder / "warehouse"),
         *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip


def outcomes(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def end(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    try:
        _, errors = process.communicate(timeout=END_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return errors


@pytest.mark.slow
def test_the_scheduler_loads_nothing_of_what_jobs_run_on() -> None:
    """Its child process runs the jobs: these libraries would cost this one memory and CPU."""
    program = (
        "import sys, penstock.cli.commands.pipeline_run, penstock.pipeline.running; "
        "heavy = {'numba', 'numpy', 'pyarrow', 'pyiceberg', 'pyspark'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def rows_in(warehouse: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in warehouse.rglob("*.parquet"))


@pytest.mark.slow
def test_topics_with_a_table_get_one_and_a_signal_ends_it_well(
    api: ApiServer, tmp_path: Path
) -> None:
    topics = Topics(str(api.server.kafka_address), idempotent=False)
    name = topics.make(2, penstock_table="iceberg")
    topics.make(1)
    topics.write(name, [b"%d" % n for n in range(500)])
    port = free_port()
    process = start(
        api, tmp_path, "--table-interval", "0.2", "--http", f"127.0.0.1:{port}"
    )  # fmt: skip
    try:
        seen = []
        for outcome in outcomes(process):
            seen.append(outcome)
            assert not outcome["error"], outcome
            if outcome["summary"].get("rows"):
                break
        assert {one["job"] for one in seen} <= {
            "compaction", f"table of {name}", f"maintenance of the table of {name}",
        }  # fmt: skip
        assert rows_in(tmp_path / "warehouse") == 500
        # What comes later is followed, too.
        topics.write(name, [b"more"] * 7, partition=1)
        for outcome in outcomes(process):
            if outcome["summary"].get("rows"):
                assert outcome["summary"]["rows"] == 7
                break
        assert rows_in(tmp_path / "warehouse") == 507
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        assert f'penstock_pipeline_job_runs_total{{job="table of {name}"}}' in text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status") as answer:
            assert json.load(answer)["jobs"][f"table of {name}"]["runs"] >= 2
        errors = end(process)
    finally:
        process.kill()
        process.communicate()
    assert "Traceback" not in errors
    # The journal has it: whoever asks a server sees it.
    assert [row.table for row in api.client.tables()] == [f"penstock.{name.replace('-', '_')}"]


@pytest.mark.slow
def test_once_runs_each_job_once_and_tells_a_failure_by_its_status(
    api: ApiServer, tmp_path: Path
) -> None:
    topics = Topics(str(api.server.kafka_address), idempotent=False)
    name = topics.make(1, penstock_table="iceberg", penstock_table_partition="nonsense(value)")
    topics.write(name, [b"1"])
    process = start(api, tmp_path, "--once")
    seen = list(outcomes(process))
    process.communicate(timeout=END_S)
    assert process.returncode == 1
    failed = [one for one in seen if one["error"]]
    assert [one["job"] for one in failed] == [f"table of {name}"]
    assert any(one["job"] == "compaction" and not one["error"] for one in seen)


def test_a_servers_file_may_hold_the_settings_of_the_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        'data = "d"\n[pipeline]\nurl = ["127.0.0.1:1"]\ntable-interval = 5\n'
        'catalog-property = {type = "rest", uri = "http://127.0.0.1:2"}\n'
    )
    settings = load_settings(
        file=file, environment={"PENSTOCK_PIPELINE_TABLE_INTERVAL": "3"}, command_line={}
    )
    assert settings.data == "d"


def test_settings_come_from_the_file_the_environment_and_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        'objects = "memory://"\n[pipeline]\nurl = ["127.0.0.1:1"]\ntable-interval = 0\n'
        'compaction-interval = 3\ncatalog-property = {type = "rest"}\nengine = "local"\n'
    )
    # Nothing is to be done, so that it ends without a server.
    arguments = [*RUN, "--config", str(file), "--once"]  # the file says engine = "local"
    monkeypatch.setenv("PENSTOCK_PIPELINE_COMPACTION_INTERVAL", "0")
    assert CliRunner().invoke(root, arguments).exit_code == 0
    monkeypatch.setenv("PENSTOCK_PIPELINE_COMPACTION_INTERVAL", "nonsense")
    assert "nonsense" in CliRunner().invoke(root, arguments).output
    monkeypatch.delenv("PENSTOCK_PIPELINE_COMPACTION_INTERVAL")
    done = CliRunner().invoke(root, [*arguments, "--table-interval", "x"])
    assert "'x' is not a valid float" in done.output


def test_each_option_has_a_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = " ".join(CliRunner().invoke(root, [*RUN, "--help"]).output.split())
    options = re.findall(r" --([a-z-]+)", shown.split("Options:")[1])
    for option in {*options} - {"help"}:
        assert f"env var: PENSTOCK_PIPELINE_{option.upper().replace('-', '_')}" in shown
    monkeypatch.setenv("PENSTOCK_PIPELINE_CATALOG_PROPERTY", "token=abc")
    done = CliRunner().invoke(root, RUN)
    assert "PYICEBERG_CATALOG__PENSTOCK__TOKEN" in str(done.exception)


def test_a_misspelt_setting_of_the_pipeline_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[pipeline]\ntable-intervall = 5\n")
    done = CliRunner().invoke(root, [*RUN, "--config", str(file)])
    assert "pipeline.table-intervall" in str(done.exception)


def test_a_secret_in_a_catalogs_property_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(root, [*RUN, "--catalog-property", "token=abc"])
    assert "PYICEBERG_CATALOG__PENSTOCK__TOKEN" in str(done.exception)
    assert "abc" not in str(done.exception)


def test_a_run_that_did_nothing_has_no_line() -> None:
    assert shown_counts({"items": 0, "seconds": 1.0}) == ""
    assert shown_counts({"rows": 12345, "lost": [1]}) == "12,345 rows, 1 lost range"
