"""How late do readers get records that many idempotent producers send one by one, in object mode?

A report with a limit: it ends with status 1 if the 99th percentile from before a record is sent to
when a reader has it is above `--limit-s`. Two seconds is what WarpStream publishes for clients that
batch badly. One agent's log on the journal and the store of `bench_object_mode.py`, whose entries
and puts are as slow as PostgreSQL's and S3's. Each producer sends batches of one record with its
own id and sequence, a few in flight, and the next as soon as one is acknowledged; a reader of each
partition is woken by commits, as a Fetch that waits is.

    PYTHONPATH=src:bench:tests python bench/bench_badly_batched.py [--producers 1000] [--seconds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path

from crc32c import crc32c

from bench_object_mode import ANY, PARTITIONS, Bench
from penstock.log.append.plan import PartitionAppend
from penstock.log.fetch.reader import Missing
from penstock.log.fetch.waiters import Waiter
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch

TIME = struct.Struct(">d")
PRODUCER = struct.Struct(">qhi")
PRODUCER_AT = 43
CRC_AT, CRC_FROM = 17, 21
READ_BYTES = 8 << 20


class Batches:
    """Batches of one record, which says when it was sent."""

    def __init__(self, value_bytes: int) -> None:
        value = bytes(TIME.size) + bytes(value_bytes)
        record = Record(offset_delta=0, timestamp=0, key=None, value=value, headers=())
        self._template = bytes(encode_batch([record], codec="none"))
        # After the value there is the count of headers, one byte.
        self.time_at = len(self._template) - 1 - len(value)
        self.length = len(self._template)

    def make(self, producer_id: int, epoch: int, sequence: int) -> memoryview:
        """The next of a producer, sent now."""
        batch = bytearray(self._template)
        PRODUCER.pack_into(batch, PRODUCER_AT, producer_id, epoch, sequence)
        TIME.pack_into(batch, self.time_at, time.perf_counter())
        batch[CRC_AT:CRC_FROM] = crc32c(bytes(batch[CRC_FROM:])).to_bytes(4, "big")
        return memoryview(batch)


class Reader:
    """Reads one partition as commits come."""

    def __init__(self, bench: Bench, key: PartitionKey, batches: Batches) -> None:
        self._log, self._key, self._batches = bench.log, key, batches
        self._offset = 0
        self.late_s: list[float] = []
        self._log.waiters.add(Waiter([key], self.wake))

    def wake(self) -> None:
        """Take what is there."""
        length = self._batches.length
        while True:
            found = self._log.read(self._key, self._offset, READ_BYTES, may_load=False)
            if found is None or isinstance(found, Missing) or not found.length:
                return
            now_s = time.perf_counter()
            data = b"".join(found.views)
            assert not len(data) % length
            for start in range(0, len(data), length):
                (sent_s,) = TIME.unpack_from(data, start + self._batches.time_at)
                self.late_s.append(now_s - sent_s)
                self._offset += 1


async def produce(
    bench: Bench, number: int, batches: Batches, until_s: float, in_flight: int
) -> None:
    """One producer, with several requests in flight, to one partition."""
    loop = asyncio.get_running_loop()
    producer_id, epoch = await bench.log.allocate_producer_id()
    key = bench.keys[number % PARTITIONS]
    room = asyncio.Semaphore(in_flight)
    sequence = 0

    def done(error: PenstockError | None) -> None:
        if error is not None:
            raise error
        room.release()

    while loop.time() < until_s:
        await room.acquire()
        batch = check_batch(batches.make(producer_id, epoch, sequence), ANY, 0)
        sequence += 1
        bench.log.append([PartitionAppend(key, batch)], timeout_ms=30_000, done=done, source=number)
    for _ in range(in_flight):
        await room.acquire()


async def run(arguments: argparse.Namespace) -> float:
    """The 99th percentile, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments)
        await bench.start()
        batches = Batches(arguments.bytes)
        readers = [Reader(bench, key, batches) for key in bench.keys]
        before = resource.getrusage(resource.RUSAGE_SELF)
        until_s = asyncio.get_running_loop().time() + arguments.seconds
        await asyncio.gather(
            *(
                produce(bench, number, batches, until_s, arguments.in_flight)
                for number in range(arguments.producers)
            )
        )
        await asyncio.sleep(0.1)
        after = resource.getrusage(resource.RUSAGE_SELF)
        await bench.stop()
    late_s = sorted(late for reader in readers for late in reader.late_s)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    p99_s = late_s[int(0.99 * (len(late_s) - 1))]
    print(
        f"{arguments.producers:,} idempotent producers, {arguments.in_flight} in flight, "
        f"{len(late_s):,} records of one batch each in {arguments.seconds:g} s, "
        f"{len(bench.store.put_s):,} puts, {cpu_s / len(late_s) * 1e6:.0f} us CPU a record; "
        f"to the reader: p50 {late_s[len(late_s) // 2]:.3f} s, p99 {p99_s:.3f} s, "
        f"most {late_s[-1]:.3f} s"
    )
    return p99_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--producers", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--interval-ms", type=int, default=250)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.durability = "object"
    p99_s = asyncio.run(run(arguments))
    if p99_s > arguments.limit_s:
        print(f"above the limit of {arguments.limit_s:g} s")
        sys.exit(1)


if __name__ == "__main__":
    main()
