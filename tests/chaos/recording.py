"""Where clients of a load write down what they did and saw; usable from any thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from chaos.history import CommittedOffset, EndOffset, History, Outcome, Poll, Seen, Send


@dataclass(slots=True)
class Sending:
    """A send under way."""

    producer: str
    library: str
    partition: int
    number: int
    value: str
    began_s: float
    idempotent: bool = True


@dataclass
class Recorder:
    """The one history of a load."""

    history: History = field(default_factory=History)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _acked: Counter[str] = field(default_factory=Counter)
    _values: itertools.count[int] = field(default_factory=itertools.count)

    def sending(self, producer: str, library: str, partition: int, number: int) -> Sending:
        """Begin a send; gives it a value that nobody else has."""
        value = f"{producer}:{partition}:{number}:{next(self._values)}"
        return Sending(producer, library, partition, number, value, time.monotonic())

    def sent(self, sending: Sending, outcome: Outcome, offset: int | None = -1) -> None:
        """A send ended. `offset`: None or negative, where the library doesn't know it."""
        send = Send(
            sending.producer,
            sending.library,
            sending.partition,
            sending.number,
            sending.value,
            outcome,
            -1 if offset is None else offset,
            sending.began_s,
            time.monotonic(),
            sending.idempotent,
        )
        with self._lock:
            self.history.sends.append(send)
            if outcome is Outcome.ACKED:
                self._acked[send.library] += 1

    def polled(self, consumer: str, library: str, session: str, seen: list[Seen]) -> None:
        """A poll returned records."""
        if seen:
            poll = Poll(consumer, library, session, tuple(seen), time.monotonic())
            with self._lock:
                self.history.polls.append(poll)

    def end_offset(self, client: str, partition: int, offset: int, began_s: float) -> None:
        """A partition's end was told."""
        end = EndOffset(client, partition, offset, began_s, time.monotonic())
        with self._lock:
            self.history.end_offsets.append(end)

    def committed(
        self, group: str, partition: int, offset: int, *, is_fetch: bool, began_s: float
    ) -> None:
        """A group's offset was committed, or fetched."""
        entry = CommittedOffset(group, partition, offset, is_fetch, began_s, time.monotonic())
        with self._lock:
            self.history.committed.append(entry)

    @property
    def acked(self) -> int:
        """Sends acknowledged so far."""
        return self.acked_by_library().total()

    def acked_by_library(self) -> Counter[str]:
        """The same, of each client library that had any."""
        with self._lock:
            return Counter(self._acked)
