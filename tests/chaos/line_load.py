"""Clients of other languages under load, each led by a thread: see `support.line_client`."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict

from chaos.clients import MEMBER_LIFE_S, PAUSE_S, Load
from chaos.history import Outcome, Seen
from chaos.recording import Sending
from support.line_client import (
    END_SECONDS_MAX,
    LineClient,
    LineClientEndedError,
    LineProgram,
)


def line_producer(load: Load, name: str, program: LineProgram) -> None:
    """Idempotent; after an error a new process goes on under a new name."""
    for life in itertools.count():
        if load.stop.is_set():
            return
        _ProducerLife(load, f"{name}.{life}", program).run()
        load.stop.wait(PAUSE_S)


class _ProducerLife:
    """One process, and what it was told to send and hasn't answered."""

    def __init__(self, load: Load, incarnation: str, program: LineProgram) -> None:
        self._load = load
        self._incarnation = incarnation
        self._library = program.library
        self._client = LineClient(program, "produce", load.bootstrap(), load.topic)
        self._waiting: dict[str, Sending] = {}
        self._failed = threading.Event()

    def run(self) -> None:
        reading = threading.Thread(target=self._read, name=self._incarnation)
        reading.start()
        numbers: dict[int, int] = defaultdict(int)
        try:
            while not self._load.stop.is_set() and not self._failed.is_set():
                for partition in range(self._load.partitions):
                    self._send(partition, numbers[partition])
                    numbers[partition] += 1
                time.sleep(PAUSE_S)
        except LineClientEndedError:
            pass
        # Read to the end before the pipe is closed: the flush answers what still waits.
        self._client.close_input()
        reading.join(END_SECONDS_MAX)
        self._client.end()
        for sending in self._waiting.values():
            self._load.recorder.sent(sending, Outcome.UNKNOWN)

    def _send(self, partition: int, number: int) -> None:
        recorder = self._load.recorder
        sending = recorder.sending(self._incarnation, self._library, partition, number)
        self._waiting[sending.value] = sending
        self._client.tell(f"{partition} {sending.value}")

    def _read(self) -> None:
        for answer in self._client.answers():
            sending = self._waiting.pop(answer["value"])
            if answer["error"]:
                self._load.recorder.sent(sending, Outcome.UNKNOWN)
                self._failed.set()
            else:
                self._load.recorder.sent(sending, Outcome.ACKED, answer["offset"])
        self._failed.set()


def line_group_member(load: Load, name: str, group: str, program: LineProgram) -> None:
    """Commits what it has read, then asks for what the coordinator has."""
    for life in itertools.count():
        if load.stop.is_set():
            return
        client = LineClient(program, "member", load.bootstrap(), load.topic, group)
        try:
            _member_life(load, f"{name}.{life}", name, group, program.library, client)
        except LineClientEndedError:
            load.stop.wait(0.5)
        finally:
            client.end()


def _member_life(
    load: Load, session: str, name: str, group: str, library: str, client: LineClient
) -> None:
    recorder = load.recorder
    until = time.monotonic() + MEMBER_LIFE_S
    while not load.stop.is_set() and time.monotonic() < until:
        polled = client.ask("poll 300")
        seen = [
            Seen(record["partition"], record["offset"], record["value"])
            for record in polled["records"]
        ]
        recorder.polled(name, library, f"{session}.{polled['assignments']}", seen)
        if not seen:
            continue
        for order in ("commit", "committed"):
            began_s = time.monotonic()
            for partition, offset in client.ask(order)["offsets"].items():
                recorder.committed(
                    group, int(partition), offset, is_fetch=order == "committed", began_s=began_s
                )
