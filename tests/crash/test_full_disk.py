"""A server process whose disk is full refuses retriably, and goes on once there is space.

The data directory is a small file system of memory in a mount namespace of the server's own, so
that nothing else meets its end. Skipped where such a namespace may not be made.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.server import ServerProcess
from support.waiting import eventually

MIB = 1 << 20
DISK_BYTES = 48 * MIB
SMALL = {"WAL_BYTES_MAX": "16MiB", "WAL_FILE_BYTES": "4MiB", "SEGMENT_BYTES": "1MiB"}
INTO_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")

FULL_LOOKS = 10
FULL_LOOK_S = 0.1


def may_mount() -> bool:
    """Whether this user may mount a file system in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        [*INTO_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    return tried.returncode == 0


def interpreter_on_small_disk(folder: Path, data: Path) -> Path:
    """A script in place of Python, that mounts the disk first."""
    script = folder / "python-on-small-disk"
    mount = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs {shlex.quote(str(data))}"
    script.write_text(
        "#!/bin/sh\n"
        f"exec {' '.join(INTO_NAMESPACE)} sh -c "
        f"""'{mount} && exec "$@"' sh {shlex.quote(sys.executable)} "$@"\n"""
    )
    script.chmod(0o700)
    return script


def fill(path: Path) -> None:
    """Take all the space there is, also what a file gives back that the server couldn't finish."""
    piece = bytes(64 << 10)
    quiet = 0
    with path.open("wb", buffering=0) as file:
        while quiet < FULL_LOOKS:
            try:
                while file.write(piece) == len(piece):
                    quiet = 0
            except OSError:
                pass
            quiet += 1
            time.sleep(FULL_LOOK_S)


def test_a_full_disk_holds_producers_up_and_loses_nothing(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("no file system may be mounted in a namespace here")
    data = tmp_path / "data"
    data.mkdir()
    python = str(interpreter_on_small_disk(tmp_path, data))
    server = ServerProcess(data, tmp_path / "server.log", SMALL, python=python)
    server.start()
    assert server.process is not None
    try:
        seen_from_here = Path(f"/proc/{server.process.pid}/root") / data.relative_to("/")
        stored = produce_through_a_full_disk(server, seen_from_here / "filler")
        assert server.running(), server.tail()
        assert consume(server.bootstrap, len(stored)) == stored
        assert server.stop() == 0, server.tail()
    finally:
        if server.running():
            server.kill()


def produce_through_a_full_disk(server: ServerProcess, filler: Path) -> list[bytes]:
    """What was acknowledged, in order of offsets: all of it, in the end."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "delivery.timeout.ms": 300_000,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
        }
    )
    acknowledged: dict[int, bytes] = {}
    errors: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            acknowledged[message.offset()] = message.value()  # type: ignore[attr-defined]

    def send(first: int, count: int) -> None:
        for number in range(first, first + count):
            value = b"%d " % number + os.urandom(1000)
            producer.produce("t", value, partition=0, on_delivery=delivered)
            producer.poll(0)

    send(0, 500)
    assert producer.flush(120) == 0
    assert len(acknowledged) == 500
    fill(filler)
    sent = 500
    # What fits into files that are there already is taken; then it is held up.
    while producer.flush(2) == 0:
        assert sent < 30_000, "30 MB were taken by a full disk with a WAL of 16 MiB"
        send(sent, 500)
        sent += 500
    # It is not lost and not refused for good: it waits, as the client tries again.
    assert len(acknowledged) < sent
    filler.unlink()
    eventually(lambda: producer.flush(1), lambda left: left == 0, timeout_seconds=120)
    send(sent, 100)
    sent += 100
    assert producer.flush(120) == 0
    assert not errors, errors
    assert sorted(acknowledged) == list(range(sent))
    stored = [acknowledged[offset] for offset in range(sent)]
    assert [int(value.partition(b" ")[0]) for value in stored] == list(range(sent))
    return stored


def consume(bootstrap: str, count: int) -> list[bytes]:
    """The values of partition 0, from its start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        found: list[bytes] = []

        def more() -> int:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                assert message.offset() == len(found)
                found.append(message.value())
            return len(found)

        eventually(more, lambda total: total >= count, timeout_seconds=120)
        return found
    finally:
        consumer.close()
