"""How many rows a CPU second of Spark reads from a topic, by our connector and by Spark's own.

    python bench/bench_connector.py                                   # ours, on this pyspark
    python bench/bench_connector.py --site DIR --jars DIR             # both, on pyspark 4.2.0

Spark's Kafka source needs a pyspark that has a jar of it (4.2.0 is the last). --site: a folder with
that pyspark, --jars: one with spark-sql-kafka-0-10_2.13 and what it needs; both are got by
tests/peers/spark_kafka/get_source.py. They then read the same topics in one session, local[2].

CPU is that of the JVM, Python's workers and the driver; the JVM's share of it, and the CPU of the
server, which serves the bytes to both, are given beside it. The ways to read take turns, so that a
busy machine is busy for all. Each figure is the median of REPEATS runs after WARM_UPS that aren't
counted, in which the JVM compiles what it runs: with one alone that was a fifth of its CPU.
A prototype of the connector reached 1.5 M rows of 100 B and 0.4 M rows of 1 KiB per CPU second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

PARTITIONS = 4
WARM_UPS = 3
REPEATS = 5
KEY_BYTES = 10
SHAPES = {"100 B": 100, "1 KiB": 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="of 100 B; a quarter of 1 KiB")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--objects", default="auto", help="auto, agent or ambient")
    parser.add_argument("--site", default="", help="a folder with another pyspark")
    parser.add_argument("--jars", default="", help="a folder with Spark's Kafka source")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(json.loads(options.measure))
        return
    from support.server import ServerProcess

    with tempfile.TemporaryDirectory(prefix="bench-connector-") as folder:
        server = ServerProcess(
            Path(folder) / "data", Path(folder) / "log", settings={"SEGMENT_AGE_MS": "1000"}
        )
        server.start()
        try:
            topics = {
                shape: fill(server.bootstrap, shape, options.rows, options.codec)
                for shape in SHAPES
            }
            wait_until_stored(server.http_port)
            task = {
                "topics": topics,
                "url": f"http://{server.http}",
                "bootstrap": server.bootstrap,
                "objects": options.objects,
                "jars": options.jars,
                "server": server.process.pid if server.process else 0,
            }
            paths = [options.site, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            subprocess.run(
                [sys.executable, __file__, "--measure", json.dumps(task)],
                env=environment,
                check=True,
            )
        finally:
            server.stop()


def fill(bootstrap: str, shape: str, rows: int, codec: str) -> list[Any]:
    """Make a topic of so many rows. Returns: its name and the rows."""
    from support.topics import Topics

    size = SHAPES[shape]
    rows = rows if size == 100 else rows // 4
    topic = Topics(bootstrap).make(PARTITIONS, name=f"bench-{size}")
    produce(bootstrap, topic, size, rows, codec)
    return [topic, rows]


def produce(bootstrap: str, topic: str, size: int, rows: int, codec: str) -> None:
    """Write so many rows."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.size": 1 << 17,
            "queue.buffering.max.messages": 200_000,
        }
    )
    # Half of each value is random, as much as a codec should find.
    noise = os.urandom(1 << 20)
    filler = b"the quick brown fox jumps over the lazy dog " * 40
    for row in range(rows):
        at = row * 61 % (len(noise) - size)
        value = noise[at : at + size // 2] + filler[: size - size // 2]
        while True:
            try:
                producer.produce(topic, value, b"%010d" % row, row % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if row % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def wait_until_stored(port: int) -> None:
    """Until all is in segments: what is read is history, not the WAL."""
    from penstock.pipeline.client import ClientOptions, PipelineClient

    with PipelineClient(ClientOptions(urls=(f"http://127.0.0.1:{port}",))) as client:
        deadline = time.monotonic() + 120
        while any(
            page.rows[at + 3] == -1 for page in client.runs() for at in range(0, len(page.rows), 8)
        ):
            assert time.monotonic() < deadline, "not all is in segments"
            time.sleep(0.5)


def measure(task: dict[str, Any]) -> None:
    """In a process of its own, with the pyspark that is to be measured."""
    import pyspark

    from penstock.pipeline.session import session

    conf = {"spark.jars": ",".join(map(str, Path(task["jars"]).glob("*.jar")))}
    spark = session("local[2]", memory="2g", conf=conf if task["jars"] else {})

    def ours(topic: str, **more: str) -> Any:
        reader = spark.read.format("penstock").option("url", task["url"])
        for name, value in ({"subscribe": topic, "objects": task["objects"]} | more).items():
            reader = reader.option(name, value)
        return reader.load()

    def kafka(topic: str) -> Any:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", task["bootstrap"])
        return reader.option("subscribe", topic).load()

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    print(f"pyspark {pyspark.__version__}, local[2], {PARTITIONS} partitions")
    heads = {"": 28, "wall s": 9, "Mrow/s": 9, "Mrow/cpu-s": 12, "MB/cpu-s": 10, "JVM": 9}
    print("".join(f"{head:>{width}}" for head, width in heads.items()) + f"{'server':>9}")
    for shape, (topic, rows) in task["topics"].items():
        runs: dict[str, Callable[[], None]] = {
            "penstock, all columns": lambda topic=topic: noop(ours(topic)),
            "penstock, columns=value": lambda topic=topic: noop(ours(topic, columns="value")),
            "penstock, columns=offset": lambda topic=topic: noop(ours(topic, columns="offset")),
        }
        if task["jars"]:
            runs["Spark's Kafka source"] = lambda topic=topic: noop(kafka(topic))
        rounds = [
            {name: spent(run, task["server"]) for name, run in runs.items()}
            for _ in range(WARM_UPS + REPEATS)
        ][WARM_UPS:]
        for name in runs:
            report(f"{shape} {name}", [one[name] for one in rounds], rows, SHAPES[shape])
    spark.stop()


class Spent(NamedTuple):
    """Seconds of one run: wall, then CPU of all of Spark, of the JVM alone, of the server."""

    wall: float
    cpu: float
    jvm: float
    server: float


def spent(run: Callable[[], None], server: int) -> Spent:
    jvm = next(
        child.pid for child in psutil.Process().children(recursive=True) if child.name() == "java"
    )

    def now() -> tuple[float, ...]:
        return (
            time.monotonic(),
            cpu_seconds(os.getpid()),
            sum(psutil.Process(jvm).cpu_times()[:2]),
            cpu_seconds(server),
        )

    before = now()
    run()
    return Spent(*(after - start for after, start in zip(now(), before, strict=True)))


def report(name: str, runs: list[Spent], rows: int, value_bytes: int) -> None:
    wall, cpu, jvm, server = (statistics.median(column) for column in zip(*runs, strict=True))
    print(
        f"{name:28} {wall:8.2f} {rows / wall / 1e6:8.2f} {rows / cpu / 1e6:11.2f}"
        f" {rows * (value_bytes + KEY_BYTES) / cpu / 1e6:9.0f} {jvm:6.2f} s {server:6.2f} s",
        flush=True,
    )


def cpu_seconds(pid: int) -> float:
    """Of a process and all that it has started, those that ended too."""
    total = 0.0
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        try:
            total += sum(one.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


if __name__ == "__main__":
    main()
