"""What does the journal on PostgreSQL give? Appends, follower lag, following, a large commit.

A report, not a test. Starts a PostgreSQL of its own (fsync on) unless PENSTOCK_TEST_POSTGRES names
one. Compare two commits of this repository by running it at both, in turns, on one machine:

    PYTHONPATH=src:tests python bench/bench_journal.py [--agents 16] [--seconds 5] [--processes 2]

Aims: appends of 16 agents 3,000/s with p99 below 15 ms; follower lag p99 below 10 ms; following at
100,000 runs per CPU second; a commit of 1,600 runs over 640 partitions below 10 ms at the median.
"""

import argparse
import asyncio
import base64
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import uvloop

from bench_commit import SystemClock, SystemRandom
from fsync_floor import measure
from penstock.model.ids import TopicKey, partition_key
from penstock.order.protocol import AgentIdentity
from penstock.replica.postgres import PostgresJournal
from penstock.replica.replica import Replica
from penstock.state.answers import Refused, RunsCommitted
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import (
    AnyCommand,
    CommitRuns,
    CreateTopic,
    RegisterAgent,
    RunCommit,
    SetFeatureLevel,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.entry_keys import entry_key
from penstock.state.order_types import AppliedEntry
from penstock.state.orders import ClusterOrder, begin_cluster_order
from penstock.state.schema import CLUSTER_LEVEL
from support.postgres import database_url

PARTITIONS = 640
BATCH_BYTES = 4096
FLUSH_RUNS = 20
"""Runs of one agent's flush: 16 agents x 190 flushes/s x 20 are 60,000 runs/s."""


def runs_command(serial: str, runs: int, partitions: int) -> CommitRuns:
    """One flush: `runs` batches of ten records, spread over partitions of topic 1."""
    per_partition = -(-runs // partitions)
    commits = []
    position = 0
    for number in range(min(runs, partitions)):
        count = min(per_partition, runs - number * per_partition)
        if count <= 0:
            break
        batches: list[int] = []
        start = position
        for index in range(count):
            # Neither lengths nor times repeat, or the database would compress them to nothing.
            varied = (position * 2654435761 + index * 40503) >> 7
            length = 1000 + varied % (2 * BATCH_BYTES)
            stamp = 1_700_000_000_000 if index == 0 else 0
            batches += [length, 1 + varied % 50, stamp + varied % 250, -1, -1, -1]
            position += length
        key = partition_key(TopicKey(1), number)
        commits.append(RunCommit(partition_key=key, position=start, batches=batches))
    return CommitRuns(runs=commits, object_key=serial, object_bytes=position, raw=True)


async def open_order(url: str, name: str, folder: Path, agent_id: int) -> ClusterOrder:
    """A started agent with a replica of its own."""
    journal = await PostgresJournal.open(
        url, name=name, new_cluster_id=lambda: base64.urlsafe_b64encode(os.urandom(12)).decode()
    )
    machine = LogMachine()
    replica = Replica.open(folder / f"{agent_id}.sqlite", machine, fsync=False, keeps_journal=False)
    return await begin_cluster_order(
        journal,
        replica,
        machine,
        identity=AgentIdentity(agent_id=agent_id, level_max=CLUSTER_LEVEL),
        cluster_id=journal.cluster_id,
        clock=SystemClock(),
        random=SystemRandom(),
        executor=ThreadPoolExecutor(1),
    )


async def create_topic(order: ClusterOrder) -> None:
    """Topic 1, once, and the level that a cluster's commands need."""
    topic = CreateTopic(name="bench", topic_id=b"bench-topic-id-1", partitions=PARTITIONS)
    for answer in await order.commit([SetFeatureLevel(level=CLUSTER_LEVEL), topic]):
        assert not isinstance(answer, Refused), answer


async def commit_runs(order: ClusterOrder, serial: str, runs: int, partitions: int) -> float:
    """One flush, stored whole; the seconds that its commit took."""
    command = runs_command(serial, runs, partitions)
    began_s = time.perf_counter()
    (answer,) = await order.commit([command])
    took_s = time.perf_counter() - began_s
    assert isinstance(answer, RunsCommitted), answer
    assert all(status == 0 for run in answer.runs for status in run[::2]), answer
    return took_s


async def log_bytes(url: str) -> int:
    """How far PostgreSQL's own log is."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


def percentiles(values: Sequence[float]) -> str:
    """In ms."""
    ordered = sorted(values)
    picks = [ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99)]
    return f"p50 {picks[0]:6.2f} ms  p99 {picks[1]:6.2f} ms  max {ordered[-1] * 1000:6.2f} ms"


# -- raw appends -----------------------------------------------------------------------------------


async def append_part(
    url: str, name: str, agents: int, seconds: float, depth: int, rate: float
) -> None:
    """One process's agents: each keeps `depth` appends in flight, or all together append `rate`
    times a second, unless that is 0; prints its measures."""
    journals = [
        await PostgresJournal.open(url, name=name, new_cluster_id=lambda: "bench")
        for _ in range(agents)
    ]
    # Entries as agents make them, so that followers have to apply them.
    flush = runs_command("x" * 40, FLUSH_RUNS, FLUSH_RUNS)
    counts = [0] * agents

    def entry(agent: int, commands: list[AnyCommand]) -> bytes:
        n, counts[agent] = counts[agent], counts[agent] + 1
        number = os.getpid() * 100 + agent
        return encode_entry(Entry(agent=number, epoch=1, n=n, stamp_ms=1, commands=commands))

    def next_flush(agent: int) -> bytes:
        key = f"{os.getpid()}-{agent:02d}-{counts[agent]:016d}"
        return entry(agent, [msgspec.structs.replace(flush, object_key=key)])

    took: list[float] = []
    for agent, journal in enumerate(journals):
        register = RegisterAgent(agent=os.getpid() * 100 + agent, level_max=CLUSTER_LEVEL)
        await journal.append(entry(agent, [register]))
    end_s = time.perf_counter() + seconds

    async def work(agent: int, journal: PostgresJournal) -> None:
        due_s = time.perf_counter() + agent / max(rate, 1)
        while (began_s := time.perf_counter()) < end_s:
            if rate:
                await asyncio.sleep(max(0, due_s - began_s))
                due_s += agents / rate
                began_s = time.perf_counter()
            await journal.append(next_flush(agent))
            took.append(time.perf_counter() - began_s)

    began_s = time.perf_counter()
    workers = [work(agent, each) for agent, each in enumerate(journals) for _ in range(depth)]
    await asyncio.gather(*workers)
    wall_s = time.perf_counter() - began_s
    for journal in journals:
        await journal.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    print(json.dumps({"took": took, "wall_s": wall_s, "bytes": len(next_flush(0)), "cpu_s": cpu_s}))


def start_appending(
    url: str, name: str, options: argparse.Namespace, depth: int, rate: float = 0
) -> list[Any]:
    """The processes of the agents."""
    share = options.agents // options.processes
    return [
        subprocess.Popen(
            [sys.executable, __file__, "--part", url, name, str(share), str(options.seconds),
             str(depth), str(rate / options.processes)],
            stdout=subprocess.PIPE,
        )
        for _ in range(options.processes)
    ]  # fmt: skip


def finish_appending(parts: list[Any], label: str) -> None:
    """Wait for the processes and print what they measured together."""
    found = [json.loads(part.communicate()[0]) for part in parts]
    took = [value for one in found for value in one["took"]]
    rate = sum(len(one["took"]) / one["wall_s"] for one in found)
    cpu_us = sum(one["cpu_s"] for one in found) / len(took) * 1e6
    print(
        f"{label:<34} {rate:8.0f}/s  {percentiles(took)}  ({found[0]['bytes']} bytes,"
        f" {cpu_us:.0f} us of client CPU each)",
        flush=True,
    )


async def lag(url: str, name: str, folder: Path, options: argparse.Namespace) -> None:
    """Appends by others while one agent follows: row's stamp to its being applied here, by the
    one clock of this machine (1 ms resolution)."""
    order = await open_order(url, name, folder, 999)
    await order.start()
    await create_topic(order)
    await order.close()
    lags: list[float] = []
    last_ms = 0

    def note(batch: list[AppliedEntry]) -> None:
        nonlocal last_ms
        now_ms = time.time_ns() / 1e6
        for applied in batch:
            if entry_key(applied.body).agent == follower.agent_id:
                continue
            for answer in applied.outcome.answers:
                assert not isinstance(answer, Refused), answer
            # Journal time is the stamp where that is not less than the one before.
            if applied.time_ms > last_ms:
                last_ms = applied.time_ms
                lags.append((now_ms - applied.time_ms) / 1000)

    follower = await open_order(url, name, folder, 1_000)
    await follower.start(on_applied=note)
    lags.clear()
    cpu_s, before = time.process_time(), follower.position
    parts = start_appending(url, name, options, 1, options.rate)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, finish_appending, parts, "  appends meanwhile")
    cpu_us = (time.process_time() - cpu_s) / (follower.position - before) * 1e6
    print(
        f"{'follower lag under that':<34} {follower.position - before:8d} rows  {percentiles(lags)}"
        f"  {cpu_us:.0f} us of CPU each",
        flush=True,
    )
    await follower.close()


# -- the order -------------------------------------------------------------------------------------


async def commits(url: str, name: str, folder: Path, _options: argparse.Namespace) -> None:
    """Latency of `ClusterOrder.commit`, alone and for the large commit."""
    order = await open_order(url, name, folder, 1)
    await order.start()
    await create_topic(order)
    cases = [
        ("commit of 1 run", 1, 1, 300),
        ("commit of 20 runs, 20 partitions", 20, 20, 200),
        ("commit of 1,600 runs, 640 partitions", 1600, 640, 60),
    ]
    for label, runs, partitions, count in cases:
        took = []
        floor = measure(folder, 300, pause_s=0)
        cpu_s, logged = time.process_time(), await log_bytes(url)
        for number in range(count):
            took.append(await commit_runs(order, f"{runs}-{number:08d}", runs, partitions))
        cpu_s = (time.process_time() - cpu_s) / count
        logged = (await log_bytes(url) - logged) // (count * runs)
        print(
            f"{label + ' (PostgreSQL)':<52} {percentiles(took)}  {cpu_s * 1000:.2f} ms of CPU,"
            f" {logged} bytes of database log per run; fsync floor before it"
            f" {floor['p50_ms']:.2f} ms",
            flush=True,
        )
    began_s = time.perf_counter()
    heads = []
    for _ in range(200):
        began_s = time.perf_counter()
        await order.confirm_head()
        heads.append(time.perf_counter() - began_s)
    print(f"{'confirm_head':<52} {percentiles(heads)}", flush=True)
    await order.close()


async def following(url: str, name: str, folder: Path, _options: argparse.Namespace) -> None:
    """CPU seconds that catching up takes, per run, for entries of several sizes."""
    writer = await open_order(url, name, folder, 1)
    await writer.start()
    await create_topic(writer)
    for runs, partitions, entries in ((20, 20, 4_000), (100, 100, 1_000), (1600, 640, 60)):
        reader = await open_order(url, name, folder, 2)
        await reader.close()
        for number in range(entries):
            await commit_runs(writer, f"{runs}-{number:08d}", runs, partitions)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        reader = await open_order(url, name, folder, 2)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        total = entries * runs
        print(
            f"{f'following entries of {runs} runs':<34} {total / cpu_s:8.0f} runs per CPU second,"
            f" {total / wall_s:.0f} runs/s, {entries / cpu_s:.0f} entries per CPU second",
            flush=True,
        )
        await reader.close()
    await writer.close()


Section = Callable[[str, str, Path, argparse.Namespace], Coroutine[Any, Any, None]]


def main() -> None:
    """See the module's docstring."""
    if sys.argv[1:2] == ["--part"]:
        url, name, agents, seconds, depth, rate = sys.argv[2:]
        uvloop.run(append_part(url, name, int(agents), float(seconds), int(depth), float(rate)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=3_000, help="appends/s under which lag is")
    parser.add_argument("--directory", help="where replicas lie; default: the system's")
    parser.add_argument("--only", default="append,lag,commit,follow")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.directory))
    sections: dict[str, Section] = {"lag": lag, "commit": commits, "follow": following}
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
    try:
        with database_url() as url:
            for number, section in enumerate(options.only.split(",")):
                name = f"bench{os.getpid()}_{number}"
                if section == "append":
                    for depth in (1, 4):
                        label = f"{options.agents} agents, {depth} in flight each"
                        finish_appending(start_appending(url, name, options, depth), label)
                    continue
                below = folder / section
                below.mkdir()
                uvloop.run(sections[section](url, name, below, options))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
