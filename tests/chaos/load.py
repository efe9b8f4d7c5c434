"""A load of real clients on a cluster, and what they saw: `LoadRun`."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from chaos import clients
from chaos.clients import Load
from chaos.history import Seen
from chaos.line_load import line_group_member, line_producer
from chaos.recording import Recorder
from chaos.standstill import MainThreads, join_all
from support.line_client import LineProgram
from support.probe import ask_end
from support.waiting import eventually

ACKED_SECONDS_MAX = 240.0
FINAL_SECONDS_MAX = 180.0
END_SECONDS_MAX = 150.0


class LoadRun:
    """Producers of each library, a reader, members of a group per library, and one who asks
    for ends: each in a thread. `start`, then `finish`."""

    def __init__(
        self,
        bootstrap: Callable[[], str],
        *,
        topic: str,
        partitions: int,
        programs: Sequence[LineProgram] = (),
    ) -> None:
        """
        Args:
            programs: clients of other languages, beside the three of Python.
        """
        self._programs = programs
        self.recorder = Recorder()
        self.stop = threading.Event()
        self.load = Load(bootstrap, topic, partitions, self.recorder, self.stop)
        self.crashed: list[str] = []
        """Clients that raised, or did not end; how."""
        self.deadlocked: list[str] = []
        """Clients that could not end through a deadlock of their own library (`standstill`)."""
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all clients."""
        load = self.load
        work: list[tuple[str, Callable[[], None]]] = [
            ("confluent-a", lambda: clients.confluent_producer(load, "confluent-a")),
            ("confluent-b", lambda: clients.confluent_producer(load, "confluent-b")),
            ("kafka-python", lambda: clients.kafka_python_producer(load, "kafka-python")),
            ("aiokafka", lambda: clients.aiokafka_producer(load, "aiokafka")),
            ("reader", lambda: clients.confluent_reader(load, "reader")),
            ("ends", lambda: clients.end_asker(load, "ends")),
        ]
        for program in self._programs:
            name = program.library
            work.append((name, partial(line_producer, load, name, program)))
        for number in range(2):
            for library, member in (
                ("confluent", clients.confluent_group_member),
                ("kafka-python", clients.kafka_python_group_member),
                ("aiokafka", clients.aiokafka_group_member),
            ):
                name = f"{library}-member-{number}"

                def run(
                    member: Callable[[Load, str, str], None] = member,
                    name: str = name,
                    group: str = f"group-{library}",
                ) -> None:
                    member(load, name, group)

                work.append((name, run))
            for program in self._programs:
                name = f"{program.library}-member-{number}"
                group = f"group-{program.library}"
                work.append((name, partial(line_group_member, load, name, group, program)))
        for name, target in work:
            thread = threading.Thread(
                target=self._guarded, args=(name, target), name=name, daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _guarded(self, name: str, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception:
            self.crashed.append(f"{name}: {traceback.format_exc()}")

    def wait_acked(self, count: int) -> None:
        """Until so many sends, of every library some, were acknowledged in all."""
        libraries = 3 + len(self._programs)
        eventually(
            self.recorder.acked_by_library,
            lambda acked: acked.total() >= count and len(acked) == libraries,
            timeout_seconds=ACKED_SECONDS_MAX,
            pause_seconds=0.5,
        )

    def finish(self) -> None:
        """Stop the clients, then read everything from the beginning. The cluster must be whole."""
        self.stop.set()
        late, self.deadlocked = join_all(
            self._threads,
            MainThreads(),
            may_deadlock=lambda name: name.startswith("confluent-member-"),
            seconds=END_SECONDS_MAX,
        )
        self.crashed += [f"{name}: it did not end in {END_SECONDS_MAX} s" for name in late]
        if self.deadlocked:
            print("clients that librdkafka's own deadlock stopped:", self.deadlocked)
        self.recorder.history.final = self._read_all()

    def _read_all(self) -> list[Seen]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        load = self.load
        consumer = Consumer(
            {
                "bootstrap.servers": load.bootstrap(),
                "group.id": "final",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "logger": clients.SILENT,
            }
        )
        places = [
            TopicPartition(load.topic, number, OFFSET_BEGINNING)
            for number in range(load.partitions)
        ]
        ends = {
            place.partition: ask_end(consumer, place, patience_s=FINAL_SECONDS_MAX)
            for place in places
        }
        consumer.assign(places)
        found: list[Seen] = []
        reached = dict.fromkeys(ends, 0)
        deadline = time.monotonic() + FINAL_SECONDS_MAX
        while any(reached[number] < end for number, end in ends.items()):
            if time.monotonic() > deadline:
                raise AssertionError(f"read up to {reached} of {ends} in {FINAL_SECONDS_MAX} s")
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is not None:
                    continue
                found.append(Seen(message.partition(), message.offset(), message.value().decode()))
                reached[message.partition()] = message.offset() + 1
        consumer.close()
        return found
