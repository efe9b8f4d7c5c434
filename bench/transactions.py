"""How many transactions a second does a server take, and how long is a commit?

    python bench/transactions.py --bootstrap 127.0.0.1:9092  -> one JSON line

One librdkafka producer begins, produces and commits, again and again: transactions of 1 to 1,000
records, to one partition and to ten, and of 100 records with the offsets of a group. A commit
is timed from its call to its answer, so that it includes the last batches' way. Then one consumer
reads what was written, with `read_committed` and without, in turn, twice: the first reading of each
warms the caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 10
VALUE = bytes(100)
READ_TRANSACTIONS = 300
READ_RECORDS = 300
WAIT_S = 60.0

CASES = (
    ("r1p1", 1, 1, False),
    ("r10p10", 10, 10, False),
    ("r100p1", 100, 1, False),
    ("r100p10", 100, 10, False),
    ("r1000p10", 1000, 10, False),
    ("r100p10_offsets", 100, 10, True),
)
"""Each case: the name of its figures, the records of a transaction, their partitions, and whether
offsets go with them."""


def producer_of(bootstrap: str, name: str) -> Producer:
    """A transactional producer that waits for nothing but its answers."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def member_of(bootstrap: str, group: str, topic: str) -> Consumer:
    """A consumer whose group the offsets are committed to."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.subscribe([topic])
    end_s = time.monotonic() + WAIT_S
    while not consumer.assignment() and time.monotonic() < end_s:
        consumer.poll(0.1)
    return consumer


def measure(
    bootstrap: str, topic: str, case: tuple[str, int, int, bool], seconds: float
) -> dict[str, float]:
    """Run one case for some seconds, after a tenth of that to warm up."""
    name, records, partitions, with_offsets = case
    producer = producer_of(bootstrap, f"bench-{name}")
    member = member_of(bootstrap, f"bench-{name}", topic) if with_offsets else None
    commits_s: list[float] = []
    began_s = 0.0
    count = 0
    warm_s = time.monotonic() + seconds / 10
    while not began_s or time.monotonic() - began_s < seconds:
        if not began_s and time.monotonic() >= warm_s:
            began_s = time.monotonic()
            commits_s.clear()
        producer.begin_transaction()
        for number in range(records):
            producer.produce(topic, VALUE, partition=number % partitions)
        if member is not None:
            # What a loop that transforms records does: poll, produce, send offsets, commit.
            member.poll(0)
            count += 1
            offsets = [TopicPartition(topic, number, count) for number in range(partitions)]
            producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), WAIT_S)
        started_s = time.perf_counter()
        producer.commit_transaction(WAIT_S)
        commits_s.append(time.perf_counter() - started_s)
    took_s = time.monotonic() - began_s
    if member is not None:
        member.close()
    ordered = sorted(commits_s)
    return {
        f"{name}_commits_s": round(len(ordered) / took_s, 1),
        f"{name}_records_s": round(records * len(ordered) / took_s),
        f"{name}_p50_ms": round(statistics.median(ordered) * 1000, 2),
        f"{name}_p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))] * 1000, 2),
    }


def read(bootstrap: str, topic: str, isolation: str, count: int) -> float:
    """Return the records a second of one reading of all."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-read",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign(
        [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    )
    found, started_s = 0, time.monotonic()
    while found < count and time.monotonic() - started_s < WAIT_S:
        found += sum(message.error() is None for message in consumer.consume(10_000, 0.5))
    took_s = time.monotonic() - started_s
    consumer.close()
    if found < count:
        raise SystemExit(f"{isolation}: {found} of {count} records within {WAIT_S:g} s")
    return found / took_s


def fill(bootstrap: str, topic: str) -> int:
    """Write transactions, every tenth of them aborted; the number of committed records."""
    producer = producer_of(bootstrap, "bench-fill")
    committed = 0
    for number in range(READ_TRANSACTIONS):
        producer.begin_transaction()
        for record in range(READ_RECORDS):
            producer.produce(topic, VALUE, partition=record % PARTITIONS)
        if number % 10:
            producer.commit_transaction(WAIT_S)
            committed += READ_RECORDS
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
    return committed


def main() -> None:
    """Measure all cases, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each case")
    options = parser.parse_args()
    bootstrap = options.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = ("bench-transactions", "bench-committed")
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in topics]).values():
        future.result(WAIT_S)
    row: dict[str, Any] = {"ok": True}
    for case in CASES:
        row |= measure(bootstrap, topics[0], case, options.seconds)
    committed = fill(bootstrap, topics[1])
    every = READ_TRANSACTIONS * READ_RECORDS
    rates: dict[str, list[float]] = {"read_committed": [], "read_uncommitted": []}
    for _ in range(3):
        for isolation, found in rates.items():
            wanted = committed if isolation == "read_committed" else every
            found.append(read(bootstrap, topics[1], isolation, wanted))
    for isolation, found in rates.items():
        row[f"{isolation}_records_s"] = round(max(found[1:]))
    print(json.dumps(row))


if __name__ == "__main__":
    main()
