"""How late is a table at a trigger of 1 s while two bulk jobs are always running?

A report, not a test. A server and `penstock pipeline run` on Spark's local[2] are processes of
their own. This one fills a topic that is cleaned by key, and a table that maintenance joins, so
that compaction and maintenance begin again as soon as they end; and writes 100 records a second to
the topic whose table is looked at. A commit is late by the time from when its run was due (1 s
after the start of the run before) to its end.

    PYTHONPATH=src:tests python bench/bench_bulk_and_tables.py [--seconds 120] [--without-bulk]

Aim: never more than 5 s late. Compare commits by the same machine's figures of both ways, with and
without bulk jobs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from support.server import ServerProcess

TABLE, JOINED, CLEANED = "late", "joined", "cleaned"
TRIGGER_S = 1.0
WARM_UP_RUNS = 5
CLEANED_PARTITIONS = 8
VALUE = bytes(range(256)) * 4


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--without-bulk", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-bulk-") as folder:
        root = Path(folder)
        server = ServerProcess(root / "data", root / "server.log")
        server.start()
        over = threading.Event()
        try:
            create(server.bootstrap)
            writer = threading.Thread(target=write, args=(server.bootstrap, over))
            writer.start()
            lines = run(server, root, arguments.seconds, bulk=not arguments.without_bulk)
            over.set()
            writer.join()
        finally:
            over.set()
            server.stop()
    print(json.dumps(report(lines)))


def create(bootstrap: str) -> None:
    """Make the three topics."""
    table = {"penstock.table": "iceberg"}
    cleaned = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
    topics = [
        NewTopic(TABLE, 1, config=table),
        NewTopic(JOINED, 1, config=table),
        NewTopic(CLEANED, CLEANED_PARTITIONS, config=cleaned),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(60)


def write(bootstrap: str, over: threading.Event) -> None:
    """Write until told to end: about 8 MB a second to clean, and 100 records for each table."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    number = 0
    while not over.wait(0.1):
        for _ in range(10):
            for topic in (TABLE, JOINED):
                producer.produce(topic, b"%d" % number)
        for _ in range(800):
            number += 1
            producer.produce(
                CLEANED, VALUE, key=b"%d" % (number % 50_000), partition=number % CLEANED_PARTITIONS
            )
        producer.flush(60)


def run(
    server: ServerProcess, root: Path, seconds: float, *, bulk: bool
) -> list[dict[str, object]]:
    """Return what the pipeline said of each run."""
    interval = "0.01" if bulk else "0"
    command = [sys.executable, "-m", "penstock", "pipeline", "run", "--json", "--master"]
    command += ["local[2]", "--url", f"http://{server.http}", "--warehouse", str(root / "lake")]
    command += ["--table-interval", str(TRIGGER_S), "--compaction-interval", interval]
    command += ["--maintenance-interval", interval]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(seconds, process.terminate)
    timer.start()
    assert process.stdout is not None
    lines = [json.loads(line) for line in process.stdout]
    process.wait(120)
    timer.cancel()
    return lines


def report(lines: list[dict[str, object]]) -> dict[str, object]:
    """Return how late the table's runs were, and what else ran."""
    ends = []
    for line in lines:
        if line["job"] == f"table of {TABLE}":
            end_s = datetime.fromisoformat(str(line["time"])).timestamp()
            ends.append((end_s - float(str(line["seconds"])), end_s))
    late = [
        max(0.0, end_s - (before_s + TRIGGER_S)) for (before_s, _), (_, end_s) in pairwise(ends)
    ][WARM_UP_RUNS:]
    late.sort()
    bulk: dict[str, dict[str, float]] = {}
    for line in lines:
        if not str(line["job"]).startswith("table of"):
            row = bulk.setdefault(str(line["job"]), {"runs": 0, "seconds": 0.0})
            row["runs"] += 1
            row["seconds"] = round(row["seconds"] + float(str(line["seconds"])), 1)
    return {
        "runs": len(late),
        "late_s": {
            "median": round(late[len(late) // 2], 2),
            "p99": round(late[len(late) * 99 // 100], 2),
            "max": round(late[-1], 2),
        },
        "errors": sum(bool(line["error"]) for line in lines),
        "bulk": bulk,
    }


if __name__ == "__main__":
    main()
