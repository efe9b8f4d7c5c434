"""One member of a consumer group as a process of its own, so that it can crash like one.

Run as a script it subscribes, reads and commits after each batch, and writes one JSON line per
event to its standard output:

    {"assigned": [0, 2]}                 the partitions it holds now (all of them, each time)
    {"read": [partition, offset, key]}   one record
    {"committed": {"0": 17}}             what a commit said; written after the commit's answer
    {"error": "..."}                     it ends
A line on its standard input, or its end, makes it leave the group and exit. SIGKILL is a crash.

`Member` is the other side: it starts the script and keeps what it said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from support.waiting import eventually

SESSION_MS = 45_000
"""As clients have it: a loaded machine is no reason to lose partitions."""
HEARTBEAT_MS = 500
CONSUMER_PROTOCOL = "confluent-kafka/consumer"
"""The client that speaks KIP-848."""


def say(**event: Any) -> None:
    """Write one event; flushed, since the reader waits for it."""
    print(json.dumps(event), flush=True)


class Leave:
    """Set once the standard input said a line or ended."""

    def __init__(self) -> None:
        self.now = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.readline()
        self.now.set()


def run_confluent(options: argparse.Namespace, leave: Leave) -> None:
    """Be a member through confluent-kafka."""
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # What an expression takes in is looked for that often.
        "topic.metadata.refresh.interval.ms": 1000,
    }
    if options.client == CONSUMER_PROTOCOL:
        # Session and heartbeats are the server's settings there.
        settings["group.protocol"] = "consumer"
        settings["group.remote.assignor"] = "uniform"
    else:
        settings["session.timeout.ms"] = options.session_ms
        settings["heartbeat.interval.ms"] = HEARTBEAT_MS
        settings["partition.assignment.strategy"] = options.strategy
    if options.instance:
        settings["group.instance.id"] = options.instance
    consumer = Consumer(settings)
    consumer.subscribe([options.topic])
    held: list[int] | None = None
    try:
        while not leave.now.is_set():
            messages = consumer.consume(100, timeout=0.1)
            now = sorted(p.partition for p in consumer.assignment())
            if now != held:
                held = now
                say(assigned=held)
            for message in messages:
                if message.error() is not None:
                    say(error=str(message.error()))
                    continue
                key = message.key()
                say(read=[message.partition(), message.offset(), key and key.decode()])
            if messages:
                try:
                    done = consumer.commit(asynchronous=False)
                    # Partitions without news since the last commit are told as invalid.
                    say(committed={str(p.partition): p.offset for p in done if p.offset >= 0})
                except Exception as error:
                    # A rebalance may come between reading and committing: the records are read
                    # again by whoever holds the partition next.
                    say(commit_failed=str(error))
    finally:
        consumer.close()


async def run_aiokafka(options: argparse.Namespace, leave: Leave) -> None:
    """Be a member through aiokafka."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = AIOKafkaConsumer(
        options.topic,
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance or None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=(assignors[options.strategy],),
    )
    await consumer.start()
    held: list[int] | None = None
    try:
        while not leave.now.is_set():
            batches = await consumer.getmany(timeout_ms=100)
            now = sorted(p.partition for p in consumer.assignment())
            if now != held:
                held = now
                say(assigned=held)
            for messages in batches.values():
                for message in messages:
                    key = message.key
                    say(read=[message.partition, message.offset, key and key.decode()])
            if batches:
                positions = {p: batches[p][-1].offset + 1 for p in batches}
                try:
                    await consumer.commit(positions)
                    say(committed={str(p.partition): o for p, o in positions.items()})
                except KafkaError as error:
                    say(commit_failed=str(error))
    finally:
        await consumer.stop()


def run_kafka_python(options: argparse.Namespace, leave: Leave) -> None:
    """Be a member through kafka-python."""
    from kafka import KafkaConsumer, OffsetAndMetadata
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError

    # For `Member.wait_assigned`: it shows these lines where the assignment does not come.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = KafkaConsumer(
        options.topic,
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance or None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        # A leader that assigns before it has heard of a new topic gives out nothing; it looks
        # again at its next refresh, which is five minutes away by default.
        metadata_max_age_ms=1000,
        partition_assignment_strategy=(assignors[options.strategy],),
    )
    held: list[int] | None = None
    try:
        while not leave.now.is_set():
            batches = consumer.poll(timeout_ms=100)
            now = sorted(p.partition for p in consumer.assignment())
            if now != held:
                held = now
                say(assigned=held)
            for messages in batches.values():
                for message in messages:
                    key = message.key
                    say(read=[message.partition, message.offset, key and key.decode()])
            if batches:
                positions = {
                    p: OffsetAndMetadata(batches[p][-1].offset + 1, "", -1) for p in batches
                }
                try:
                    consumer.commit(positions)
                    say(committed={str(p.partition): o.offset for p, o in positions.items()})
                except KafkaError as error:
                    say(commit_failed=str(error))
    finally:
        consumer.close()


class Member:
    """A member process and what it has said so far."""

    def __init__(
        self,
        client: str,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        instance: str = "",
        strategy: str = "range",
        session_ms: int = SESSION_MS,
    ) -> None:
        """
        Args:
            instance: a static member's; empty: it has none.
            session_ms: after which one that says nothing is taken for dead.
        """
        command = [sys.executable, "-W", "ignore", "-m", "support.member", "--client", client]
        command += ["--bootstrap", bootstrap, "--group", group, "--topic", topic]
        command += ["--instance", instance, "--strategy", strategy]
        command += ["--session-ms", str(session_ms)]
        self.process = subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assigned: list[int] | None = None
        self.read: list[tuple[int, int, str | None]] = []
        self.committed: dict[int, int] = {}
        self.errors: list[str] = []
        self.commit_failures: list[str] = []
        self.rebalances = 0
        self.complaints: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._events, daemon=True),
            threading.Thread(target=self._complain, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "assigned" in event:
                self.assigned = event["assigned"]
                self.rebalances += 1
            elif "read" in event:
                partition, offset, key = event["read"]
                self.read.append((partition, offset, key))
            elif "committed" in event:
                self.committed.update({int(p): o for p, o in event["committed"].items()})
            elif "commit_failed" in event:
                self.commit_failures.append(event["commit_failed"])
            elif "error" in event:
                self.errors.append(event["error"])

    def _complain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaints.put(line)

    def wait_assigned(self, count: int, timeout_seconds: float = 90) -> list[int]:
        """Wait until it holds so many partitions; which ones."""
        try:
            held = eventually(
                lambda: self.assigned,
                lambda now: now is not None and len(now) == count,
                timeout_seconds=timeout_seconds,
            )
        except AssertionError as error:
            error.add_note("".join([*self.complaints.queue][-60:]))
            raise
        assert held is not None
        return held

    def leave(self) -> None:
        """Let it leave the group and end; it must end cleanly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(90)
        self._close()
        complaints = "".join(self.complaints.queue)
        assert status == 0, complaints

    def crash(self) -> None:
        """Kill it: nothing is said to the server."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(30)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self.process.poll() is None:
            self.crash()


def main() -> None:
    """Be one member, as the module's text says."""
    parser = argparse.ArgumentParser()
    for option in ("client", "bootstrap", "group", "topic", "instance", "strategy"):
        parser.add_argument(f"--{option}", default="")
    parser.add_argument("--session-ms", type=int, default=SESSION_MS)
    options = parser.parse_args()
    leave = Leave()
    try:
        if options.client in {"confluent-kafka", CONSUMER_PROTOCOL}:
            run_confluent(options, leave)
        elif options.client == "aiokafka":
            asyncio.run(run_aiokafka(options, leave))
        else:
            run_kafka_python(options, leave)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
