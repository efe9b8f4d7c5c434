"""What `make test` runs: what computes beside what waits, and output that isn't mixed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import run


def stage(name: str, script: str, **options: bool) -> run.Stage:
    return run.Stage(name, (sys.executable, "-c", script), 60, is_counted=True, **options)


def test_what_is_beside_runs_while_others_wait_and_is_shown_whole(
    tmp_path: object, capfd: pytest.CaptureFixture[str]
) -> None:
    there = f"{tmp_path}/there"
    wait = f"import os, time\nwhile not os.path.exists({there!r}): time.sleep(0.01)\n"
    stages = [
        stage("computes", f"print('a'); open({there!r}, 'w'); print('b'); print('2 passed')"),
        stage("waits", wait + "print('1 passed, 1 failed'); raise SystemExit(1)", waits=True),
        stage("last", "print('FAILED tests/x.py'); print('3 passed, 0 failed')"),
    ]
    stages[0] = run.beside(stages[0])
    outcomes = run.run_all(stages)
    assert [outcome.stage.name for outcome in outcomes] == ["computes", "waits", "last"]
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert [outcome.counts for outcome in outcomes] == [
        {"passed": 2},
        {"passed": 1, "failed": 1},
        {"passed": 3, "failed": 0},
    ]
    assert outcomes[2].failures == ["FAILED tests/x.py"]
    shown = capfd.readouterr().out
    assert "== computes\na\nb\n2 passed\n" in shown
    assert "== waits\n1 passed, 1 failed\n" in shown


def test_two_that_wait_run_at_a_time(tmp_path: object) -> None:
    ours, theirs = f"{tmp_path}/a", f"{tmp_path}/b"
    meets = (
        "import os, time\nopen({0!r}, 'w').close()\n"
        "while not os.path.exists({1!r}): time.sleep(0.01)\nprint('1 passed')"
    )
    stages = [
        stage("first", meets.format(ours, theirs), waits=True),
        stage("second", meets.format(theirs, ours), waits=True),
        stage("third", "print('2 passed')", waits=True),
    ]
    outcomes = run.run_all(stages)
    assert [outcome.stage.name for outcome in outcomes] == ["first", "second", "third"]
    assert [outcome.counts["passed"] for outcome in outcomes] == [1, 1, 2]


def test_stages_beside_run_where_no_other_waits() -> None:
    (outcome,) = run.run_all([run.beside(stage("alone", "print('1 passed')"))])
    assert outcome.counts == {"passed": 1}


def test_each_simulation_runs_beside_others() -> None:
    assert [found.name for found in run.STAGES if found.is_beside] == [
        "tests/sim",
        "planted bugs",
        "seeds",
    ]
    assert any(found.waits for found in run.STAGES)


def test_a_stage_beside_that_cannot_be_run_is_no_success() -> None:
    gone = run.Stage("gone", ("/no/such/program",), 60, is_beside=True)
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        run.run_all([gone])


def test_the_time_of_a_tree_has_that_of_orphans(tmp_path: Path) -> None:
    """The command waits until its orphan, which no process of its own waits for, is no more."""
    works = "import time\nwhile time.process_time() < 0.2: pass"
    script = '(exec "$0" -c "$1" & echo $! > pid) ; while kill -0 $(cat pid); do sleep 0.01; done'
    said = tmp_path / "said"
    command = [sys.executable, "-S", str(run.TREE_TIME), str(said)]
    command += ["sh", "-c", f"{script}; exit 3", sys.executable, works]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3, done.stderr
    assert float(said.read_text()) >= 0.2
