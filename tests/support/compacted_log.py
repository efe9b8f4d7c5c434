"""A topic that consumers read while it is compacted, and what they must get."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import support.quiet
from penstock.pipeline.api_messages import RUN_FIELDS
from penstock.pipeline.client import PipelineClient
from support.adapters import ConfluentAdapter
from support.records import NewRecord, ReadRecord
from support.server import REPOSITORY, ServerProcess
from support.waiting import eventually

assert support.quiet  # before the adapters, which import the client libraries
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass
class CompactedLog:
    """One topic, its clients and its API.

    Args:
        bootstrap: of any Kafka client.
        client: of the pipeline API.
    """

    bootstrap: str
    client: PipelineClient
    topic: str = "compacted"
    partitions: int = 3
    records: dict[tuple[int, int], ReadRecord] = field(default_factory=dict)
    _number: int = 0

    def create(self, **configs: str) -> None:
        """Create the topic."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        # Its records are of long ago.
        config = {"retention.ms": "-1", **configs}
        topic = NewTopic(self.topic, self.partitions, config=config)
        for future in admin.create_topics([topic]).values():
            future.result(90)

    def write(self, rounds: int, *, count: int = 30, apart: bool = True) -> None:
        """So many runs in objects more per partition, each of another codec, idempotent or not.

        Args:
            apart: wait after each for one run more; nothing compacts meanwhile.
        """
        for _ in range(rounds):
            before = self.run_counts()
            self._number += 1
            codec = CODECS[self._number % len(CODECS)]
            new = [
                NewRecord(
                    partition=number % self.partitions,
                    key=b"k%d" % number,
                    value=None if number % 7 == 3 else b"%d-%d" % (self._number, number) * 20,
                    timestamp_ms=1_700_000_000_000 + number,
                    headers=(("h", b"%d" % number),) if number % 2 else (),
                )
                for number in range(count)
            ]
            offsets = ConfluentAdapter().write(
                self.bootstrap, self.topic, new, codec=codec, idempotent=bool(self._number % 2)
            )
            for record, (partition, offset) in zip(new, offsets, strict=True):
                self.records[partition, offset] = ReadRecord(
                    partition, offset, record.key, record.value, record.timestamp_ms, record.headers
                )
            if apart:
                # What is written next must not be joined with it by the uploader.
                eventually(self.run_counts, partial(_has_grown, before))

    def run_counts(self) -> dict[int, int]:
        """Runs in objects by partition."""
        (topic,) = self.client.topics([self.topic]).topics
        counts = dict.fromkeys(range(self.partitions), 0)
        for page in self.client.runs(with_wal=False):
            for index in page.rows[0::RUN_FIELDS]:
                topic_id, partition = page.partitions[index]
                if topic_id == topic.topic_id:
                    counts[partition] += 1
        return counts

    def named_objects(self) -> set[str]:
        """Keys of all objects that hold a run."""
        return {key for page in self.client.runs(with_wal=False) for key in page.object_keys}

    def check_read(self) -> None:
        """A consumer gets all, from the start on."""
        read = ConfluentAdapter().read(
            self.bootstrap, self.topic, self.partitions, len(self.records)
        )
        assert {(one.partition, one.offset): one for one in read} == self.records
        assert len(read) == len(self.records)

    def check_read_from_everywhere(self) -> None:
        """From each offset on the next record is the right one."""
        with _Reader(self) as reader:
            for place in self.records:
                reader.check(place)

    @contextmanager
    def readers(self) -> Iterator[list[str]]:
        """A consumer that goes on reading at random offsets; what it found wrong."""
        faults: list[str] = []
        count = 0
        stopping = threading.Event()
        places = list(self.records)
        choice = random.Random(1)

        def read() -> None:
            nonlocal count
            try:
                with _Reader(self) as reader:
                    while not stopping.is_set():
                        reader.check(choice.choice(places))
                        count += 1
            except BaseException as error:
                faults.append(repr(error))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            eventually(lambda: count > 5 or faults)
            yield faults
            reached = count
            eventually(lambda: count > reached + 5 or faults)
        finally:
            stopping.set()
            thread.join(60)


class _Reader:
    def __init__(self, log: CompactedLog) -> None:
        from confluent_kafka import Consumer

        self._log = log
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": log.bootstrap,
                "group.id": "unused-reader",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.wait.max.ms": 5,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def check(self, place: tuple[int, int]) -> None:
        """Read the record at a place."""
        from confluent_kafka import TopicPartition

        partition, offset = place
        self._consumer.assign([TopicPartition(self._log.topic, partition, offset)])
        deadline = time.monotonic() + 120
        while True:
            message = self._consumer.poll(1.0)
            if message is not None:
                break
            assert time.monotonic() < deadline, f"nothing at {place}"
        assert message.error() is None, message.error()
        expected = self._log.records[place]
        assert (message.partition(), message.offset()) == place
        assert (message.key(), message.value()) == (expected.key, expected.value)


def stored_segments(server: ServerProcess) -> set[str]:
    """Keys of all segment objects in a server's own store."""
    root = server.data / "objects"
    return {path.relative_to(root).as_posix() for path in root.rglob("*.seg")}


def drive(url: str, engine: str = "local", step: str = "") -> subprocess.CompletedProcess[str]:
    """Run `support.compaction_driver` to its end."""
    process = start_driver(url, engine, step)
    try:
        # A Spark that starts on a busy machine has taken 100 s.
        output, errors = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def start_driver(url: str, engine: str = "local", step: str = "") -> subprocess.Popen[str]:
    """Start `support.compaction_driver`."""
    paths = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]
    return subprocess.Popen(
        [sys.executable, "-m", "support.compaction_driver", url, engine, step],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _has_grown(before: dict[int, int], now: dict[int, int]) -> bool:
    return all(now[number] > before[number] for number in now)
