"""Consumers of groups in processes of their own, a writer for them, and whether they go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SCRIPT = str(Path(__file__).with_name("committing_member.py"))
PROGRESS_SECONDS_MAX = 180.0
Positions = dict[int, int]


class Member:
    """A consumer of a group, in a process of its own, that commits all that it has read."""

    def __init__(self, library: str, group_id: str, bootstrap: str, topic: str) -> None:
        self.library = library
        self.group_id = group_id
        self.committed: Positions = {}
        """By partition, as the client was told."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the process
        """What the client says of itself, shown where its group doesn't go on."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", SCRIPT, library, group_id, bootstrap, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name=library)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """It ended by itself."""
        return self.process.poll() is not None

    def tail(self, lines: int = 60) -> str:
        """The last lines that its client wrote."""
        os.lseek(self._log.fileno(), 0, os.SEEK_SET)
        written = self._log.read().decode(errors="replace").splitlines()
        return "\n".join([f"{self.library} in {self.group_id}:", *written[-lines:]])

    def end(self) -> int:
        """Let it leave its group; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            for partition, position in json.loads(line).items():
                self.committed[int(partition)] = position


class Writer:
    """Writes a record every 50 ms, round the partitions, and knows where the ends are."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Producer

        self.ends: Positions = {}
        self._topic = topic
        self._partitions = partitions
        self._ending = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(0.05):
            self._producer.produce(
                self._topic,
                b"%d" % number,
                partition=number % self._partitions,
                on_delivery=self._note,
            )
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(60) == 0

    def _note(self, error: Any, message: Any) -> None:
        # A batch that was sent again, and is stored, may have no offset.
        if error is None and message.offset() is not None:
            self.ends[message.partition()] = message.offset() + 1

    @property
    def is_alive(self) -> bool:
        """It writes on."""
        return self._thread.is_alive()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(90)


def committed_in(members: list[Member]) -> dict[str, Positions]:
    """By group, the last offset of each partition that one of its members was told of."""
    found: dict[str, Positions] = {}
    for member in members:
        positions = found.setdefault(member.group_id, {})
        for partition, position in list(member.committed.items()):
            positions[partition] = max(position, positions.get(partition, 0))
    return found


def wait_progress(writer: Writer, members: list[Member]) -> float:
    """Until every group has committed what was written before; for how long that took."""
    wanted = dict(writer.ends)
    started = time.monotonic()
    while True:
        late = [
            group_id
            for group_id, positions in committed_in(members).items()
            if any(positions.get(partition, 0) < end for partition, end in wanted.items())
        ]
        if not late:
            return time.monotonic() - started
        assert not [member.library for member in members if member.failed]
        if time.monotonic() - started > PROGRESS_SECONDS_MAX:
            tails = [member.tail() for member in members if member.group_id in late]
            raise AssertionError(f"without progress: {late}\n" + "\n".join(tails))
        time.sleep(0.05)
