"""What one view of table and log costs beside its two reads apart: the table, and the log's part.

    python bench/bench_union_view.py --rows 10000000 --tail 100000

Each counts its rows, with the column `offset` alone: in Spark (local[2], one warm session), and as
Arrow in this process (`penstock.tables`). CPU is that of this process and its children, the
server's left out; the three take turns, and the figures are medians of REPEATS after one that isn't
counted. Each round loads its view again, so that pinning and planning count, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "bench")]

REPEATS = 3
PARTITIONS = 4
TOPIC = "bench-100"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="in the table")
    parser.add_argument("--tail", type=int, default=100_000, help="in the log beyond it")
    options = parser.parse_args()
    from bench_connector import fill, produce
    from penstock.pipeline.client import ClientOptions, PipelineClient
    from penstock.pipeline.engine import LocalEngine
    from penstock.pipeline.session import session
    from penstock.pipeline.tables.job import run_table_once
    from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
    from support.server import ServerProcess

    with tempfile.TemporaryDirectory(prefix="bench-union-") as folder:
        server = ServerProcess(Path(folder) / "data", Path(folder) / "log")
        server.start()
        try:
            url, warehouse = f"http://{server.http}", f"{folder}/warehouse"
            fill(server.bootstrap, "100 B", options.rows, "lz4")
            settings = TableSettings(topic=TOPIC, catalog=CatalogSettings(warehouse=warehouse))
            with PipelineClient(ClientOptions(urls=(url,))) as client:
                assert run_table_once(client, LocalEngine(2), settings).rows == options.rows
                (topic,) = client.topics(names=[TOPIC]).topics
                ends = {str(n): one.high_watermark for n, one in enumerate(topic.partitions)}
            produce(server.bootstrap, TOPIC, 100, options.tail, "lz4")
            spark = session("local[2]")
            assert server.process is not None
            compare(reads(spark, url, warehouse, ends), options, server.process.pid)
            spark.stop()
        finally:
            server.stop()


def reads(
    spark: Any, url: str, warehouse: str, ends: dict[str, int]
) -> dict[str, tuple[Callable[[], int], str]]:
    """The reads to compare, and which rows they count."""
    import penstock.tables

    def frame(**given: str) -> int:
        reader = spark.read.format("penstock").option("subscribe", TOPIC)
        return int(reader.options(columns="offset", **given).load().count())

    starts = json.dumps({TOPIC: ends})
    arrow: dict[str, Any] = {"url": url, "warehouse": warehouse, "columns": ["offset"]}
    return {
        "Spark, the table": (lambda: frame(view="table", warehouse=warehouse), "rows"),
        "Spark, the log's part": (lambda: frame(url=url, startingOffsets=starts), "tail"),
        "Spark, the view": (
            lambda: frame(view="table+log", url=url, warehouse=warehouse),
            "both",
        ),
        "Arrow, the view": (lambda: penstock.tables.read(TOPIC, **arrow).num_rows, "both"),
    }


def compare(found: dict[str, tuple[Callable[[], int], str]], options: Any, server_pid: int) -> None:
    from bench_connector import cpu_seconds

    def cpu_s() -> float:
        return cpu_seconds(os.getpid()) - cpu_seconds(server_pid)

    counts = {
        "rows": options.rows,
        "tail": options.tail,
        "both": options.rows + options.tail,
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for _ in range(1 + REPEATS):
        for name, (read, of) in found.items():
            began, cpu = time.monotonic(), cpu_s()
            assert read() == counts[of], name
            figures[name].append((time.monotonic() - began, cpu_s() - cpu))
    for name, pairs in figures.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
        longest = max(wall for wall, _ in pairs[1:])
        print(f"{name:24} CPU {cpu:6.2f} s   wall {wall:6.2f} s, {longest:.2f} s at most")


if __name__ == "__main__":
    main()
