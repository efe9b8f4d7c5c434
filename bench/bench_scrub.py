"""How much does the scrubber read and check per CPU second, by the size of batches?

    PYTHONPATH=src:tests python bench/bench_scrub.py [--megabytes 256]

All of one partition in segment objects of local files, read past every cache. The limit is crc32c
over the same bytes in memory, in the same run. The aim is 2 GB per CPU second.
"""

import argparse
import tempfile
import time
from pathlib import Path

from crc32c import crc32c

from penstock.model.ids import PartitionKey
from support.log_rig import Rig, run_rig

RECORD_BYTES = 1_000


async def fill(rig: Rig, key: PartitionKey, batch_bytes: int, total: int) -> None:
    """Append batches of records of 1 KB."""
    values = [bytes([n % 251]) * RECORD_BYTES for n in range(max(1, batch_bytes // RECORD_BYTES))]
    size = sum(map(len, values))
    for number in range(total // size):
        await rig.append(key, *values)
        if number * size % (4 << 20) < size:
            await rig.drain()


def main() -> None:
    """One line per size of batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    options = parser.parse_args()

    for batch_bytes in (1_000, 16_000, 256_000, 900_000):

        async def measure(rig: Rig, batch_bytes: int = batch_bytes) -> None:
            (key,) = await rig.topic("t")
            total = min(options.megabytes << 20, batch_bytes * 20_000)
            await fill(rig, key, batch_bytes, total)
            await rig.drain()
            scrubber = rig.log.scrubber
            await scrubber.run_once()
            began_s = time.process_time()
            while not scrubber.pass_count:
                rig.clock.advance(1)
                await scrubber.run_once()
            cpu_s = time.process_time() - began_s
            data = memoryview(bytes(1 << 20))
            began_s = time.process_time()
            for _ in range(200):
                crc32c(data)
            limit = 200 * len(data) / (time.process_time() - began_s)
            speed = scrubber.read_bytes / cpu_s
            print(
                f"batches of {batch_bytes:>7,} B: {speed / 1e9:5.2f} GB per CPU s,"
                f" {speed / limit:5.1%} of crc32c alone",
                flush=True,
            )

        with tempfile.TemporaryDirectory() as folder:
            run_rig(Path(folder), measure, scrub_bytes_per_s=1 << 30)


if __name__ == "__main__":
    main()
