"""Workloads measure the latency of records at a steady rate: to acknowledgement, to consumer.

The consumer has a process of its own. In one process the callbacks of the two clients would wait
for each other, and the percentiles would be those of the clients. Both processes read the same
monotonic clock.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from penstock.cli.load.pacing import paced
from penstock.cli.load.spread import Spread, spread
from penstock.cli.load.target import Failures, Report, Target
from penstock.cli.load.usage import Usage, Watch

if TYPE_CHECKING:
    from confluent_kafka import Producer

FLUSH_S = 60.0
READ_S = 60.0
"""The consumer gives up this long after the last record should have come."""
START_S = 60.0
_PAD_BYTES = 1 << 20
_STRIDE = 1031
_NS_PER_MS = 1e6
_STAMP_BYTES = 16


class LatencyReport(Report, kw_only=True):
    """The report of records that one client or many have sent at a steady rate."""

    producers: int
    rate_per_s: int
    acknowledged: Spread
    received: Spread | None
    """Latency until a consumer has the record; None: the workload reads nothing back."""
    late_ms_max: float
    """The greatest delay, in ms, by which the client itself missed its plan."""
    usage: Usage


def latency(
    target: Target,
    topic: str,
    *,
    rate_per_s: int,
    seconds: float,
    warmup_s: float,
    value_bytes: int,
    partitions: int,
    topic_configs: Mapping[str, str],
    watch: Watch,
    progress: Callable[[int], None],
) -> LatencyReport:
    """Create a topic and send records to it one by one (linger 0), while a process reads them.

    Args:
        seconds: the measured time, which follows `warmup_s` that are not measured.
        value_bytes: the size of each record, at least 16 (its index and its time of sending).
        watch: measures usage during the whole run, with the warm-up.
        progress: called with the number of records sent.
    Raises:
        PenstockError: the server refuses the topic, or can't be reached.
    """
    target.make_topic(topic, partitions, topic_configs)
    skipped = int(rate_per_s * warmup_s)
    total = skipped + int(rate_per_s * seconds)
    # The process is spawned, not forked: librdkafka's threads don't survive a fork, and on macOS
    # more than that breaks.
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    within_s = warmup_s + seconds + READ_S
    reader = processes.Process(
        target=_read, args=(target, topic, partitions, total, within_s, theirs), daemon=True
    )
    reader.start()
    theirs.close()
    if not ours.poll(START_S):
        raise TimeoutError(f"the consumer's process was not ready within {START_S:g} s")
    ours.recv()
    acknowledged: list[int] = []
    failures = Failures()
    with _Polled([target.producer(linger_ms=0)]) as (producer,):
        pad = os.urandom(_PAD_BYTES)
        span = len(pad) - value_bytes

        def send(index: int) -> None:
            sent_ns = time.monotonic_ns()
            stamp = index.to_bytes(8, "big") + sent_ns.to_bytes(8, "big")
            at = index * _STRIDE % span
            producer.produce(
                topic,
                stamp + pad[at : at + value_bytes - _STAMP_BYTES],
                partition=index % partitions,
                on_delivery=_noted(acknowledged, failures, sent_ns, counts=index >= skipped),
            )
            if not index % rate_per_s:
                progress(index)

        with watch:
            late_ns = paced(send, rate_per_s=rate_per_s, count=total)
            unsent = producer.flush(FLUSH_S)
            got: list[tuple[int, int]] = ours.recv() if ours.poll(READ_S + warmup_s) else []
    reader.join(READ_S)
    seen = {index for index, _ in got}
    return LatencyReport(
        workload="latency",
        ok=len(acknowledged) == total - skipped and len(seen) == len(got) == total,
        topic=topic,
        record_count=total,
        failed_count=failures.count + unsent,
        first_failure=failures.first,
        producers=1,
        rate_per_s=rate_per_s,
        acknowledged=spread(acknowledged),
        received=spread(took_ns for index, took_ns in got if index >= skipped),
        late_ms_max=round(late_ns / _NS_PER_MS, 3),
        usage=watch.usage,
    )


def fan(
    target: Target,
    topic: str,
    *,
    producers: int,
    rate_per_s: int,
    seconds: float,
    warmup_s: float,
    value_bytes: int,
    topic_configs: Mapping[str, str],
    watch: Watch,
    progress: Callable[[int], None],
) -> LatencyReport:
    """Create a topic and send to it from many slow producers, a connection and a partition each.

    Args:
        rate_per_s: the rate of each producer.
        seconds, warmup_s, value_bytes, watch, progress: see `latency`.

    Raises:
        PenstockError: the server refuses the topic, or can't be reached.
    """
    target.make_topic(topic, producers, topic_configs)
    rate = producers * rate_per_s
    skipped = int(rate * warmup_s)
    total = skipped + int(rate * seconds)
    acknowledged: list[int] = []
    failures = Failures()
    with _Polled([target.producer(linger_ms=0) for _ in range(producers)]) as made:
        for partition, producer in enumerate(made):
            # This record connects the producer to the partition's leader before the clock starts.
            producer.produce(topic, b"hello", partition=partition)
        for producer in made:
            producer.flush(FLUSH_S)
        pad = os.urandom(_PAD_BYTES)
        span = len(pad) - value_bytes

        def send(index: int) -> None:
            sent_ns = time.monotonic_ns()
            at = index * _STRIDE % span
            made[index % producers].produce(
                topic,
                pad[at : at + value_bytes],
                partition=index % producers,
                on_delivery=_noted(acknowledged, failures, sent_ns, counts=index >= skipped),
            )
            if not index % rate:
                progress(index)

        with watch:
            late_ns = paced(send, rate_per_s=rate, count=total)
            unsent = sum(producer.flush(FLUSH_S) for producer in made)
    stored = target.stored(topic)
    return LatencyReport(
        workload="fan",
        ok=stored == total + producers and len(acknowledged) == total - skipped,
        topic=topic,
        record_count=total,
        failed_count=failures.count + unsent,
        first_failure=failures.first,
        producers=producers,
        rate_per_s=rate_per_s,
        acknowledged=spread(acknowledged),
        received=None,
        late_ms_max=round(late_ns / _NS_PER_MS, 3),
        usage=watch.usage,
    )


class _Polled:
    """Producers with a thread each, which takes the delivery reports as they come."""

    def __init__(self, producers: list[Producer]) -> None:
        self._producers = producers
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, args=(producer,), name="reports", daemon=True)
            for producer in producers
        ]

    def __enter__(self) -> list[Producer]:
        for thread in self._threads:
            thread.start()
        return self._producers

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _poll(self, producer: Producer) -> None:
        while not self._ended.is_set():
            producer.poll(0.2)


def _noted(
    acknowledged: list[int], failures: Failures, sent_ns: int, *, counts: bool
) -> Callable[[object, object], None]:
    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.note(error)
        elif counts:
            acknowledged.append(time.monotonic_ns() - sent_ns)

    return delivered


def _read(
    target: Target,
    topic: str,
    partitions: int,
    total: int,
    within_s: float,
    pipe: Connection,
) -> None:
    """Read a topic in a process of its own; send "ready", then (index, nanoseconds) per record."""
    consumer = target.consumer("penstock-bench-latency")
    consumer.assign(target.places(topic, partitions))
    # The first poll connects to the leaders, so that the first record doesn't wait for that.
    consumer.poll(1.0)
    end_s = time.monotonic() + within_s
    got: list[tuple[int, int]] = []
    pipe.send("ready")
    while len(got) < total and time.monotonic() < end_s:
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        now_ns = time.monotonic_ns()
        stamp = message.value() or b""
        index = int.from_bytes(stamp[:8], "big")
        got.append((index, now_ns - int.from_bytes(stamp[8:_STAMP_BYTES], "big")))
    pipe.send(got)
    consumer.close()
