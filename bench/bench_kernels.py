"""How many records a second of CPU are decoded, encoded, and looked into by key?

A report, not a test. To compare two commits, run it in a checkout of each, at times in turn:

    PYTHONPATH=src python bench/bench_kernels.py [--rounds 5] [--json FILE]

One thread, CPU seconds of the process, the best of the rounds; regions of 8 MiB, as the connector
reads them. MB/s counts keys and values. `keys` indexes batches by hashes of keys, `retain` also
writes every second record anew. The last lines say what a new process pays before its first
record: with machine code in the cache, and without.

Aims: decode 6 M records/s of 100 B and 1.4 GB/s of 1 KiB, uncompressed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.kernels.decode import ALL, decode
from penstock.kernels.encode import Rows, encode_rows
from penstock.kernels.keys import KeyChunk, key_chunks, retain

REGION_BYTES = 8 << 20
KEY_BYTES = 10
SHAPES = ((100, 100), (100, 1000), (1024, 16), (1024, 500))
CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
FIRST = """
import time
before = time.perf_counter()
from penstock.kernels.decode import decode
imported = time.perf_counter()
decode({batch!r})
print(imported - before, time.perf_counter() - imported)
"""


def columns(value_bytes: int) -> tuple[Rows, int]:
    """Half of each value is random, as data is that compresses by half."""
    count = REGION_BYTES // (value_bytes + KEY_BYTES + 12)
    chance = np.random.default_rng(1)
    half = value_bytes // 2
    values = [chance.bytes(half) + b"x" * (value_bytes - half) for _ in range(count)]
    keys = [b"%010d" % number for number in range(count)]
    times = np.arange(count, dtype=np.int64) + 1_700_000_000_000
    return Rows.of(pa.array(keys), pa.array(values), times), count


def best_s(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the fastest round, after one that warms up."""
    work()
    found = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        work()
        found = min(found, time.process_time() - before)
    return found


def measure(value_bytes: int, batch_records: int, codec: str, rounds: int) -> dict[str, object]:
    """Records per CPU second of each kernel."""
    rows, count = columns(value_bytes)

    def encoded() -> list[memoryview]:
        batches = encode_rows(rows, codec=codec, batch_records=batch_records, batch_bytes=1 << 20)
        return [batch.body for batch in batches]

    region = b"".join(encoded())
    keep = np.arange(count) % 2 == 0

    def indexed() -> KeyChunk:
        """All of the region in one chunk."""
        return next(key_chunks(region, (1, 2), chunk_bytes=1 << 62, subject="batches"))

    def keyed() -> None:
        retain(indexed(), keep, keep_empty=False)

    whole = decode(region)
    assert whole.record_count == count
    times = {
        "encode": best_s(encoded, rounds),
        "decode": best_s(lambda: decode(region, columns=ALL, headers=False), rounds),
        "decode+headers": best_s(lambda: decode(region), rounds),
        "offsets only": best_s(lambda: decode(region, columns=("offset",), headers=False), rounds),
        "keys": best_s(indexed, rounds),
        "retain": best_s(keyed, rounds),
    }
    return {
        "value_bytes": value_bytes,
        "batch_records": batch_records,
        "codec": codec,
        "records": count,
        "region_bytes": len(region),
        "records_per_cpu_s": {name: count / cpu_s for name, cpu_s in times.items()},
        "decode_mb_per_cpu_s": count * (value_bytes + KEY_BYTES) / times["decode"] / 1e6,
    }


def first_s(folder: str) -> tuple[float, float]:
    """Wall seconds of a new process: import, first decode."""
    rows, _ = columns(100)
    batch = bytes(encode_rows(rows, rows=np.arange(5), codec="none")[0].body)
    environment = dict(os.environ) | {"PENSTOCK_KERNEL_CACHE": folder}
    done = subprocess.run(
        [sys.executable, "-c", FIRST.format(batch=batch)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    imported, first = map(float, done.stdout.split())
    return imported, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("M records per CPU second")
    print(
        "| value x records, codec | encode | decode | MB/s | + headers | offsets | keys | retain |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    results = []
    for value_bytes, batch_records in SHAPES:
        for codec in CODECS:
            result = measure(value_bytes, batch_records, codec, options.rounds)
            results.append(result)
            rates = result["records_per_cpu_s"]
            assert isinstance(rates, dict)
            cells = [f"{rates[name] / 1e6:.2f}" for name in rates]
            cells.insert(2, f"{result['decode_mb_per_cpu_s']:.0f}")
            print(
                f"| {value_bytes} B x {batch_records} {codec} | {' | '.join(cells)} |", flush=True
            )
    starts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, place in (("no cache", "off"), ("filling the cache", folder), ("cache", folder)):
            starts[name] = first_s(place)
            print(f"{name}: import {starts[name][0]:.2f} s, first decode {starts[name][1]:.2f} s")
    if options.json:
        options.json.write_text(json.dumps({"kernels": results, "starts": starts}, indent=1))


if __name__ == "__main__":
    main()
