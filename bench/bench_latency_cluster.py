"""How long does a record take through a cluster, until it is acknowledged and until it is read?

    .venv-test/bin/python bench/bench_latency_cluster.py [--seconds 60] [--json FILE]

Agents with default settings (durability `object`, flush every 250 ms), PostgreSQL, and an S3 server
behind a proxy that delays each answer as S3 does: log-normal, 30 ms median, 100 ms 99th
percentile. librdkafka on both ends with its defaults but for `linger.ms` 0: one record at a random
moment per partition every 100 ms or so, and a consumer of all partitions. All share this machine,
whose load the table names; the target is p50 under 500 ms and p99 under 900 ms end to end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from chaos.world import World  # noqa: E402
from support.probe import Probe, create_topic  # noqa: E402
from support.s3_proxy import s3_delays  # noqa: E402
from support.waiting import eventually  # noqa: E402

WARM_S = 5.0
TOPIC = "latency"


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p90, p99 and the greatest, in ms."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "p50": 1000 * cuts[49],
        "p90": 1000 * cuts[89],
        "p99": 1000 * cuts[98],
        "max": 1000 * max(seconds),
    }


def measure(
    world: World, *, partitions: int, pause_s: float, seconds: float
) -> dict[str, dict[str, float]]:
    """Percentiles by what was measured."""
    with Probe(
        world.agents.bootstrap, TOPIC, partitions, pause_s=pause_s, timeout_ms=60_000
    ) as probe:
        probe.warm_up()
        time.sleep(WARM_S)
        from_s = time.monotonic()
        time.sleep(seconds)
        until_s = time.monotonic()
        probe.wait_served(until_s)
        measured = [sent for sent in probe.sent if from_s <= sent.began_s < until_s]
        wanted = {sent.value for sent in measured}
        eventually(
            lambda: wanted - {read.value for read in list(probe.read)},
            lambda missing: not missing,
            timeout_seconds=60,
            pause_seconds=0.5,
        )
    read_s = {read.value: read.at_s for read in probe.read}
    assert not probe.failed()
    return {
        "acknowledged": percentiles([sent.ended_s - sent.began_s for sent in measured]),
        "read": percentiles([read_s[sent.value] - sent.began_s for sent in measured]),
        "records": {"count": float(len(measured))},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=6)
    # No divisor of the flush interval: sends fall on all moments of it.
    parser.add_argument("--pause-ms", type=float, default=103)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        World(Path(folder), agents=arguments.agents) as world,
    ):
        create_topic(world.agents.agents[0].address, TOPIC, arguments.partitions)
        world.proxy.set_rules(s3_delays())
        found = measure(
            world,
            partitions=arguments.partitions,
            pause_s=arguments.pause_ms / 1000,
            seconds=arguments.seconds,
        )
        running = all(agent.server.running() for agent in world.agents.agents)
    print(f"{'ms from the send until it was':<32} {'p50':>7} {'p90':>7} {'p99':>7} {'max':>7}")
    for name in ("acknowledged", "read"):
        values = found[name]
        print(f"{name:<32} " + " ".join(f"{values[key]:7.0f}" for key in values))
    print(
        f"{found['records']['count']:.0f} records, {arguments.agents} agents, "
        f"{arguments.partitions} partitions; load of this machine {os.getloadavg()[0]:.1f} "
        f"on {os.cpu_count()} cores; target end to end: p50 < 500, p99 < 900"
    )
    if not running:
        print("an agent was given up meanwhile: this machine was too busy for these figures")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
