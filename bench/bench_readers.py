"""What do 100 agents cost the database of the journal?

A report, not a test. Simulated agents of one process, each with the connections, the follower
and the pace of a real one and with a replica that does nothing, append 4 entries of 2 KB a second
each, as agents do that flush every 250 ms. Counted are the reads that reach PostgreSQL, the CPU
seconds of its processes (Linux), and how long after its append a row is applied by the others.

    PYTHONPATH=src:tests python bench/bench_readers.py [--agents 10,100] [--seconds 10]

`--shared no` leaves each agent at the pace of a lone one. To compare two commits run it in both.
"""

import argparse
import asyncio
import itertools
import random
import time
from pathlib import Path

from bench_commit import SystemClock
from penstock.replica.applied import Applied
from penstock.replica.follower import Follower
from penstock.replica.postgres import PostgresJournal
from support.postgres import DEFAULTS, running_postgres

BODY = bytes(2_000)
APPEND_S = 0.25


class NoReplica:
    """Applies nothing."""

    position = 0
    time_ms = 0

    def apply(self, body: bytes, *, stamp_ms: int, position: int | None = None) -> Applied[None]:
        """Take the row for applied."""
        assert body
        assert position is not None
        self.position = position
        return Applied(position, stamp_ms, None)

    def commit(self) -> int:
        """Nothing to commit."""
        return self.position

    def local(self, name: str) -> None:
        """Nothing is kept."""


async def measure(url: str, name: str, agents: int, seconds: float, *, shared: bool) -> None:
    """Run so many agents and print what they cost."""
    appended: dict[int, float] = {}
    lags: list[float] = []
    reads = 0

    def deliver(batch: list[Applied[None]]) -> None:
        now_s = time.perf_counter()
        lags.extend(now_s - appended[item.position] for item in batch if item.position in appended)

    journals = []
    tasks = []
    for _ in range(agents):
        journal = await PostgresJournal.open(url, name=name, new_cluster_id=lambda: "bench")
        journal.share_among(agents if shared else 1)
        read = journal.read

        async def counted(after: int, limit: int, read=read) -> list:  # type: ignore[no-untyped-def,type-arg]
            nonlocal reads
            reads += 1
            return await read(after, limit)

        journal.read = counted  # type: ignore[method-assign]
        follower = Follower(
            journal, NoReplica(), clock=SystemClock(), executor=None, deliver=deliver
        )
        journals.append((journal, follower))
        tasks.append(asyncio.create_task(follower.run()))

    async def append(journal: PostgresJournal, follower: Follower[None]) -> None:
        await asyncio.sleep(random.random() * APPEND_S)
        while True:
            began_s = time.perf_counter()
            position = await journal.append(BODY)
            appended[position] = time.perf_counter()
            follower.nudge()
            await asyncio.sleep(max(0.0, began_s + APPEND_S - time.perf_counter()))

    tasks += [asyncio.create_task(append(*each)) for each in journals]
    await asyncio.sleep(2)
    lags.clear()
    reads = 0
    rows, cpu_s, own_s = len(appended), database_cpu_s(), time.process_time()
    await asyncio.sleep(seconds)
    rows, cpu_s = len(appended) - rows, database_cpu_s() - cpu_s
    own_s = time.process_time() - own_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for journal, _ in journals:
        await journal.close()
    lags.sort()
    print(
        f"{agents:>4} agents, {rows / seconds:>5.0f} rows/s: {reads / seconds:>7,.0f} reads/s,"
        f" {cpu_s / seconds:5.2f} CPU of the database, {own_s / seconds:5.2f} of the agents,"
        f" lag p50 {lags[len(lags) // 2] * 1e3:5.1f} ms"
        f" p99 {lags[len(lags) * 99 // 100] * 1e3:6.1f}",
        flush=True,
    )


def database_cpu_s() -> float:
    """CPU seconds of all processes named postgres that live now."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, _, rest = text.partition(") ")
        if "(postgres" in name:
            fields = rest.split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def main() -> None:
    """Start a database and measure each number of agents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", default="10,100")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--shared", choices=("yes", "no"), default="yes")
    options = parser.parse_args()
    with running_postgres(settings={**DEFAULTS, "max_connections": "600"}) as server:
        numbers = itertools.count()
        for agents in map(int, options.agents.split(",")):
            asyncio.run(
                measure(
                    server.url,
                    f"readers{next(numbers)}",
                    agents,
                    options.seconds,
                    shared=options.shared == "yes",
                )
            )


if __name__ == "__main__":
    main()
