"""Commands of the console script that run beside a test, to be written to and interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.client.admin import LATEST
from penstock.cli.client.cluster import Client
from penstock.config.addresses import parse_address
from support import forked
from support.server import REPOSITORY

SECONDS_MAX = 120.0
INTERRUPT_SECONDS_MAX = 60.0


class Command:
    """One process; its input stays open until it is closed here."""

    def __init__(self, *arguments: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        environment["PYTHONPATH"] = str(REPOSITORY / "src")
        (stdin, own_stdin), (own_stdout, stdout), (own_stderr, stderr) = (
            os.pipe() for _ in range(3)
        )
        try:
            self.process = forked.start(
                "penstock",
                arguments,
                environment=environment,
                folder=Path.cwd(),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        finally:
            for theirs in (stdin, stdout, stderr):
                os.close(theirs)
        self.stdin = os.fdopen(own_stdin, "wb")
        self.stdout = os.fdopen(own_stdout, "rb")
        self.stderr = os.fdopen(own_stderr, "rb")

    def write(self, data: bytes) -> None:
        """Hand it some input, and no end."""
        self.stdin.write(data)
        self.stdin.flush()

    def read_line(self) -> bytes:
        """A line of its output; empty at its end."""
        return self.stdout.readline()

    def interrupted(self) -> tuple[int, bytes, str]:
        """Ctrl-C. Its status, output not read so far and errors; its input stays open."""
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(INTERRUPT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # Python doesn't see a signal that comes just before a system call which waits.
            self.process.send_signal(signal.SIGINT)
            status = self.process.wait(SECONDS_MAX)
        return status, self.stdout.read(), self.stderr.read().decode()


@contextlib.contextmanager
def running_command(*arguments: str) -> Iterator[Command]:
    """A started one, which does not outlive the block."""
    command = Command(*arguments)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()
        for stream in (command.stdin, command.stdout, command.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The next offset of each partition of a topic; empty where there is no such topic."""
    with Client(parse_address(bootstrap, setting="bootstrap"), timeout_s=SECONDS_MAX) as client:
        for known in client.metadata(None):
            if known.name == topic:
                found = client.admin.list_offsets(known.leaders, LATEST)
                return {partition.partition: offset for partition, offset in found.items()}
        return {}
