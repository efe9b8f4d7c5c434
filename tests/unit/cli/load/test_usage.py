"""What a watch measures of another process, and what it says where it can't."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from penstock.cli.load import usage
from penstock.cli.load.usage import Watch
from penstock.model.errors import NotFoundError
from support.waiting import eventually

CHILD = """
import sys, time
x = bytearray(40_000_000)
s = time.process_time()
while time.process_time() - s < 0.5: pass
print("done", flush=True)
sys.stdin.read()
"""
BUSY = f"""
import subprocess, sys
sum(range(3_000_000))  # before the window: not counted
print("ready", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", {CHILD!r}])
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.slow
def test_cpu_and_memory_of_a_child_count_and_what_was_before_does_not(
    busy: subprocess.Popen[str],
) -> None:
    before = psutil.Process(busy.pid).cpu_times()
    with Watch(busy.pid) as watch:
        assert busy.stdin is not None
        assert busy.stdout is not None
        busy.stdin.write("go\n")
        busy.stdin.flush()
        assert busy.stdout.readline() == "done\n"
    found = watch.usage
    assert found.server_cpu_s is not None
    assert found.server_rss_start_mb is not None
    assert found.server_rss_peak_mb is not None
    # The child's start costs CPU, too; what the parent used before is more than the allowance.
    after = psutil.Process(busy.pid).cpu_times()
    own = after.user + after.system - before.user - before.system
    child = psutil.Process(busy.pid).children()[0].cpu_times()
    assert found.server_cpu_s == pytest.approx(child.user + child.system + own, abs=0.1)
    assert found.server_cpu_s >= 0.5
    assert found.server_rss_peak_mb >= found.server_rss_start_mb + 40


def test_the_clients_own_cpu_is_measured_without_a_server() -> None:
    with Watch() as watch:
        start_s = time.process_time()
        while time.process_time() - start_s < 0.1:
            pass
    assert watch.usage.client_cpu_s >= 0.09
    assert watch.usage.server_cpu_s is None


def test_without_psutil_only_what_the_system_says_itself_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "_psutil", lambda: None)
    with Watch() as watch:
        pass
    assert watch.usage.noise_percent is None
    with pytest.raises(NotFoundError, match=r'pip install "penstock\[bench\]"'):
        Watch(os.getpid())


@pytest.mark.slow
def test_a_process_that_ends_meanwhile_keeps_what_it_used() -> None:
    code = "import time\ns = time.process_time()\nwhile time.process_time() - s < 1: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process, Watch(process.pid) as watch:
        eventually(process.poll, lambda status: status == 0)
    assert watch.usage.server_cpu_s is not None
    # Of the last 0.2 s before its end a sample may be missing.
    assert watch.usage.server_cpu_s >= 0.5


def test_a_pid_that_no_process_has_is_refused() -> None:
    with pytest.raises(NotFoundError, match="--server-pid"):
        Watch(2**22 + 1)
