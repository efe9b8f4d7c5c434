"""What do tables cost: rows a second into an appended one, an upsert into a large one, freshness?

A report, not a test. An embedded server and the driver are processes of their own, and so are the
engine's workers, so that the driver's memory is the driver's alone.

    PYTHONPATH=src:tests python bench/bench_tables.py [--rows 10000000] [--keys 100000]

1. append: `--append-rows` records of 100 B (lz4) into a raw table;
2. load: `--rows` keys into an upserted table with `--buckets` buckets;
3. upsert: `--keys` of these keys, at random, changed by one run. Aim: within 2 GiB of the driver's
   memory (its peak RSS, whatever it did before);
4. fresh: from a produce to rows that PyIceberg reads, without the trigger's wait.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.kernels.encode import encode
from penstock.pipeline.api_messages import OutputObject, WriteRequest, WriteRun
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.tables.dead_letters import _numbers, _run
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from penstock.segment import build_segment, job_object_key
from penstock.system.randomness import SystemRandom
from support.server import ServerProcess

CHUNK = 250_000
PARTITIONS = 4
NOW_MS = 1_700_000_000_000
DRIVER = "--driver"


def load(
    client: PipelineClient, topic: str, keys: np.ndarray, value_bytes: int, batch: int
) -> None:
    """Write records by the API, a partition by key."""
    (state,) = client.topics(names=[topic]).topics
    chance = np.random.default_rng(batch)
    with JobLease(client, kind="write", name="bench") as job, ObjectAccess(client) as objects:
        for number, start in enumerate(range(0, len(keys), CHUNK)):
            part = keys[start : start + CHUNK]
            runs, batches_of = [], []
            for partition in range(PARTITIONS):
                mine = part[part % PARTITIONS == partition]
                if not len(mine):
                    continue
                texts = pa.array(mine).cast(pa.string()).cast(pa.binary())
                values = pa.Array.from_buffers(
                    pa.binary(),
                    len(mine),
                    [
                        None,
                        pa.py_buffer(np.arange(len(mine) + 1, dtype=np.int32) * value_bytes),
                        pa.py_buffer(chance.bytes(len(mine) * value_bytes)),
                    ],
                )
                batches = encode(
                    texts,
                    values,
                    np.full(len(mine), NOW_MS + batch),
                    codec="lz4",
                )
                batches_of.append(batches)
                runs.append(_run(state.topic_id, partition, batches))
            segment = build_segment(runs, offsets_final=False)
            key = job_object_key(job=job.job, name=SystemRandom().token_bytes(16).hex())
            objects.put(key, segment.parts)
            client.write(
                WriteRequest(
                    job=job.job,
                    writer_id=f"once-bench-{topic}",
                    batch_id=batch * 1_000_000 + number,
                    incarnation="bench",
                    objects=[OutputObject(key=key, size_bytes=segment.size_bytes)],
                    runs=[
                        WriteRun(
                            topic_id=state.topic_id,
                            partition=run.partition,
                            object=0,
                            position=position,
                            batches=_numbers(batches),
                        )
                        for run, position, batches in zip(
                            runs, segment.positions, batches_of, strict=True
                        )
                    ],
                )
            )


def drive(url: str, warehouse: str, topic: str, mode: str, buckets: int, workers: int) -> None:
    """One run in this process; its figures as JSON."""
    settings = TableSettings(
        topic=topic, catalog=CatalogSettings(warehouse=warehouse), mode=mode, buckets=buckets
    )
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        before = time.perf_counter()
        summary = run_table_once(client, LocalEngine(workers, processes=True), settings)
        wall_s = time.perf_counter() - before
    print(
        json.dumps(
            {
                "rows": summary.rows,
                "commits": summary.commits,
                "files": summary.files,
                "file_mb": round(summary.file_bytes / 1e6, 1),
                "log_mb": round(summary.bytes_read / 1e6, 1),
                "wall_s": round(wall_s, 2),
                "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "workers_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
                "workers_cpu_s": round(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), 2),
            }
        )
    )


def run(url: str, warehouse: Path, topic: str, mode: str, arguments: argparse.Namespace) -> dict:
    done = subprocess.run(
        [
            *(sys.executable, __file__, DRIVER, url, str(warehouse), topic, mode),
            *(str(arguments.buckets), str(arguments.workers)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main() -> None:
    if sys.argv[1:2] == [DRIVER]:
        url, warehouse, topic, mode, buckets, workers = sys.argv[2:]
        drive(url, warehouse, topic, mode, int(buckets), int(workers))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--append-rows", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--buckets", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tables-") as folder:
        root = Path(folder)
        server = ServerProcess(root / "data", root / "log")
        server.start()
        try:
            measure(server, root / "warehouse", arguments)
        finally:
            server.stop()


def measure(server: ServerProcess, warehouse: Path, arguments: argparse.Namespace) -> None:
    url = f"http://{server.http}"
    for topic in ("appended", "upserted", "fresh"):
        subprocess.run(
            [
                *(sys.executable, "-m", "penstock", "topic", "create", topic),
                *("--partitions", str(PARTITIONS), "--server", server.bootstrap),
            ],
            check=True,
            capture_output=True,
        )
    chance = np.random.default_rng(1)
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        load(client, "appended", np.arange(arguments.append_rows), 90, 1)
        print("append", run(url, warehouse, "appended", "append", arguments), flush=True)
        load(client, "upserted", np.arange(arguments.rows), 40, 1)
        print("load", run(url, warehouse, "upserted", "upsert", arguments), flush=True)
        changed = chance.choice(arguments.rows, arguments.keys, replace=False)
        load(client, "upserted", changed, 40, 2)
        print("upsert", run(url, warehouse, "upserted", "upsert", arguments), flush=True)
        settings = TableSettings(topic="fresh", catalog=CatalogSettings(warehouse=str(warehouse)))
        for number in range(4):
            before = time.perf_counter()
            load(client, "fresh", np.arange(1000), 90, number + 1)
            run_table_once(client, LocalEngine(2), settings)
            print(f"fresh {time.perf_counter() - before:.2f} s", flush=True)


if __name__ == "__main__":
    main()
