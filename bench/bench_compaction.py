"""What does compaction cost? Planning, joining, merging, cleaning by key, and a whole job.

A report, not a test. Compare two commits by running it at both, in turns, on one machine:

    PYTHONPATH=src:tests python bench/bench_compaction.py [plan] [join] [merge] [keyed] [job]
        [--gb 1 4] [--batch-records 16 256] [--runs 3]
        [--engine spark|local] [--access auto|ambient]
        [--folder DIR]

join and keyed run items' code over files in one process, as an executor on a machine with its
objects at hand does: reading, checking, copying and writing, without a server. job starts a server,
produces, and compacts through its API; the server's CPU is told beside the job's.

merge is the kernel alone, over one-record batches in memory: values are JSON of like fields, those
of 1 KiB with a quarter at random.

Aims: 1 million runs planned below 5 s; 0.8 GB per CPU second joined uncompressed, 0.3 by key with
lz4 (bytes as read); 1 M one-record batches of 100 B and 0.25 GB/s of 1 KiB merged, half of it from
compressed ones, into at most 1.15 times the bytes of batches of 500; CPU per GB at 1, 4 and 16 GB
within 20 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from penstock.pipeline.api_messages import PartitionState, RunPage, TopicState
from penstock.pipeline.compaction.items import (
    MIB,
    CompactionSettings,
    InputObject,
    ItemPartition,
    JoinItem,
    KeyedItem,
)
from penstock.pipeline.compaction.join import Arena, join_runs
from penstock.pipeline.compaction.plan import plan
from penstock.records.decode import CODECS, Record
from penstock.records.encode import encode_batch
from penstock.records.merging import Merging
from penstock.segment import RunDescriber, build_segment

GB = 1_000_000_000
PARTITIONS = 8
SEGMENT_BYTES = 8 * MIB
VALUE_BYTES = 1024
TOPIC_ID = "0" * 31 + "1"


def cpu_s() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Files:
    """`penstock.pipeline.compaction.items.ItemStore` over a folder; outputs are deleted by the next
    item's, so that what fits once fits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self.written_bytes = 0

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        del origin
        descriptor = os.open(self.folder / key, os.O_RDONLY)
        try:
            return os.pread(descriptor, end - start, start)
        finally:
            os.close(descriptor)

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        at = 0
        for key, start, end, _ in ranges:
            space[at : at + end - start] = self.get_range(key, start, end)
            at += end - start

    def put(self, parts: Sequence[Buffer]) -> str:
        path = self.folder / f"out-{len(self.written)}"
        with path.open("wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    view = view[file.write(view) :]
        self.written.append(path)
        self.written_bytes += path.stat().st_size
        return path.name

    def token_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def clear(self) -> None:
        """Delete what was put."""
        for path in self.written:
            path.unlink(missing_ok=True)
        self.written.clear()


# -- planning -------------------------------------------------------------------------------------


def pages(partitions: int, runs: int) -> tuple[list[RunPage], dict[str, TopicState]]:
    """A listing of so many runs, as the API pages it."""
    choice = random.Random(1)
    topics: dict[str, TopicState] = {}
    for number in range((partitions + 99) // 100):
        topic_id = f"{choice.getrandbits(128):032x}"
        state = PartitionState(log_start=0, high_watermark=1 << 40, size_bytes=0)
        topics[topic_id] = TopicState(
            name=f"t{number}",
            topic_id=topic_id,
            configs={"cleanup.policy": "delete"},
            partitions=[state] * 100,
        )
    topic_ids = list(topics)
    found: list[RunPage] = []
    places = itertools.product(range(partitions), range(runs // partitions))
    for lot in iter(lambda: list(itertools.islice(places, 10_000)), []):
        named: dict[tuple[str, int], int] = {}
        keys: dict[str, int] = {}
        rows: list[int] = []
        for partition, number in lot:
            place = topic_ids[partition // 100], partition % 100
            key = f"segments/aa/1-1-{number * 7919 % 20_000}.seg"
            rows += [
                named.setdefault(place, len(named)),
                10 * number,
                10 * number + 10,
                keys.setdefault(key, len(keys)),
                choice.randrange(SEGMENT_BYTES),
                choice.choice((200, 8_000, 400_000, MIB)),
                choice.randrange(10**9),
                3,
            ]
        found.append(
            RunPage(
                position=1,
                partitions=list(named),
                object_keys=list(keys),
                object_bytes=[SEGMENT_BYTES] * len(keys),
                object_raw=[1] * len(keys),
                object_origins=[""] * len(keys),
                rows=rows,
            )
        )
    return found, topics


def bench_plan() -> None:
    """Planning a million runs."""
    for partitions in (100, 10_000, 200_000):
        listed, topics = pages(partitions, 1_000_000)
        took = []
        for _ in range(3):
            before_s = cpu_s()
            planned = plan(listed, topics, CompactionSettings(), now_ms=10**9, whole=True)
            took.append(cpu_s() - before_s)
        print(
            f"plan   {planned.run_count:,} runs of {partitions:,} partitions: "
            f"{statistics.median(took):.2f} CPU s, {len(planned.items):,} items"
        )


# -- items ----------------------------------------------------------------------------------------


def batches(records: int, codec: str, *, keys: int) -> list[bytes]:
    """Some batches to choose from, with half of each value at random."""
    choice = random.Random(2)
    found = []
    for _ in range(64):
        found.append(
            bytes(
                encode_batch(
                    [
                        Record(
                            offset_delta=number,
                            timestamp=1_700_000_000_000 + number,
                            key=b"key-%010d" % choice.randrange(keys),
                            value=choice.randbytes(VALUE_BYTES // 2) + b"a" * (VALUE_BYTES // 2),
                            headers=(),
                        )
                        for number in range(records)
                    ],
                    codec=codec,
                )
            )
        )
    return found


def make_input(
    folder: Path, total_bytes: int, records: int, codec: str, *, keys: int = 10**9
) -> tuple[list[InputObject], list[list[list[int]]], int]:
    """Raw segments of all partitions; per segment each partition's input row; bytes in runs.

    Every 43rd run is in its object and named by nothing, as a producer's repeat is.
    """
    chosen = batches(records, codec, keys=keys)
    per_run = max(1, SEGMENT_BYTES // PARTITIONS // len(chosen[0]))
    objects: list[InputObject] = []
    rows: list[list[list[int]]] = []
    offsets = [0] * PARTITIONS
    size, run_number = 0, 0
    turns = itertools.cycle(range(len(chosen)))
    while size < total_bytes:
        runs = []
        for partition in range(PARTITIONS):
            body = bytearray(b"".join(chosen[next(turns)] for _ in range(per_run)))
            described = RunDescriber(base_offset=0, operation="make", subject="input")
            described.add(memoryview(body), raw_offset=0)
            runs.append(described.describe(bytes.fromhex(TOPIC_ID), partition))
        segment = build_segment(runs, offsets_final=False)
        key = f"in-{len(objects)}"
        with (folder / key).open("wb") as file:
            file.writelines(segment.parts)
        listed: list[list[int]] = []
        for partition, run in enumerate(runs):
            run_number += 1
            if run_number % 43 == 0:
                listed.append([])
                continue
            base = offsets[partition]
            offsets[partition] = base + run.record_count
            row = [base, offsets[partition], len(objects), segment.positions[partition], run.length]
            listed.append(row)
            size += run.length
        objects.append(InputObject(key, raw=True))
        rows.append(listed)
    return objects, rows, size


def join_items(
    objects: list[InputObject], rows: list[list[list[int]]], run_bytes: int
) -> Iterator[JoinItem]:
    """Items of about 256 MiB."""
    per_item = max(1, 256 * MIB // (run_bytes * PARTITIONS))
    for start in range(0, len(objects), per_item):
        yield JoinItem(
            objects=objects,
            partitions=[
                ItemPartition(
                    topic_id=TOPIC_ID,
                    partition=partition,
                    inputs=[
                        value
                        for listed in rows[start : start + per_item]
                        for value in listed[partition]
                    ],
                )
                for partition in range(PARTITIONS)
            ],
            reason="",
        )


def bench_join(
    folder: Path, sizes: Sequence[float], batch_records: Sequence[int], runs: int
) -> None:
    """Joining raw, uncompressed runs of 1 KiB values."""
    arena = Arena()
    for records, gigabytes in itertools.product(batch_records, sizes):
        objects, rows, size = make_input(folder, int(gigabytes * GB), records, "none")
        files = Files(folder)
        took: list[tuple[float, float]] = []
        batch_count = 0
        for _ in range(runs + 1):
            before_s, started = cpu_s(), time.monotonic()
            batch_count = 0
            for item in join_items(objects, rows, SEGMENT_BYTES // PARTITIONS):
                batch_count += join_runs(item, files, arena).batches
                files.clear()
            took.append((cpu_s() - before_s, time.monotonic() - started))
        cpu, wall = (statistics.median(each) for each in zip(*took[1:], strict=True))
        print(
            f"join   {size / GB:.1f} GB, {batch_count:,} batches of {records} records: "
            f"{size / GB / cpu:.2f} GB per CPU s, {1000 * cpu / size * GB:.0f} CPU ms/GB, "
            f"wall {size / GB / wall:.2f} GB/s, peak {peak_mib()} MiB",
            flush=True,
        )
        for each in objects:
            (folder / each.key).unlink()


def one_record_batches(count: int, value_bytes: int, codec: str, *, per: int = 1) -> list[bytes]:
    """So many records, `per` in each batch."""
    choice = random.Random(5)
    records = []
    for number in range(count):
        row = (
            f'{{"id":{number},"user":"u{choice.randrange(10_000)}",'
            f'"amount":{choice.getrandbits(30)},'
            f'"kind":"{choice.choice(("buy", "sell", "hold"))}",'
            f'"time":{1_700_000_000_000 + number}}}'
        ).encode()
        if value_bytes > 200:
            row += choice.randbytes(value_bytes // 8).hex().encode() + 20 * row
        records.append((row * (1 + value_bytes // len(row)))[:value_bytes])
    return [
        bytes(
            encode_batch(
                [
                    Record(
                        offset_delta=at,
                        timestamp=1_700_000_000_000 + start + at,
                        key=None,
                        value=value,
                        headers=(),
                    )
                    for at, value in enumerate(records[start : start + per])
                ],
                codec=codec,
                base_offset=start,
                producer_id=1,
                producer_epoch=0,
                base_sequence=start,
            )
        )
        for start in range(0, count, per)
    ]


def bench_merge(runs: int) -> None:
    """The kernel, by codecs and sizes."""
    from penstock.kernels.merging import Merger

    for value_bytes, count in ((100, 200_000), (1024, 40_000)):
        for codec in CODECS:
            found = b"".join(one_record_batches(count, value_bytes, codec))
            for target in ("lz4", "zstd"):
                merging = Merging(codec=CODECS.index(target), zstd_level=1)
                merger = Merger()
                seconds, size = [], 0
                for _ in range(runs + 1):
                    before = cpu_s()
                    size = sum(map(len, merger.merge(memoryview(found), merging)))
                    seconds.append(cpu_s() - before)
                best = min(seconds[1:])
                print(
                    f"merge {value_bytes} B, {codec} into {target}: "
                    f"{count / best / 1e6:.2f} M batches, "
                    f"{len(found) / best / GB:.3f} GB per CPU s; "
                    f"{len(found):,} bytes become {size:,}"
                )
        for target, level in (("lz4", 9), ("zstd", 3)):
            # Levels as producers have them.
            merging = Merging(codec=CODECS.index(target), zstd_level=level)
            small = b"".join(one_record_batches(count, value_bytes, target))
            merged = sum(map(len, Merger().merge(memoryview(small), merging)))
            batched = sum(map(len, one_record_batches(count, value_bytes, target, per=500)))
            print(
                f"merge {value_bytes} B, {target}: {len(small) / batched:.2f} times the bytes of "
                f"batches of 500 before, {merged / batched:.2f} after"
            )


def bench_keyed(
    folder: Path, sizes: Sequence[float], batch_records: Sequence[int], runs: int
) -> None:
    """Cleaning one partition of lz4 batches: by its size a tenth or so of its records stays."""
    from penstock.pipeline.compaction.keyed import clean_partition

    for records, gigabytes in itertools.product(batch_records, sizes):
        keys = int(gigabytes * GB / VALUE_BYTES / 10)
        objects, rows, _ = make_input(
            folder, int(gigabytes * GB), records, "lz4", keys=max(keys, 100)
        )
        # One partition's: those of the others follow it.
        inputs: list[int] = []
        offset = size = 0
        for listed in rows:
            for row in listed:
                if row:
                    count = row[1] - row[0]
                    inputs += [offset, offset + count, *row[2:]]
                    offset, size = offset + count, size + row[4]
        item = KeyedItem(
            objects=objects,
            partition=ItemPartition(topic_id=TOPIC_ID, partition=0, inputs=inputs),
            clean_end=0,
            cleanable_end=offset,
            young_ms=2**63 - 1,
            now_ms=1_800_000_000_000,
            delete_retention_ms=86_400_000,
            reason="",
        )
        files = Files(folder)
        took: list[tuple[float, float]] = []
        for _ in range(runs + 1):
            before_s, started = cpu_s(), time.monotonic()
            done = clean_partition(item, files)
            took.append((cpu_s() - before_s, time.monotonic() - started))
            files.clear()
        cpu, wall = (statistics.median(each) for each in zip(*took[1:], strict=True))
        print(
            f"keyed  {size / GB:.2f} GB of lz4, {offset:,} records in batches of {records}, "
            f"{done.dropped_records:,} dropped, {done.written_bytes / GB:.2f} GB written: "
            f"{size / GB / cpu:.2f} GB per CPU s, wall {size / GB / wall:.2f} GB/s, "
            f"peak {peak_mib()} MiB",
            flush=True,
        )
        for each in objects:
            (folder / each.key).unlink()


def peak_mib() -> int:
    """The most that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


# -- a whole job ----------------------------------------------------------------------------------


def bench_job(folder: Path, gigabytes: float, engine: str, access: str) -> None:
    """Compaction through the API of a server that has just taken the records."""
    import psutil
    from confluent_kafka import Producer

    from support.server import REPOSITORY, ServerProcess, run_penstock

    server = ServerProcess(
        folder / "data",
        folder / "server.log",
        {"SEGMENT_BYTES": "8MiB", "WAL_BYTES_MAX": "1GiB"},
    )
    server.start()
    try:
        created = run_penstock(
            "topic", "create", "t", f"--partitions={PARTITIONS}", f"--server={server.bootstrap}"
        )
        assert created.returncode == 0, created.stderr
        producer: Any = Producer(
            {"bootstrap.servers": server.bootstrap, "linger.ms": 20, "batch.size": 256 << 10}
        )
        values = [random.Random(n).randbytes(VALUE_BYTES) for n in range(64)]
        count = int(gigabytes * GB / VALUE_BYTES)
        for number in range(count):
            while True:
                try:
                    producer.produce("t", values[number % 64], partition=number // 64 % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(120) == 0
        # The age of a segment has passed.
        time.sleep(5)
        assert server.process is not None
        before_s = sum(psutil.Process(server.process.pid).cpu_times()[:2])
        children_s = children_cpu_s()
        command = [sys.executable, "-m", "penstock", "pipeline", "compact", "--json"]
        command += [f"--url=http://{server.http}", f"--engine={engine}"]
        command += [f"--access={access}"]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        job_s = children_cpu_s() - children_s
        server_s = sum(psutil.Process(server.process.pid).cpu_times()[:2]) - before_s
        print(
            f"job    {summary['read_bytes'] / GB:.2f} GB by {access}, {engine}: "
            f"{summary['runs_before']} runs -> {summary['runs_after']} in "
            f"{summary['seconds']:.1f} s, job {job_s:.1f} CPU s with its start, "
            f"server {server_s:.1f} CPU s",
            flush=True,
        )
    finally:
        server.kill()


def children_cpu_s() -> float:
    """CPU seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["plan", "join", "merge", "keyed", "job"])
    parser.add_argument("--gb", nargs="*", type=float, default=[1.0])
    parser.add_argument("--batch-records", nargs="*", type=int, default=[16, 256])
    parser.add_argument("--runs", type=int, default=3, help="after a first one, not counted")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--access", choices=("auto", "agent", "ambient"), default="auto")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-compaction-", dir=options.folder))
    try:
        if "plan" in options.what:
            bench_plan()
        if "join" in options.what:
            bench_join(folder, options.gb, options.batch_records, options.runs)
        if "merge" in options.what:
            bench_merge(options.runs)
        if "keyed" in options.what:
            bench_keyed(folder, options.gb, options.batch_records, options.runs)
        if "job" in options.what:
            bench_job(folder, options.gb[0], options.engine, options.access)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
