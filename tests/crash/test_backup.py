"""A backup of a real server under load, restored, holds all that was acknowledged before it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.model.ids import partition_key
from support.log_contents import contents, verify_path
from support.server import REPOSITORY, ServerProcess, run_penstock, running_server

PARTITIONS = 4
KILLS_MAX = 20
TOPIC = "loaded"
# Small enough that WAL files are used again and objects condemned while a backup is made.
SMALL = {
    "WAL_BYTES_MAX": "32MiB",
    "WAL_FILE_BYTES": "2MiB",
    "SEGMENT_BYTES": "1MiB",
    "SEGMENT_AGE_MS": "200",
    "RETENTION_CHECK_MS": "200",
    "DELETE_GRACE_MS": "100",
    "SNAPSHOT_ENTRIES": "50",
}


class Load(threading.Thread):
    """One idempotent producer; notes each acknowledged (partition, offset, value)."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="load", daemon=True)
        self.ending = threading.Event()
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.failed: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2}
        )

    def run(self) -> None:
        number = 0
        while not self.ending.is_set():
            value = b"%d " % number + bytes(2000)
            self._producer.produce(
                TOPIC, value, partition=number % PARTITIONS, on_delivery=self._note
            )
            number += 1
            self._producer.poll(0)
            if number % 200 == 0:
                self._producer.flush(120)
        self._producer.flush(120)
        # It would go on looking for a server that is stopped, from ports that the next may want.
        del self._producer

    def _note(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        value = message.value()  # type: ignore[attr-defined]
        place = (message.partition(), message.offset())  # type: ignore[attr-defined]
        self.acknowledged.append((*place, value))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path, SMALL) as server:
        yield server


def create(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(list(topics)).values():
        future.result(60)


def read_all(bootstrap: str, ends: dict[int, int]) -> dict[tuple[int, int], bytes]:
    """Every record of the topic up to these ends, by (partition, offset)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
    found: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + 120
    while len(found) < sum(ends.values()):
        assert time.monotonic() < deadline, f"{len(found)} of {sum(ends.values())} records"
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None, message.error()
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def test_a_backup_under_load_restores_to_all_that_was_acknowledged(
    server: ServerProcess, tmp_path: Path
) -> None:
    # The short-lived topic's objects are condemned and deleted all the time.
    create(
        server.bootstrap,
        NewTopic(TOPIC, PARTITIONS),
        NewTopic("brief", 1, config={"retention.ms": "1"}),
    )
    load = Load(server.bootstrap)
    load.start()
    brief = Producer({"bootstrap.servers": server.bootstrap})
    try:
        for number in range(3):
            while len(load.acknowledged) < 1500 * (number + 1):
                brief.produce("brief", bytes(5000))
                brief.flush(120)
                assert load.is_alive()
            before = list(load.acknowledged)
            made = run_penstock(
                "backup", "--to", str(tmp_path / f"backup-{number}"),
                "--http", server.http, "--json",
            )  # fmt: skip
            assert made.returncode == 0, made.stderr
            assert json.loads(made.stdout)["topics"] == 2
    finally:
        load.ending.set()
        load.join(300)
    del brief
    assert not load.failed
    assert server.stop() == 0, server.tail()

    restored = tmp_path / "restored"
    done = run_penstock("restore", "--from", str(tmp_path / "backup-2"), "--data", str(restored))
    assert done.returncode == 0, done.stderr
    verified = run_penstock("verify", "--data", str(restored), "--json")
    assert verified.returncode == 0, verified.stdout
    assert json.loads(verified.stdout)["findings"] == []
    # Byte for byte; the topic only grew since.
    source, copy = contents(server.data), contents(restored)
    assert copy["topics"] == source["topics"]
    (loaded,) = (row[0] for row in copy["topics"] if row[2] == TOPIC)
    keys = [partition_key(loaded, number) for number in range(PARTITIONS)]
    assert all(source["bytes"][key].startswith(copy["bytes"][key]) for key in keys)

    again = ServerProcess(restored, tmp_path / "again.log", SMALL)
    again.start()
    try:
        ends: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        consumer = Consumer({"bootstrap.servers": again.bootstrap, "group.id": "ends"})
        for partition in ends:
            low, ends[partition] = consumer.get_watermark_offsets(
                TopicPartition(TOPIC, partition), timeout=60
            )
            assert low == 0
        consumer.close()
        found = read_all(again.bootstrap, ends)
        for partition, offset, value in before:
            assert found[partition, offset] == value
        # And what was acknowledged while it was made is there at its offset, or not at all.
        for partition, offset, value in load.acknowledged:
            assert found.get((partition, offset), value) == value
        create(again.bootstrap, NewTopic("after", 1))
        assert again.stop() == 0, again.tail()
    finally:
        if again.running():
            again.kill()
    assert not [finding for finding in verify_path(restored).findings if finding.is_damage]


def killed_backup(server: ServerProcess, folder: Path) -> Path:
    """A backup whose server died in the middle; one that was whole before is made again."""
    for number in range(KILLS_MAX):
        target = folder / f"backup-{number}"
        command = ("backup", "--to", str(target), "--http", server.http)
        asking = subprocess.Popen(
            [sys.executable, "-m", "penstock", *command],
            env={"PYTHONPATH": str(REPOSITORY / "src")},
            stderr=subprocess.PIPE,
            text=True,
        )
        while asking.poll() is None and not (target / "incomplete").exists():
            time.sleep(0.001)
        server.kill()
        _, error = asking.communicate(timeout=300)
        if not (target / "manifest.json").exists():
            assert asking.returncode == 1
            assert error.startswith("penstock: back up"), error
            return target
        server.start()
    pytest.fail(f"{KILLS_MAX} backups were whole before the kill")


def test_a_killed_backup_is_refused_and_a_damaged_directory_told_by_the_exit_status(
    server: ServerProcess, tmp_path: Path
) -> None:
    create(server.bootstrap, NewTopic(TOPIC, PARTITIONS))
    load = Load(server.bootstrap)
    load.start()
    while len(load.acknowledged) < 3000:
        assert load.is_alive()
    load.ending.set()
    load.join(300)
    target = killed_backup(server, tmp_path)
    restored = tmp_path / "restored"
    refused = run_penstock("restore", "--from", str(target), "--data", str(restored))
    assert refused.returncode == 1
    assert "the backup has no manifest" in refused.stderr

    # Without a server, onto the cut one.
    made = run_penstock("backup", "--to", target.as_uri(), "--data", str(server.data))
    assert made.returncode == 0, made.stderr
    done = run_penstock("restore", "--from", target.as_uri(), "--data", str(restored))
    assert done.returncode == 0, done.stderr
    assert contents(restored) == contents(server.data)

    segment = next((restored / "objects" / "segments").rglob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    verified = run_penstock("verify", "--data", str(restored))
    assert verified.returncode == 1
    assert segment.name in verified.stdout
    assert "DAMAGED" in verified.stdout
    nothing = run_penstock("verify", "--data", str(tmp_path / "nothing"))
    assert nothing.returncode == 2
