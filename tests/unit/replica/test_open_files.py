"""A process whose files are used up: SQLite can't open one more, which is no missing file and no
damaged one."""

import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
import os
import resource
import sys
from pathlib import Path

from penstock.state.apply.machine import LogMachine
from penstock.state.read.queries import Queries
from penstock.model.errors import NotFoundError, RetryableError
from penstock.replica.replica import Replica
from penstock.replica.snapshot import read_snapshot_info, verify_snapshot

folder = Path(sys.argv[1])


def open_replica(name):
    return Replica.open(folder / name, LogMachine(), fsync=False)


replica = open_replica("database")
replica.snapshot(folder / "snapshot")
calls = {
    "query": lambda: Queries(folder / "database").close(),
    "create": lambda: open_replica("another").close(),
    "checkpoint": replica.checkpoint,
    "snapshot": lambda: replica.snapshot(folder / "second"),
    "verify": lambda: verify_snapshot(folder / "snapshot"),
    "info": lambda: read_snapshot_info(folder / "snapshot"),
}
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
for spare in range(4):
    held = []
    while True:
        try:
            held.append(os.dup(0))
        except OSError:
            break
    for descriptor in held[:spare]:
        os.close(descriptor)
    for name, call in calls.items():
        if name == "create":
            (folder / "another").unlink(missing_ok=True)
        try:
            call()
        except RetryableError as error:
            print(spare, name, "ulimit -n" in str(error) or "too many open files" in str(error))
        else:
            print(spare, name, "done")
    for descriptor in held[spare:]:
        os.close(descriptor)
for call in calls.values():
    call()
try:
    Queries(folder / "nothing")
except NotFoundError:
    print("missing")
"""


def test_too_many_open_files_are_retriable_and_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "missing"
    told = [line.split() for line in lines]
    assert {outcome for _, _, outcome in told} <= {"True", "done"}, lines
    # Without any file that could be opened nothing but what needs none is done.
    assert {name for spare, name, outcome in told if spare == "0" and outcome == "True"} >= {
        "query",
        "create",
        "snapshot",
        "verify",
        "info",
    }, lines
