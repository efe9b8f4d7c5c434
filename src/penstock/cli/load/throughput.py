"""These workloads send as fast as one producer can, and read as fast as one consumer can."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from penstock.cli.load.target import Failures, Report, Target
from penstock.cli.load.usage import Usage, Watch
from penstock.model.errors import InvalidRequestError

FLUSH_S = 120.0
QUIET_S = 30.0
"""A consumer that got nothing for this many seconds gives up, and the report isn't ok."""
READ_S = 300.0
_POOL_BYTES = 32 << 20
_POLL_EVERY = 1024
_CONSUMED_TOGETHER = 5_000


class ThroughputReport(Report, kw_only=True):
    """The report of records of one size that one client has sent or read.

    `seconds` runs from the first call to the last acknowledgement, or to the last record read.
    """

    value_bytes: int
    seconds: float
    mb_s: float
    """Values per second, in units of 10^6 bytes; keys and headers aren't counted."""
    records_s: int
    usage: Usage


def produce(
    target: Target,
    topic: str,
    *,
    records: int,
    value_bytes: int,
    partitions: int,
    topic_configs: Mapping[str, str],
    watch: Watch,
    progress: Callable[[int], None],
) -> ThroughputReport:
    """Create a topic and send records to it: random values, acks=all, linger 5 ms, 1 MB batches.

    Args:
        records: the number of records.
        value_bytes: the size of each record; records have no key.
        watch: measures usage during the run.
        progress: called with the number of records that librdkafka has taken.

    Raises:
        PenstockError: the server refuses the topic, or can't be reached.
    """
    target.make_topic(topic, partitions, topic_configs)
    # Values are random, so that no codec on the way makes the measured bytes fewer. Each value
    # begins one byte further than it would have to, so that values don't repeat soon.
    pool = os.urandom(_POOL_BYTES)
    last = len(pool) - value_bytes
    failures = Failures()

    def delivered(error: object, _message: object) -> None:
        failures.note(error)

    producer = target.producer(
        linger_ms=5,
        batch_size=1_000_000,
        queue_buffering_max_messages=500_000,
        queue_buffering_max_kbytes=262_144,
        delivery_report_only_error=True,
    )
    send, poll = producer.produce, producer.poll
    at = 0
    with watch:
        start_s = time.monotonic()
        for index in range(records):
            value = pool[at : at + value_bytes]
            while True:
                try:
                    send(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    poll(0.05)
            at = at + value_bytes + 1
            if at > last:
                at -= last
            if not index % _POLL_EVERY:
                poll(0)
                progress(index)
        unsent = producer.flush(FLUSH_S)
        seconds = time.monotonic() - start_s
    stored = target.stored(topic)
    return ThroughputReport(
        workload="produce",
        ok=stored == records and not failures.count,
        topic=topic,
        record_count=stored,
        failed_count=failures.count + unsent,
        first_failure=failures.first,
        value_bytes=value_bytes,
        seconds=round(seconds, 3),
        mb_s=round(stored * value_bytes / 1e6 / seconds, 1),
        records_s=round(stored / seconds),
        usage=watch.usage,
    )


def consume(
    target: Target, topic: str, *, watch: Watch, progress: Callable[[int], None]
) -> ThroughputReport:
    """Read a topic from its start to the end that it had when the reading began.

    Args:
        progress: called with the number of records read.

    Raises:
        InvalidRequestError: there is no such topic, or the topic is empty.
        PenstockError: the server can't be reached.
    """
    partitions = target.partitions(topic)
    expected = target.stored(topic)
    if not expected:
        raise InvalidRequestError(
            "read",
            f"topic {topic}",
            "it holds no records",
            "leave out --topic to have a topic filled",
        )
    consumer = target.consumer("penstock-bench-read", auto_offset_reset="earliest")
    count = size_bytes = 0
    failures = Failures()
    with watch:
        start_s = heard_s = now_s = time.monotonic()
        consumer.assign(target.places(topic, partitions))
        while count < expected and now_s - heard_s < QUIET_S and now_s - start_s < READ_S:
            messages = consumer.consume(_CONSUMED_TOGETHER, timeout=0.2)
            now_s = time.monotonic()
            if not messages:
                continue
            heard_s = now_s
            for message in messages:
                if message.error():
                    failures.note(message.error())
                else:
                    count += 1
                    size_bytes += len(message.value() or b"")
            progress(count)
        seconds = time.monotonic() - start_s
    consumer.close()
    return ThroughputReport(
        workload="consume",
        ok=0 < count == expected and not failures.count,
        topic=topic,
        record_count=count,
        failed_count=failures.count + expected - count,
        first_failure=failures.first,
        value_bytes=round(size_bytes / count) if count else 0,
        seconds=round(seconds, 3),
        mb_s=round(size_bytes / 1e6 / seconds, 1),
        records_s=round(count / seconds),
        usage=watch.usage,
    )
