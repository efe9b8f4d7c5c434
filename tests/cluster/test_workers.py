"""`penstock serve --workers N` as real processes: whichever dies or stops, nothing that was
acknowledged is lost, doubled or reordered; and each of its data directories ends in one piece.

    PENSTOCK_TEST_ROUNDS=5   how often each worker is killed
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.clients import SILENT
from chaos.short import shared_database_lost, workers_killed_and_stopped
from chaos.world import seed_from_system
from support.own_process import in_own_process
from support.raw_fetch import raw_producer
from support.server import REPOSITORY, run_penstock
from support.waiting import eventually
from support.workers import WorkersHost, workers_host

WORKERS = 3
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "1"))
STAYS = {"SEGMENT_AGE_MS": "600000", "DRAIN_TIMEOUT_MS": "0"}
"""What is in a WAL stays there."""
MOVES = {"SEGMENT_AGE_MS": "600000", "DRAIN_TIMEOUT_MS": "110000"}
"""It is moved by whoever ends in order."""


def test_nothing_is_lost_whichever_worker_is_killed_or_stopped(tmp_path: Path) -> None:
    seed = seed_from_system()
    print(f"seed {seed}")
    in_own_process(workers_killed_and_stopped, tmp_path, seed, WORKERS, ROUNDS)
    verify(tmp_path / "data")


def test_nothing_is_lost_when_the_shared_database_is(tmp_path: Path) -> None:
    """Worker 0 makes it again; the others, which read the one that is gone, begin anew as well."""
    in_own_process(shared_database_lost, tmp_path)
    verify(tmp_path / "data")


def verify(data: Path) -> str:
    done = run_penstock("verify", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_workers_whose_parent_was_killed_drain_and_nobody_gets_in_between(tmp_path: Path) -> None:
    with workers_host(tmp_path, WORKERS, MOVES) as host:
        sent = fill(host, "t", 100)
        stopped = host.signal(1, signal.SIGSTOP)
        workers = host.kill_parent()
        # Worker 0 waits for worker 1; were it gone, worker 1 would still hold its own directory.
        intruder = run_penstock(
            "serve",
            *("--data", str(host.data), "--workers", str(WORKERS)),
            *("--kafka", "127.0.0.1:0", "--http", ""),
        )
        assert intruder.returncode != 0
        assert "is using this data directory" in intruder.stderr, intruder.stderr
        stopped.send_signal(signal.SIGCONT)
        gone, alive = psutil.wait_procs(workers, timeout=120)
        assert not alive, host.server.tail(8000)
        assert len(gone) == WORKERS
        host.start()
        assert read_all(host, "t") == sent
        assert host.stop() == 0
    verify(host.data)


def test_workers_whose_parent_was_killed_move_all_they_have(tmp_path: Path) -> None:
    with workers_host(tmp_path, WORKERS, MOVES) as host:
        fill(host, "t", 300)
        eventually(lambda: wal_files_with_records(host), lambda count: count == WORKERS)
        _, alive = psutil.wait_procs(host.kill_parent(), timeout=120)
        assert not alive, host.server.tail(8000)
        assert wal_files_with_records(host) == 0, "they need the one that writes the journal"
    verify(host.data)


def test_a_worker_that_waits_for_its_writer_ends_with_its_parent(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    arguments = ("--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0", "--http", "")
    arguments += ("--workers", "2", "--worker", f"1:{theirs.fileno()}")
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        pass_fds=(theirs.fileno(),),
    )
    theirs.close()
    try:
        lock = tmp_path / "data" / "workers" / "1" / "lock"
        until = time.monotonic() + 120
        while not lock.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.5)
        assert worker.poll() is None, "it waits"
        ours.close()
        assert worker.wait(120) == 0
    finally:
        worker.kill()
        worker.wait()


def test_fewer_workers_serve_and_move_what_the_others_left(tmp_path: Path) -> None:
    with workers_host(tmp_path, WORKERS, STAYS) as host:
        sent = fill(host, "t", 300)
        committed = commit_offsets(host, "t", sent)
        assert host.stop() == 0
        # None but the one that is alone: what the others had is its.
        for count in (1, 2):
            host.start(count)
            assert read_all(host, "t") == sent
            assert committed_offsets(host, "t", sent) == committed
            until = time.monotonic() + 120
            while wal_files_with_records(host, but=count) and count == 1:
                assert time.monotonic() < until, host.server.tail(8000)
                time.sleep(0.1)
            assert host.stop() == 0, host.server.tail(8000)
    verify(host.data)


def commit_offsets(host: WorkersHost, topic: str, sent: dict[int, list[bytes]]) -> dict[int, int]:
    """Offsets of ten groups, whose coordinators are all workers; by partition."""
    found = {number: number % 7 for number in sent}
    for group in range(10):
        consumer = group_consumer(host, group)
        consumer.commit(
            offsets=[TopicPartition(topic, number, at) for number, at in found.items()],
            asynchronous=False,
        )
        consumer.close()
    return found


def committed_offsets(
    host: WorkersHost, topic: str, sent: dict[int, list[bytes]]
) -> dict[int, int]:
    """What each of the groups is told; all must be told the same."""
    told = []
    for group in range(10):
        consumer = group_consumer(host, group)
        places = [TopicPartition(topic, number) for number in sent]
        told.append({place.partition: place.offset for place in consumer.committed(places, 120)})
        consumer.close()
    assert all(found == told[0] for found in told)
    return told[0]


def group_consumer(host: WorkersHost, group: int) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": host.bootstrap,
            "group.id": f"committed-{group}",
            "enable.auto.commit": False,
            "logger": SILENT,
        }
    )


def test_backup_holds_what_lies_in_each_worker_s_wal(tmp_path: Path) -> None:
    with workers_host(tmp_path, WORKERS, STAYS) as host:
        sent = fill(host, "t", 300)
        # Each worker's WAL holds something; the database hears of it a moment later.
        eventually(lambda: wal_files_with_records(host), lambda count: count >= WORKERS)
        backup = tmp_path / "backup"
        done = run_penstock("backup", "--to", str(backup), "--http", host.http(0))
        assert done.returncode == 0, done.stdout + done.stderr
        verify(host.data)
        host.end_all()
    restored = tmp_path / "restored"
    done = run_penstock("restore", "--from", str(backup), "--data", str(restored))
    assert done.returncode == 0, done.stdout + done.stderr
    verify(restored)
    again = WorkersHost(tmp_path, 2, STAYS)
    again.server.data = restored
    again.start()
    try:
        assert read_all(again, "t") == sent
    finally:
        again.end_all()


def fill(host: WorkersHost, topic: str, count: int, partitions: int = 36) -> dict[int, list[bytes]]:
    """Records in every partition, and one more by each worker: leaders are drawn, and none is a
    worker that has just missed a beat. Gives what was acknowledged."""
    admin = AdminClient({"bootstrap.servers": host.bootstrap, "logger": SILENT})
    if topic not in admin.list_topics(timeout=60).topics:
        for created in admin.create_topics([NewTopic(topic, partitions)]).values():
            created.result(60)
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    failed: list[object] = []

    def done(error: object, message: object) -> None:
        if error is None:
            found[message.partition()].append(message.value())  # type: ignore[attr-defined]
        else:
            failed.append(error)

    producer = Producer(
        {"bootstrap.servers": host.bootstrap, "enable.idempotence": True, "logger": SILENT}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions, on_delivery=done)
    assert producer.flush(120) == 0
    assert not failed, failed
    assert sum(map(len, found.values())) == count
    for index in range(host.count):
        with raw_producer(host.address(index)) as alone:
            assert alone.send(topic, 0, b"by %d" % index) == "NONE"
        found[0].append(b"by %d" % index)
    return found


def read_all(host: WorkersHost, topic: str, seconds: float = 120) -> dict[int, list[bytes]]:
    """Every record, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": host.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "logger": SILENT,
        }
    )
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    left = {}
    for number in partitions:
        left[number] = end_offset(consumer, topic, number)
    found: dict[int, list[bytes]] = {number: [] for number in partitions}
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    until = time.monotonic() + seconds
    while any(len(found[number]) < end for number, end in left.items()):
        assert time.monotonic() < until, host.server.tail(8000)
        for message in consumer.consume(1000, timeout=0.5):
            if message.error() is None:
                found[message.partition()].append(message.value())
    consumer.close()
    return found


def end_offset(consumer: Consumer, topic: str, number: int) -> int:
    """Asked again while workers that are no more are still named as leaders, which is until they
    are fenced: librdkafka doesn't, and fails when it lets go of such a broker."""
    until = time.monotonic() + 120
    while True:
        try:
            place = TopicPartition(topic, number)
            return int(consumer.get_watermark_offsets(place, timeout=60)[1])
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def wal_files_with_records(host: WorkersHost, *, but: int = 0) -> int:
    """How many of the WALs the state names runs in; `but`: without so many first ones."""
    from contextlib import closing

    from penstock.state.read.queries import Queries

    with closing(Queries(host.data / "metadata.sqlite")) as queries:
        keys = [0, *(wal.wal_key for wal in queries.wals())][but:]
        return sum(bool(queries.wal_generations(key)) for key in keys)
