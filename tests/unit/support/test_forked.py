"""A forked process is like one that was started: its arguments, environment, streams and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import forked
from support.server import run_penstock
from support.waiting import eventually

SECONDS = 120
SAYS = """
import json, os, signal, sys, time
print(json.dumps({
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "leads a session": os.getsid(0) == os.getpid(),
    "folder": os.getcwd(),
    "input": sys.stdin.read(),
    "descriptors": sorted(set(os.listdir("/dev/fd")) & set("0123456789")),
    "may be interrupted": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}), flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(3600)
sys.exit(7)
"""


@pytest.fixture(params=["forked", "interpreter"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the fork server, and with an interpreter for each process."""
    if request.param == "interpreter":
        monkeypatch.setattr(forked, "FORKS", False)
    elif not forked.FORKS:
        pytest.skip("the fork server needs Linux")


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[forked.Process]:
    """One that runs a module of the folder; it does not outlive the block."""
    (folder / "says.py").write_text(SAYS)
    (folder / "in").write_text("a line\n")
    with (
        (folder / "in").open("rb") as stdin,
        (folder / "out").open("wb") as stdout,
        (folder / "errors").open("wb") as stderr,
    ):
        process = forked.start(
            "says",
            arguments,
            environment={"ONLY": "this", "PYTHONPATH": str(folder)},
            folder=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)


def said(folder: Path) -> dict[str, Any]:
    """Return what the script printed."""
    line: str = eventually((folder / "out").read_text, timeout_seconds=SECONDS)
    found: dict[str, Any] = json.loads(line)
    return found


def test_it_has_what_it_was_given_and_nothing_of_its_parent(tmp_path: Path) -> None:
    with started(tmp_path, "a", "--b=c") as process:
        assert process.wait(SECONDS) == 7, (tmp_path / "errors").read_text()
    found = said(tmp_path)
    # Python sets it for itself where no locale is given.
    found["environment"].pop("LC_CTYPE", None)
    assert found == {
        "arguments": ["a", "--b=c"],
        "environment": {"ONLY": "this", "PYTHONPATH": str(tmp_path)},
        "leads a session": True,
        "folder": str(tmp_path),
        "input": "a line\n",
        # The last one is the listing's own.
        "descriptors": ["0", "1", "2", "3"],
        "may be interrupted": True,
    }


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "wait") as process:
        said(tmp_path)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        status = process.wait(SECONDS)
        # Python ends itself by the signal when nothing catches its KeyboardInterrupt.
        assert status == -number
        assert process.poll() == process.returncode == status
        # Its number may be another's from here on.
        process.send_signal(signal.SIGKILL)


def test_nothing_is_left_of_one_that_has_ended(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        process.wait(SECONDS)
        assert not psutil.pid_exists(process.pid)


def test_one_thread_kills_what_another_waits_for(tmp_path: Path) -> None:
    statuses: list[int] = []
    with started(tmp_path, "wait") as process:
        waiting = threading.Thread(target=lambda: statuses.append(process.wait(SECONDS)))
        waiting.start()
        process.kill()
        assert process.wait(SECONDS) == -signal.SIGKILL
        waiting.join(SECONDS)
    assert statuses == [-signal.SIGKILL]


def test_commands_give_their_status_output_and_errors(tmp_path: Path) -> None:
    done = run_penstock("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("penstock ")
    refused = run_penstock("serve", "--no-such-option")
    assert refused.returncode == 2
    assert "--no-such-option" in refused.stderr
    missing = run_penstock("verify", str(tmp_path / "nothing"))
    assert missing.returncode != 0
    assert missing.stdout == ""


def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run("timeit", ["-n1", "-r1", "import time; time.sleep(3600)"],
                   environment=dict(os.environ), timeout_s=0.1)  # fmt: skip
