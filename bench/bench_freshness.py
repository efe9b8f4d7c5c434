"""How long after a produce does `penstock pipeline run` show a record in its table, and do its
small files stay few?

A report, not a test. A server and the pipeline, at its default triggers, are processes of their
own; this one produces a record twice a second and looks by PyIceberg twice a second what is there.

    PYTHONPATH=src:tests python bench/bench_freshness.py [--minutes 4] [--maintain-every 60]

Aim: under 60 s at the default trigger (30 s). `--maintain-every`: seconds between joinings of small
files, by default as in production, an hour.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from support.server import ServerProcess
from support.tables import Lake

TOPIC = "fresh"
STEP_S = 0.5


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--maintain-every", type=int, default=3600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-freshness-") as folder:
        root = Path(folder)
        server = ServerProcess(root / "data", root / "server.log")
        server.start()
        try:
            create(server.bootstrap)
            pipeline = start_pipeline(server, root, arguments.maintain_every)
            try:
                report = measure(server.bootstrap, Lake(root / "warehouse"), arguments.minutes)
            finally:
                pipeline.terminate()
                pipeline.wait(60)
        finally:
            server.stop()
    print(json.dumps(report))


def create(bootstrap: str) -> None:
    """One topic with a table."""
    config = {"penstock.table": "iceberg"}
    topics = [NewTopic(TOPIC, 2, config=config), NewTopic(f"{TOPIC}.dlq", 1)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(20)


def start_pipeline(server: ServerProcess, root: Path, maintain_s: int) -> subprocess.Popen[bytes]:
    """As a person starts it."""
    command = [sys.executable, "-m", "penstock", "pipeline", "run", "--warehouse"]
    command += [str(root / "warehouse"), "--url", f"http://{server.http}"]
    command += ["--maintenance-interval", str(maintain_s)]
    with (root / "pipeline.log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def measure(bootstrap: str, lake: Lake, minutes: float) -> dict[str, object]:
    """Produce and look in turns. Delays are from before a produce to rows that a scan gave."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    produced_s: dict[int, float] = {}
    delays_s: list[float] = []
    files: list[int] = []
    commits = seen = 0
    snapshot = None
    ends_s = time.monotonic() + minutes * 60
    while time.monotonic() < ends_s:
        number = len(produced_s)
        produced_s[number] = time.monotonic()
        producer.produce(TOPIC, key=b"%d" % number, value=b"%d" % number)
        producer.flush(10)
        found = current(lake)
        if found is not None and found.current_snapshot() != snapshot:
            snapshot = found.current_snapshot()
            values = found.scan(selected_fields=("value",)).to_arrow().column("value")
            now_s = time.monotonic()
            numbers = {int(value) for value in values.to_pylist()}
            new = [number for number in numbers if number >= seen]
            delays_s += [now_s - produced_s[number] for number in new]
            seen = max(numbers, default=-1) + 1
            commits += bool(new)
            files.append(sum(1 for _ in found.scan().plan_files()))
        time.sleep(STEP_S)
    delays_s.sort()
    return {
        "records": len(delays_s),
        "commits": commits,
        "delay_s": {
            "median": round(delays_s[len(delays_s) // 2], 1),
            "p99": round(delays_s[len(delays_s) * 99 // 100], 1),
            "max": round(delays_s[-1], 1),
        },
        "files_by_snapshot": files,
    }


def current(lake: Lake):
    """The table, once there is one."""
    from pyiceberg.exceptions import NoSuchTableError

    if not (lake.folder / "catalog.db").exists():
        return None
    try:
        return lake.table(TOPIC)
    except (NoSuchTableError, OSError):
        return None


if __name__ == "__main__":
    main()
