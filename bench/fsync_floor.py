"""How long does one durable append take on this disk: 4 KiB written and fdatasynced?

    python bench/fsync_floor.py [--folder DIR] [--count 2000]

It is the floor of any acknowledgement with fsync; compare.py measures it in each round, since the
disk of a shared machine is not the same disk an hour later. Two commits needn't be compared: no
code of ours runs here.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path


def percentile(values: list[float], percent: float) -> float:
    """Nearest rank of sorted values."""
    return values[min(len(values) - 1, max(0, round(len(values) * percent / 100) - 1))]


def measure(folder: Path, count: int = 2000, *, pause_s: float = 0.001) -> dict[str, float]:
    """Milliseconds of an append with fdatasync to a preallocated file, as a WAL does it.

    Args:
        folder: on the disk in question.
        pause_s: between appends: a steady 1,000 a second, not a saturated disk.
    """
    times = []
    block = os.urandom(4096)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, 4096 * count)
        # fdatasync is not everywhere (macOS).
        sync = getattr(os, "fdatasync", os.fsync)
        sync(descriptor)
        for index in range(count):
            started = time.perf_counter()
            os.pwrite(descriptor, block, index * 4096)
            sync(descriptor)
            times.append((time.perf_counter() - started) * 1000)
            time.sleep(pause_s)
    times.sort()
    return {"p50_ms": percentile(times, 50), "p99_ms": percentile(times, 99), "count": count}


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    print(json.dumps(measure(options.folder, options.count)))


if __name__ == "__main__":
    main()
