"""A workload has many consumers of one topic, half of them slow.

It measures the cost of idle connections, and how soon every consumer has a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.cli.load.spread import Spread, spread
from penstock.cli.load.target import Report, Target
from penstock.cli.load.usage import Usage, Watch
from penstock.model.errors import RetryableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

CONNECT_S = 90.0
ROUND_S = 20.0
IDLE_S = 10.0
ROUNDS = 5
_SLOW_NS = 1_000_000_000
_FLUSH_S = 30.0


class ConnectionsReport(Report, kw_only=True):
    """The report of consumers that wait for one record each round; half of them poll only once a
    second."""

    consumers: int
    connected: int
    connect_s: float
    """Seconds until each consumer had its first record."""
    eager: Spread
    slow: Spread
    missed: int
    """The number of records that a consumer didn't get within `ROUND_S`."""
    connecting: Usage
    idle: Usage
    usage: Usage


def connections(
    target: Target,
    topic: str,
    *,
    consumers: int,
    topic_configs: Mapping[str, str],
    make_watch: Callable[[], Watch],
    progress: Callable[[int], None],
) -> ConnectionsReport:
    """Create a topic of one partition, connect consumers, leave them idle, send a record a round.

    Args:
        make_watch: makes a watch each for the connecting, the idle time and the rounds.
        progress: called with the number of connected consumers.

    Raises:
        PenstockError: the server refuses the topic, or can't be reached.
    """
    target.make_topic(topic, 1, topic_configs)
    producer = target.producer(linger_ms=0)
    producer.produce(topic, b"hello" * 20, partition=0)
    if producer.flush(_FLUSH_S):
        raise RetryableError(
            "send",
            f"the first record of {topic}",
            f"there was no acknowledgement within {_FLUSH_S:g} s",
            target.log.failure,
        )
    connecting, idle, rounds = make_watch(), make_watch(), make_watch()
    made: list[Consumer] = []
    try:
        with connecting:
            start_s = time.monotonic()
            for _ in range(consumers):
                consumer = target.consumer("penstock-bench-wait", queued_max_messages_kbytes=64)
                consumer.assign(target.places(topic, 1))
                made.append(consumer)
            waiting = set(range(consumers))
            while waiting and time.monotonic() - start_s < CONNECT_S:
                waiting -= {at for at in waiting if _has_record(made[at])}
                progress(consumers - len(waiting))
                time.sleep(0.01)
            connect_s = time.monotonic() - start_s
        with idle:
            end_s = time.monotonic() + IDLE_S
            while time.monotonic() < end_s:
                for consumer in made:
                    consumer.poll(0)
                time.sleep(0.5)
        connected = consumers - len(waiting)
        eager_ns: list[int] = []
        slow_ns: list[int] = []
        missed = 0
        with rounds:
            for _ in range(ROUNDS):
                time.sleep(0.5)
                missed += _round(producer, topic, made, eager_ns, slow_ns)
    finally:
        for consumer in made:
            consumer.close()
    return ConnectionsReport(
        workload="connections",
        ok=connected == consumers and not missed,
        topic=topic,
        record_count=ROUNDS + 1,
        failed_count=missed,
        first_failure="",
        consumers=consumers,
        connected=connected,
        connect_s=round(connect_s, 3),
        eager=spread(eager_ns),
        slow=spread(slow_ns),
        missed=missed,
        connecting=connecting.usage,
        idle=idle.usage,
        usage=rounds.usage,
    )


def _round(
    producer: Producer,
    topic: str,
    consumers: list[Consumer],
    eager_ns: list[int],
    slow_ns: list[int],
) -> int:
    """Send one record; return how many consumers didn't get it."""
    first_slow = len(consumers) - len(consumers) // 2
    slow_count = max(1, len(consumers) - first_slow)
    start_ns = time.monotonic_ns()
    # The polls of the slow consumers are spread over the second.
    due_ns = {
        at: start_ns + _SLOW_NS * (at - first_slow) // slow_count
        for at in range(first_slow, len(consumers))
    }
    waiting = set(range(len(consumers)))
    producer.produce(topic, b"x" * 100, partition=0)
    producer.poll(0)
    while waiting and time.monotonic_ns() - start_ns < ROUND_S * 1e9:
        for at in list(waiting):
            if at >= first_slow:
                if time.monotonic_ns() < due_ns[at]:
                    continue
                due_ns[at] += _SLOW_NS
            if _has_record(consumers[at]):
                waiting.discard(at)
                took_ns = time.monotonic_ns() - start_ns
                (slow_ns if at >= first_slow else eager_ns).append(took_ns)
        time.sleep(0.002)
    producer.flush(_FLUSH_S)
    return len(waiting)


def _has_record(consumer: Consumer) -> bool:
    message = consumer.poll(0)
    return message is not None and not message.error()
