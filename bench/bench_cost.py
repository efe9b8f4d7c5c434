"""What a gigabyte costs in requests: puts, gets and bytes per GB produced and consumed.

    .venv-test/bin/python bench/bench_cost.py [--seconds 15] [--rates 2 20] [--json FILE]

Three real agents, one per zone, PostgreSQL and an S3 server on this machine; the proxy between the
agents and the S3 server counts. In each zone one producer (a third of the rate) and one consumer
that reads everything (fan-out 3). Requests are those on the wire, tries again, archive and all;
prices are lists (see `PRICES`), nothing is measured of a real bill. docs/cost.md explains.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from support.agents import Agents  # noqa: E402
from support.postgres import running_postgres  # noqa: E402
from support.s3 import S3Server, environment  # noqa: E402
from support.s3_proxy import S3ProxyProcess  # noqa: E402

ZONES = ("a", "b", "c")
PARTITIONS = 12
VALUE_BYTES = 10_000
GB = 1e9
PRICES = {
    # US dollars, AWS us-east-1, S3 Standard, list prices of 2025.
    "put": 0.005 / 1000,  # PUT, COPY, POST, LIST
    "get": 0.0004 / 1000,  # GET, HEAD and all others; DELETE is free
    "s3_gb_month": 0.023,
    "cross_zone_gb": 0.02,  # 0.01 out of one zone and 0.01 into the other
    "gp3_gb_month": 0.08,
}
PUTS = ("put", "part", "multipart_start", "multipart_end", "list")
GETS = ("get", "head", "other")


def producing(agents: Agents, zone: str, bytes_per_s: float, until_s: float) -> int:
    producer = Producer(
        {
            "bootstrap.servers": agents.bootstrap,
            "client.id": f"bench,penstock_zone={zone}",
            "linger.ms": 20,
            "batch.size": 1_000_000,
        }
    )
    # Not compressible: what is produced is what is stored.
    values = [random.Random(number).randbytes(VALUE_BYTES) for number in range(50)]
    started = time.monotonic()
    sent = count = 0
    while time.monotonic() < until_s:
        if sent > (time.monotonic() - started) * bytes_per_s:
            producer.poll(0.005)
            continue
        producer.produce("t", values[count % 50], partition=count % PARTITIONS)
        count += 1
        sent += VALUE_BYTES
    assert producer.flush(60) == 0
    return sent


class Reader(threading.Thread):
    """Reads all partitions from the start until it has seen `wanted` bytes."""

    def __init__(self, agents: Agents, zone: str) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(
            {
                "bootstrap.servers": agents.bootstrap,
                "client.id": f"bench,penstock_zone={zone}",
                "group.id": f"bench-{zone}",
                "fetch.wait.max.ms": 500,
            }
        )
        self.consumer.assign(
            [TopicPartition("t", number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        )
        self.received = 0
        self.wanted: int | None = None

    def run(self) -> None:
        while self.wanted is None or self.received < self.wanted:
            for message in self.consumer.consume(500, 0.2):
                if message.error() is None:
                    self.received += len(message.value())
        self.consumer.close()


def measure(folder: Path, rate_mb_s: float, seconds: float) -> dict[str, Any]:
    s3 = S3Server(folder / f"s3-{rate_mb_s}.log").start()
    try:
        with (
            running_postgres() as postgres,
            S3ProxyProcess(upstream=s3.endpoint, log=folder / "proxy.log") as proxy,
            Agents(
                folder / f"agents-{rate_mb_s}",
                postgres.url,
                f"s3://{s3.make_bucket()}/bench",
                environment=environment(proxy.endpoint),
                settings={"DEFAULT_PARTITIONS": str(PARTITIONS)},
                zones=ZONES,
            ) as agents,
        ):
            agents.folder.mkdir()
            for _ in ZONES:
                agents.add()
            agents.wait_live()
            warm = Producer({"bootstrap.servers": agents.bootstrap})
            warm.produce("t", b"", partition=0)
            assert warm.flush(20) == 0
            readers = [Reader(agents, zone) for zone in ZONES]
            for reader in readers:
                reader.start()
            proxy.clear_counts()
            until_s = time.monotonic() + seconds
            sent: list[int] = []
            threads = [
                threading.Thread(
                    target=lambda zone=zone: sent.append(
                        producing(agents, zone, rate_mb_s * 1e6 / len(ZONES), until_s)
                    )
                )
                for zone in ZONES
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for reader in readers:
                reader.wanted = sum(sent)
            for reader in readers:
                reader.join(120)
                assert not reader.is_alive(), f"{reader.received} of {sum(sent)} bytes"
            counts = proxy.counts()
            agents.stop()
    finally:
        s3.stop()
    return summary(rate_mb_s, sum(sent), counts)


def summary(rate_mb_s: float, produced_bytes: int, counts: dict[str, Any]) -> dict[str, Any]:
    operations = counts["operations"]
    per_gb = GB / produced_bytes
    puts = sum(operations.get(name, 0) for name in PUTS) * per_gb
    gets = sum(operations.get(name, 0) for name in GETS) * per_gb
    return {
        "rate_mb_s": rate_mb_s,
        "produced_mb": round(produced_bytes / 1e6, 1),
        "operations": operations,
        "puts_per_gb": round(puts),
        "gets_per_gb": round(gets),
        "bytes_put_per_byte": round(counts["bytes_up"] / produced_bytes, 3),
        "bytes_got_per_byte": round(counts["bytes_down"] / produced_bytes, 3),
        "dollars_per_gb": round(puts * PRICES["put"] + gets * PRICES["get"], 5),
    }


def kafka_dollars_per_gb(*, follower_fetching: bool, fan_out: int = 3) -> float:
    """Three zones, replication factor 3, clients and leaders spread evenly: traffic alone."""
    away = 2 / 3
    produced = away + 2  # to the leader, and to two followers
    consumed = 0.0 if follower_fetching else away * fan_out
    return (produced + consumed) * PRICES["cross_zone_gb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rates", type=float, nargs="+", default=[2, 20], help="MB/s in all")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-cost-") as folder:
        rows = [measure(Path(folder), rate, arguments.seconds) for rate in arguments.rates]
    results = {
        "penstock": rows,
        "kafka_dollars_per_gb": {
            "fetching from followers": round(kafka_dollars_per_gb(follower_fetching=True), 4),
            "fetching from leaders": round(kafka_dollars_per_gb(follower_fetching=False), 4),
        },
        "prices": PRICES,
    }
    print(json.dumps(results, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
