"""How much does a producer with few requests in flight get out of the WAL of one server?

A report, not a test. Closed loops, as idempotent producers are (five requests in flight each): when
one is answered the next is appended half a millisecond later. Log, lane, WAL and uploads are those
of a server; sockets and the protocol are left out, so that the commit path alone is measured. The
disk is the real one, and the same with syncs that take longer, as those of network volumes do.

    PYTHONPATH=src:tests python bench/bench_in_flight.py [--sync-ms 0,2,5] [--producers 1]

Compare two commits by running it in a checkout of each, in turn: CPU per MB can be compared on a
machine that others use as well, the other figures need a quiet one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from typing_extensions import Buffer

from penstock.app.process import tune_interpreter
from penstock.log import LogSettings
from penstock.log.append.plan import PartitionAppend
from penstock.log.wals.claims import WalFolder
from penstock.model.errors import PenstockError
from penstock.model.ids import TopicKey, partition_key
from penstock.objects import open_store
from penstock.records.batch import check_batch
from penstock.state.answers import TopicCreated
from penstock.state.commands import CreateTopic
from penstock.system.believed_clock import BelievedClock
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice, PosixFile
from penstock.system.randomness import SystemRandom
from support.batches import ANY, make_batch
from support.own_agent import OwnAgent, open_own_agent

MIB = 1 << 20
PARTITIONS = 12
CLIENT_S = 0.0005
"""Between an answer and the next request of the same producer."""


class SlowFile(PosixFile):
    """A file whose synced writes take so much longer."""

    more_s = 0.0

    def write_synced(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write and sync; what is waited for is no CPU."""
        super().write_synced(position, buffers)
        time.sleep(self.more_s)


class SlowDevice(PosixDevice):
    """The folder of such files."""

    def __init__(self, root: Path, more_s: float) -> None:
        super().__init__(root)
        self._folder = root
        self._more_s = more_s

    def open(self, name: str, *, create: bool = False) -> PosixFile:
        """Open a file; see `PosixDevice`."""
        if not self._more_s or create:  # a file in the making is filled off the commit's way
            return super().open(name, create=create)
        super().open(name, create=create).close()
        file = SlowFile(os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC))
        file.more_s = self._more_s
        return file


async def opened(folder: Path, more_s: float, pool: ThreadPoolExecutor) -> OwnAgent:
    """A server's log at its defaults, without faces."""
    fatal: list[BaseException] = []
    clock = SystemClock()
    own = await open_own_agent(
        folder / "metadata.sqlite",
        wal_folder=WalFolder(
            device=SlowDevice(folder, more_s),
            random=SystemRandom(),
            file_bytes=64 * MIB,
            bytes_max=512 * MIB,
        ),
        clock=BelievedClock(clock, after_ms=0),
        random=SystemRandom(),
        limits=LogSettings(),
        store=open_store(folder / "objects", executor=pool),
        pool=pool,
        on_fatal=fatal.append,
    )
    await own.start()
    return own


class Load:
    """Producers in closed loops, until the time is over."""

    def __init__(self, own: OwnAgent, options: argparse.Namespace, topic_key: int) -> None:
        self._log = own.foundation.log
        self._batch = bytes(make_batch(*[os.urandom(1024) for _ in range(options.records)]))
        self._keys = [partition_key(TopicKey(topic_key), number) for number in range(PARTITIONS)]
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._end_s = 0.0
        self._open = 0
        self._over = asyncio.Event()
        self.waited_s: list[float] = []

    @property
    def megabytes(self) -> float:
        """Give the size of the batches that were answered, in MB (1e6 bytes)."""
        return len(self.waited_s) * len(self._batch) / 1e6

    async def run(self, seconds: float) -> None:
        """Return once all requests of so long a time are answered."""
        self.waited_s.clear()
        self._over.clear()
        self._end_s = self._loop.time() + seconds
        for producer in range(1, self._options.producers + 1):
            for _ in range(self._options.in_flight):
                self._send(producer)
        await self._over.wait()

    def _send(self, producer: int) -> None:
        # A copy, since the log writes offsets into what it was given.
        batch = check_batch(memoryview(bytearray(self._batch)), ANY, 0)
        key = self._keys[(len(self.waited_s) + self._open) % PARTITIONS]
        self._open += 1
        done = partial(self._done, producer, time.perf_counter())
        self._log.append(
            [PartitionAppend(key, batch)], timeout_ms=60_000, done=done, source=producer
        )

    def _done(self, producer: int, sent_s: float, error: PenstockError | None) -> None:
        if error is not None:
            raise error
        self._open -= 1
        self.waited_s.append(time.perf_counter() - sent_s)
        if self._loop.time() < self._end_s:
            self._loop.call_later(CLIENT_S, self._send, producer)
        elif not self._open:
            self._over.set()


async def measure(folder: Path, sync_ms: float, options: argparse.Namespace) -> str:
    """One line of the report."""
    with ThreadPoolExecutor(4) as pool:
        own = await opened(folder, sync_ms / 1000, pool)
        (answer,) = await own.foundation.log.commit(
            [CreateTopic(name="t", topic_id=bytes(15) + b"1", partitions=PARTITIONS)]
        )
        assert isinstance(answer, TopicCreated), answer
        load = Load(own, options, answer.topic_key)
        await load.run(options.warmup)
        cpu_s, started_s = time.process_time(), time.perf_counter()
        await load.run(options.seconds)
        seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
        await own.drain()
        own.close_files()
    waited = sorted(load.waited_s)
    p50_ms, p99_ms = (waited[int(len(waited) * share)] * 1000 for share in (0.5, 0.99))
    return (
        f"sync + {sync_ms:g} ms: {load.megabytes / seconds:6.1f} MB/s, acknowledged after p50"
        f" {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, {cpu_s * 1000 / load.megabytes:.2f} ms of CPU"
        " per MB"
    )


def main() -> None:
    """One line for each sync time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sync-ms", default="0,2,5", help="what is added to a sync, a comma list")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds; makes the WAL's files")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=5, help="requests of each producer")
    parser.add_argument("--records", type=int, default=900, help="of 1 KiB, in each request")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk in question")
    options = parser.parse_args()
    tune_interpreter()
    for sync_ms in options.sync_ms.split(","):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(asyncio.run(measure(Path(folder), float(sync_ms), options)), flush=True)


if __name__ == "__main__":
    main()
