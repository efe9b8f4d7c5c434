"""What does it cost to check what is read? First and second reads of a segment, and unchecked ones.

A report, not a test. Compare two commits by running it at both, in turns, on one machine:

    PYTHONPATH=src:tests python bench/bench_checked_reads.py [--mb 64] [--fetch-bytes 1048576]

One run of one partition in a local object, read in this process. Times are CPU
(`time.process_time`, all threads), so that other work on the machine hardly counts. `first` reads
all of it, fetch by fetch, and checks it; `second` reads it again; `unchecked` reads it again
without looking up what is checked. Second and unchecked reads take turns; the figures are medians
of the rounds. Regions are what is sent by `sendfile` (the sending is not part of it); blocks are
what clients get over TLS, and all that comes from a bucket.

Aim: a second read costs less than 3 % more than an unchecked one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.checked import CheckedRanges
from penstock.log.fetch.object_runs import ObjectRuns
from penstock.log.fetch.regions import FileRuns
from penstock.log.settings import LogSettings
from penstock.model.ids import PartitionKey
from penstock.objects.local import LocalStore
from penstock.records.batch import patch_base_offset
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.sums import run_sum
from penstock.state.rows import StoredRun
from penstock.system.files import PosixDevice
from support.checks import run_checks

MIB = 1 << 20
ALL = 1 << 62
KEY = PartitionKey(1)


class Everything(CheckedRanges):
    """Takes all bytes for checked."""

    def end_of(self, *_: Any) -> int:
        return ALL


def batches_of(value_bytes: int, batch_records: int, total: int) -> tuple[bytes, int, int]:
    """Adjacent batches, how many, and the offset after the last record."""
    value = random.Random(1).randbytes(value_bytes)
    records = [
        Record(offset_delta=number, timestamp=number, key=None, value=value, headers=())
        for number in range(batch_records)
    ]
    batch = bytearray(encode_batch(records))
    count = max(2, total // len(batch))
    parts = []
    for number in range(count):
        patch_base_offset(memoryview(batch), number * batch_records, 0)
        parts.append(bytes(batch))
    return b"".join(parts), count, count * batch_records


async def read_all(read: Callable[[int], Any], run: StoredRun) -> tuple[float, int]:
    """CPU seconds of reading all records, and the fetches that had something."""
    offset = fetches = 0
    started_s = time.process_time()
    while offset < run.end_offset:
        found = read(offset)
        if isinstance(found, asyncio.Task):
            await found
            continue
        offset = found.end_offset
        fetches += 1
    return time.process_time() - started_s, fetches


async def measure(
    folder: Path, value_bytes: int, batch_records: int, given: argparse.Namespace
) -> None:
    data, count, end_offset = batches_of(value_bytes, batch_records, int(given.mb * 1e6))
    with ThreadPoolExecutor(4) as pool:
        store = LocalStore(PosixDevice(folder), executor=pool)
        name = f"{value_bytes}-{batch_records}"
        await store.put(name, [data])
        run = StoredRun(KEY, 0, end_offset, 0, name, 0, len(data), 0, count, len(data))
        run = StoredRun(*vars_of(run), sum=run_sum(memoryview(data), 0))
        checks = run_checks(pool)
        checks.seed_of = lambda _: 0
        limits = LogSettings(block_bytes=4 * MIB, block_cache_bytes=2 * len(data) + 64 * MIB)
        files = FileRuns(store, stretch_bytes=limits.block_bytes, checks=checks)
        objects = ObjectRuns(
            blocks=BlockCache(limits), store=store, limits=limits, checks=checks, load_failed=failed
        )

        def regions(offset: int) -> Any:
            return files.read(KEY, run, offset, given.fetch_bytes, first=True, may_load=True)

        def blocks(offset: int) -> Any:
            return objects.read(run, offset, given.fetch_bytes, first=True, may_load=True)

        reads: tuple[tuple[str, Any, Any], ...] = (
            ("regions", regions, files),
            ("blocks", blocks, objects),
        )
        for kind, read, runs in reads:
            first_s, _ = await read_all(read, run)
            checked, everything = vars(runs)["_checked"], Everything(again_s=1)
            seconds: dict[bool, list[float]] = {True: [], False: []}
            fetches = 1
            for number in range(2 * given.rounds):
                looks = bool(number % 2)
                vars(runs)["_checked"] = checked if looks else everything
                spent_s, fetches = await read_all(read, run)
                seconds[looks].append(spent_s)
            second, unchecked = (
                1e6 * statistics.median(seconds[k]) / fetches for k in (True, False)
            )
            print(
                f"{kind:8} {value_bytes:>8} B x {batch_records:<4} {len(data) / 1e6:7.1f} MB"
                f"  first {len(data) / 1e6 / first_s:7.0f} MB per CPU s"
                f"  second {second:8.1f} us a fetch, unchecked {unchecked:8.1f}"
                f"  ({fetches} fetches)"
            )


def vars_of(run: StoredRun) -> list[Any]:
    """The fields that are given by position here."""
    return [getattr(run, name) for name in run.__struct_fields__[:10]]


async def failed(_run: StoredRun, _offset: int, error: Exception) -> Any:
    raise error


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--mb", type=float, default=64)
    arguments.add_argument("--fetch-bytes", type=int, default=MIB)
    arguments.add_argument("--rounds", type=int, default=9)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for value_bytes, batch_records in (
            (100, 1),
            (100, 100),
            (1024, 1),
            (1024, 64),
            (1_000_000, 1),
        ):
            asyncio.run(measure(Path(folder), value_bytes, batch_records, given))


if __name__ == "__main__":
    main()
