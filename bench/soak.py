"""Does a server's memory stay flat under ten minutes of load?

    python bench/soak.py [--server penstock] [--minutes 10]  -> one JSON line

Four producers of 1 KiB records (about 8 MB/s in all) and two consumers that read them, while
topics come and go; resident memory each second. "Flat" is a straight line fitted to the last four
fifths of the samples whose rise over that time is below 5 % of the median. Compare two commits by
running it in a checkout of each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from servers import Running, contenders

PRODUCERS = 4
RECORDS_PER_S = 2000
RECORD_BYTES = 1024
FLAT_PERCENT_MAX = 5.0


def produce(bootstrap: str, ending: threading.Event, counts: list[int]) -> None:
    """Write RECORDS_PER_S records of 1 KiB a second until told to end."""
    pool = os.urandom(1 << 20)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    started, sent = time.monotonic(), 0
    while not ending.is_set():
        due = int((time.monotonic() - started) * RECORDS_PER_S)
        while sent < due:
            offset = sent * 1031 % (len(pool) - RECORD_BYTES)
            try:
                producer.produce("soak", pool[offset : offset + RECORD_BYTES])
            except BufferError:
                break
            sent += 1
        producer.poll(0.01)
    producer.flush(30)
    counts.append(sent)


def consume(bootstrap: str, ending: threading.Event, counts: list[int]) -> None:
    """Read as a member of a group until told to end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "soak", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["soak"])
    got = 0
    while not ending.is_set():
        got += sum(m.error() is None for m in consumer.consume(2000, timeout=0.2))
    consumer.close()
    counts.append(got)


def slope_percent(samples: list[float]) -> float:
    """The rise of a fitted line over the samples, in percent of their median."""
    line = statistics.linear_regression(range(len(samples)), samples)
    return 100 * line.slope * len(samples) / statistics.median(samples)


def measure(name: str, minutes: float) -> dict[str, object]:
    """Run the load; figures of the resident memory in MB."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(contenders()[name], Path(folder) / "data", keep_data=True) as server,
    ):
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        # A gigabyte of retained data at most, so that retention works too.
        configs = {"retention.bytes": str(1 << 26), "segment.bytes": str(1 << 24)}
        admin.create_topics([NewTopic("soak", 12, 1, config=configs)])["soak"].result(30)
        idle_mb = server.rss_mb()
        ending = threading.Event()
        sent: list[int] = []
        got: list[int] = []
        threads = [
            threading.Thread(target=produce, args=(server.bootstrap, ending, sent))
            for _ in range(PRODUCERS)
        ]
        threads += [
            threading.Thread(target=consume, args=(server.bootstrap, ending, got)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        samples: list[float] = []
        end = time.monotonic() + minutes * 60
        turn = 0
        while time.monotonic() < end:
            samples.append(server.rss_mb())
            turn += 1
            if turn % 5 == 0:
                name_of_turn = f"passing-{turn}"
                futures = admin.create_topics([NewTopic(name_of_turn, 3, 1)])
                futures[name_of_turn].result(30)
                admin.delete_topics([name_of_turn])[name_of_turn].result(30)
            time.sleep(1)
        ending.set()
        for thread in threads:
            thread.join(60)
        rise = slope_percent(samples[len(samples) // 5 :])
        return {
            "contender": name,
            "minutes": minutes,
            "records_sent": sum(sent),
            "records_read": sum(got),
            "idle_rss_mb": round(idle_mb, 1),
            "median_rss_mb": round(statistics.median(samples), 1),
            "peak_rss_mb": round(max(samples), 1),
            "last_rss_mb": round(samples[-1], 1),
            "rise_percent": round(rise, 2),
            "flat": rise < FLAT_PERCENT_MAX,
            "ok": len(sent) == PRODUCERS and sum(got) > 0,
        }


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--server", default="penstock")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES", "10")))
    options = parser.parse_args()
    print(json.dumps(measure(options.server, options.minutes)))


if __name__ == "__main__":
    main()
