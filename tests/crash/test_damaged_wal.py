"""A WAL that rots under a real server, or while it is down: the next start serves all the rest."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from crash.test_damage import COUNT, http, value
from penstock.cli.main import root
from penstock.replica.journal_files import JournalFiles
from penstock.system.files import PosixDevice
from penstock.wal import entries_after
from support.raw_fetch import fetch_from
from support.server import ServerProcess, running_server

STILL = {
    "SEGMENT_AGE_MS": "600000",
    "TAIL_CACHE_BYTES": "0",
    "DEFAULT_PARTITIONS": "2",
    "SCRUB_BYTES_PER_S": "0",
}
BAD = COUNT - 30
CLIENT_S = 60.0


def produce(bootstrap: str) -> None:
    """Ten records of each partition at a time, so that they lie in several frames."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "log_level": 0})
    for number in range(COUNT):
        for partition in range(2):
            producer.produce("t", value(number), partition=partition)
        if number % 10 == 9:
            assert producer.flush(30) == 0


def flip(data: Path) -> Path:
    """A bit of one record of partition 0, in place; the WAL file that it is in."""
    for path in (data / "wal").glob("*.wal"):
        # Partition 0's is written first of the two equal ones.
        at = path.read_bytes().find(value(BAD))
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 1000)
                byte = file.read(1)[0]
                file.seek(at + 1000)
                file.write(bytes([byte ^ 8]))
            return path
    raise AssertionError("no WAL file holds the record")


def wait_for_journal_files(data: Path) -> None:
    """Until they hold all entries, within 100 ms or so."""
    device = PosixDevice(data)
    until_s = time.monotonic() + CLIENT_S
    while list(entries_after(device, JournalFiles.open(device).last, sync=False)):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def damage_of(server: ServerProcess) -> dict[str, object]:
    until_s = time.monotonic() + CLIENT_S
    while time.monotonic() < until_s:
        found: dict[str, object] = json.loads(http(server, "/v1/status")[1])["damage"]
        if found["known"]:
            return found
        time.sleep(0.05)
    raise AssertionError("the status names no damage")


def read_all(bootstrap: str, partition: int) -> list[bytes]:
    """With a real client, up to the log's end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    place = TopicPartition("t", partition, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=10)
    consumer.assign([place])
    found: list[bytes] = []
    last = -1
    until_s = time.monotonic() + CLIENT_S
    try:
        while last < end - 1 and time.monotonic() < until_s:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
                last = message.offset()
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("when", ["while it is down", "before it stops"])
def test_a_start_on_a_damaged_wal_frame_serves_all_else(tmp_path: Path, when: str) -> None:
    with running_server(tmp_path, STILL) as server:
        produce(server.bootstrap)
        wait_for_journal_files(server.data)
        if when == "before it stops":
            path = flip(server.data)
            assert server.stop() == 0
        else:
            server.kill()
            path = flip(server.data)
        server.log.write_text("")
        server.start()
        found = damage_of(server)
        (frame,) = found["wal_frames"]  # type: ignore[misc]
        assert frame["file"] == f"wal/{path.name}"
        (row,) = found["ranges"]  # type: ignore[misc]
        partition = int(row["partition"].removeprefix("t-"))
        assert row["start"] == BAD < row["end"]
        lines = [line for line in server.log.read_text().splitlines() if f"wal/{path.name}" in line]
        assert any(
            f"{row['partition']} offsets " in line and f"bytes {frame['start']} to" in line
            for line in lines
        ), lines
        assert fetch_from(server.bootstrap, "t", partition, BAD).error == "CORRUPT_MESSAGE"
        metrics = http(server, "/metrics")[1]
        assert 'penstock_damage_total{kind="damaged_wal"} ' in metrics
        assert "penstock_damaged_wal_frames 1" in metrics
        assert http(server, "/readyz")[0] == 200
        # Before it, behind it, the other partition, and what is new.
        assert fetch_from(server.bootstrap, "t", partition, BAD - 1).values[0] == value(BAD - 1)
        after = row["end"]
        assert after < COUNT
        assert fetch_from(server.bootstrap, "t", partition, after).values[0] == value(after)
        assert read_all(server.bootstrap, 1 - partition) == [value(n) for n in range(COUNT)]
        producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
        producer.produce("t", b"new", partition=partition)
        assert producer.flush(30) == 0
        # It may be started again and again, and is given up once.
        assert server.stop() == 0
        server.start()
        damage_of(server)
        verified = CliRunner().invoke(root, ["repair", "--http", f"http://{server.http}", "--json"])
        (run,) = json.loads(verified.output)["runs"]
        assert (run["state"], run["lost"]) == ("damaged", [[BAD, BAD + 1]])
        given_up = CliRunner().invoke(
            root, ["repair", "--http", f"http://{server.http}", "--accept-loss"]
        )
        assert given_up.exit_code == 0, given_up.output
        expected = [value(n) for n in range(COUNT) if n != BAD]
        assert read_all(server.bootstrap, partition) == [*expected, b"new"]
        assert server.stop() == 0
        server.start()
        assert read_all(server.bootstrap, partition) == [*expected, b"new"]
        assert not json.loads(http(server, "/v1/status")[1])["damage"]["wal_frames"]
