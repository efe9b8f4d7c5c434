"""How long does a produce take in object mode, from one producer and from many?

A report, not a test. One agent of a cluster, assembled as a server does it, on a journal whose
entries take 1 to 3 ms, as a PostgreSQL's do, and a store in memory whose puts are delayed as S3's
are: log-normal, median 30 ms, 99th percentile 100 ms. Producers keep one request in flight, or as
many as `--in-flight` says. The latency should be the flush interval (a lone producer waits all of
it; of many, each half of it on average), a put, and less than 10 ms for the rest.

    PYTHONPATH=src:tests python bench/bench_object_mode.py [--seconds 10] [--interval-ms 250]
    PYTHONPATH=src:tests python bench/bench_object_mode.py --durability wal
"""

import argparse
import asyncio
import math
import random
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from typing_extensions import Buffer

from penstock.agent.assembly import assemble
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.groups.settings import GroupSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log.append.plan import PartitionAppend
from penstock.log.archive import ArchiveSettings
from penstock.log.settings import LogSettings
from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.order.protocol import AgentIdentity
from penstock.ports.objects import ObjectInfo
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import TopicCreated
from penstock.state.commands import CreateTopic
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from support.agent_ports import cluster_ports
from support.batches import ANY
from support.simulated.journal import JournalFaults, SimulatedJournal

PUT_MEDIAN_S = 0.030
PUT_P99_S = 0.100
_SIGMA = math.log(PUT_P99_S / PUT_MEDIAN_S) / 2.326
"""Of the log-normal distribution: 2.326 standard deviations lie below the 99th percentile."""
PARTITIONS = 64


class SlowStore:
    """Objects in memory, puts as slow as S3's."""

    def __init__(self, seed: int) -> None:
        self.objects: dict[str, bytes] = {}
        self.put_s: list[float] = []
        self._random = random.Random(seed)

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        del if_absent
        data = b"".join(parts)
        seconds = PUT_MEDIAN_S * math.exp(self._random.gauss(0, _SIGMA))
        self.put_s.append(seconds)
        await asyncio.sleep(seconds)
        self.objects[key] = data

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        return self.objects[key][start:end]

    async def size(self, key: str) -> int:
        if key not in self.objects:
            raise NotFoundError("look up", key, "no such object")
        return len(self.objects[key])

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key=key, size_bytes=len(self.objects[key]), modified_ms=0)


class Bench:
    """One agent, made anew for each case."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder = folder
        self.arguments = arguments
        self.store = SlowStore(arguments.seed)
        self.latencies: list[float] = []

    async def start(self) -> None:
        clock, chance = SystemClock(), SystemRandom()
        journal = SimulatedJournal(
            random=chance, clock=clock, faults=JournalFaults(commit_ms=(1, 3))
        )
        self.fatal: list[BaseException] = []
        self.closes: list[Callable[[], None]] = []
        self.pool, self.applier = ThreadPoolExecutor(4), ThreadPoolExecutor(1)
        ports = cluster_ports(
            journal.connect(),
            cluster_id=journal.cluster_id,
            replica=self.folder / "replica.sqlite",
            store=self.store,
            clock=clock,
            random=chance,
            fatal=self.fatal,
            closes=self.closes,
            wal_bytes_max=512 << 20,
            wal_file_bytes=64 << 20,
            applier=self.applier,
            pool=self.pool,
        )
        settings = AgentSettings(
            identity=AgentIdentity(agent_id=1, level_max=FEATURE_LEVEL_MAX),
            advertised_host="127.0.0.1",
            advertised_port=1,
            log=LogSettings(
                durability=self.arguments.durability,
                flush_interval_ms=self.arguments.interval_ms,
            ),
            groups=GroupSettings(),
            kafka=KafkaSettings(),
            retention_check_s=60.0,
            cluster=ClusterSettings(archive=ArchiveSettings(), restore_window_ms=0),
        )
        self.agent = await assemble(settings, ports)
        await self.agent.start()
        self.log = self.agent.foundation.log
        (answer,) = await self.log.commit(
            [CreateTopic(name="t", topic_id=bytes(15) + b"1", partitions=PARTITIONS)]
        )
        assert isinstance(answer, TopicCreated)
        self.keys = [
            partition_key(TopicKey(answer.topic_key), number) for number in range(PARTITIONS)
        ]

    async def stop(self) -> None:
        await self.agent.groups.close()
        await self.agent.drain(5)
        self.pool.shutdown()
        self.applier.shutdown()
        for close in reversed(self.closes):
            close()
        assert not self.fatal, self.fatal

    async def produce(self, number: int, until_s: float, batch: bytes) -> int:
        """One connection's worth of requests; how many there were."""
        loop = asyncio.get_running_loop()
        key = self.keys[number % PARTITIONS]
        # Not all at the same moment: a flush would then seem to be waited for by nobody.
        await asyncio.sleep(random.random() * self.arguments.interval_ms / 1000)
        count = 0
        while loop.time() < until_s:
            started_s = time.perf_counter()
            await self.append(key, batch)
            self.latencies.append(time.perf_counter() - started_s)
            count += 1
            await asyncio.sleep(random.random() * 0.02)
        return count

    async def append(self, key: PartitionKey, batch: bytes) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        appends = [PartitionAppend(key, check_batch(memoryview(bytearray(batch)), ANY, 0))]
        self.log.append(appends, timeout_ms=30_000, done=done)
        await answer
        assert appends[0].base_offset >= 0


async def run_case(arguments: argparse.Namespace, connections: int, in_flight: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments)
        await bench.start()
        record = Record(
            offset_delta=0, timestamp=0, key=None, value=bytes(arguments.bytes), headers=()
        )
        batch = bytes(encode_batch([record], codec="none"))
        loop = asyncio.get_running_loop()
        before = resource.getrusage(resource.RUSAGE_SELF)
        until_s = loop.time() + arguments.seconds
        counts = await asyncio.gather(
            *(
                bench.produce(connection, until_s, batch)
                for connection in range(connections)
                for _ in range(in_flight)
            )
        )
        after = resource.getrusage(resource.RUSAGE_SELF)
        await bench.stop()
    found = sorted(bench.latencies)
    puts = sorted(bench.store.put_s) or [0.0]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def at(values: list[float], share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))] * 1000

    print(
        f"{connections:11,} {in_flight:9} {sum(counts):9,} {at(found, 0.5):8.1f} "
        f"{at(found, 0.99):8.1f} {found[-1] * 1000:8.1f} {len(puts):6} "
        f"{statistics.median(puts) * 1000:8.1f} {at(puts, 0.99):8.1f} "
        f"{cpu_s / sum(counts) * 1e6:9.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--interval-ms", type=int, default=250)
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--durability", choices=["object", "wal"], default="object")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(
        f"durability {arguments.durability}, flush interval {arguments.interval_ms} ms, "
        f"records of {arguments.bytes} bytes, {arguments.seconds:g} s each; times in ms"
    )
    print(
        "connections in flight  requests  ack p50  ack p99  ack max   puts  put p50  put p99"
        "  us CPU/request"
    )
    for connections, in_flight in ((1, 1), (1, 5), (10, 1), (100, 1), (1000, 1)):
        asyncio.run(run_case(arguments, connections, in_flight))


if __name__ == "__main__":
    main()
