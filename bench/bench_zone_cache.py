"""What the zone's cache saves, and what a block from a peer costs.

    .venv-test/bin/python bench/bench_zone_cache.py [--blocks 200] [--json FILE]

1. Three agents of one zone read the same blocks at once, over a store with S3's delays (30 ms
   median, 100 ms p99): reads of the store per block with the cache and without, and how long the
   last agent takes.
2. One agent reads blocks from another process over loopback: MB per second and per CPU second of
   both sides. To compare two commits run it on each, alternating; other work on the machine moves
   MB/s far more than MB per CPU second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import uvloop
from obstore.store import MemoryStore

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from penstock.objects.bucket import BucketStore  # noqa: E402
from penstock.peers.codec import BlockRange, encode_blocks  # noqa: E402
from penstock.peers.receive import Frame  # noqa: E402
from penstock.peers.zone import BLOCKS_PATH  # noqa: E402
from support.zone_rig import CountingStore, Zone, ZoneAgent  # noqa: E402

BLOCK_BYTES = 4 << 20
KEY = "segments/0"


class SlowStore(CountingStore):
    """Reads take what S3's take."""

    generator = random.Random(1)

    async def get_range(self, key: str, start: int, end: int) -> object:  # type: ignore[override]
        self.reads[key, start] += 1
        await asyncio.sleep(
            self.generator.lognormvariate(math.log(0.030), math.log(100 / 30) / 2.3263)
        )
        return await self.store.get_range(key, start, end)


async def filled(blocks: int) -> BucketStore:
    store = BucketStore(MemoryStore())
    piece = random.Random(2).randbytes(BLOCK_BYTES)
    await store.put(KEY, [piece] * blocks)
    return store


async def reads_per_block(blocks: int, *, cached: bool) -> dict[str, float]:
    store = SlowStore(await filled(blocks))
    agents = [
        ZoneAgent(number, store, block_bytes=BLOCK_BYTES, cache_bytes=1 << 30)
        for number in (1, 2, 3)
    ]

    async def read(agent: ZoneAgent) -> None:
        source = agent.store if cached else store
        # As a consumer's reader does: two blocks ahead.
        for at in range(0, blocks, 2):
            await asyncio.gather(
                *(
                    source.get_range(KEY, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
                    for number in range(at, min(at + 2, blocks))
                )
            )

    async with Zone(agents):
        started = time.perf_counter()
        await asyncio.gather(*(read(agent) for agent in agents))
        seconds = time.perf_counter() - started
    return {
        "reads_per_block": round(sum(store.reads.values()) / blocks, 3),
        "seconds": round(seconds, 2),
        "away": sum(agent.store.counts.away for agent in agents),
    }


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def serve(blocks: int) -> None:
    """The other process: owns everything, and tells its CPU seconds when asked."""
    agent = ZoneAgent(
        2, await filled(blocks), block_bytes=BLOCK_BYTES, cache_bytes=2 * blocks * BLOCK_BYTES
    )
    agent.http.start()
    print(json.dumps({"address": agent.address}), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while await reader.readline():
        print(json.dumps({"cpu_s": cpu_s()}), flush=True)
    await agent.close()


async def transfer(blocks: int, per_call: int) -> dict[str, float]:
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", "--blocks", str(blocks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]

        def theirs() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            return float(json.loads(process.stdout.readline())["cpu_s"])

        agent = ZoneAgent(1, await filled(1), block_bytes=BLOCK_BYTES)
        received = 0

        def on_frame(frame: Frame) -> None:
            nonlocal received
            received += len(frame.payload)

        async def ask(numbers: range) -> None:
            ranges = [
                BlockRange(KEY, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
                for number in numbers
            ]
            await agent.client.call(
                address,
                BLOCKS_PATH,
                encode_blocks(ranges),
                on_frame=on_frame,
                payload_bytes_max=[BLOCK_BYTES] * len(ranges),
            )

        for at in range(0, blocks, per_call):  # once to fill the owner's memory
            await ask(range(at, min(at + per_call, blocks)))
        received = 0
        ours_s, theirs_s, started = cpu_s(), theirs(), time.perf_counter()
        for at in range(0, blocks, per_call):
            await ask(range(at, min(at + per_call, blocks)))
        seconds = time.perf_counter() - started
        ours_s, theirs_s = cpu_s() - ours_s, theirs() - theirs_s
        await agent.close()
        process.stdin.close()
    megabytes = received / 1e6
    return {
        "blocks_per_call": per_call,
        "mb_per_s": round(megabytes / seconds),
        "asker_mb_per_cpu_s": round(megabytes / ours_s),
        "owner_mb_per_cpu_s": round(megabytes / theirs_s),
        "both_mb_per_cpu_s": round(megabytes / (ours_s + theirs_s)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.blocks))
        return
    results = {
        "block_bytes": BLOCK_BYTES,
        "blocks": arguments.blocks,
        "without": uvloop.run(reads_per_block(arguments.blocks, cached=False)),
        "with": uvloop.run(reads_per_block(arguments.blocks, cached=True)),
        "transfer": [uvloop.run(transfer(arguments.blocks, count)) for count in (1, 4, 16)],
    }
    print(json.dumps(results, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
