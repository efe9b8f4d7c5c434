"""How soon after an agent died are all partitions there again, and how soon does a new one serve?

    .venv-test/bin/python bench/bench_failover.py [--rounds 5] [--partitions 24] [--json FILE]

Three agents with default settings, PostgreSQL and an S3 server on this machine; a producer and a
reader (librdkafka, its reconnects no further apart than `--reconnect-ms`) touch every partition
every 100 ms. The producer is not idempotent unless `--idempotent` is given: librdkafka then has no
more than five requests under way to a broker, each of one partition, and what is measured in
object mode is how many rounds of five those of 24 partitions take.
Each round kills one agent by SIGKILL, waits until every partition has acknowledged and given a
record that was sent after that moment, and starts the agent again: its first answered request, and
its first acknowledged record in every partition. A round in which another agent was given up, since
this machine was too busy for it to say that it lives, is counted and not measured.

Rows: `object` and `wal` are durabilities of the topic. In `wal` records that lie in the dead
agent's WAL alone wait for a takeover, so that nothing of that row is about reading. To compare two
commits run it on each, alternating, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from chaos.world import World  # noqa: E402
from support.agents import Agent  # noqa: E402
from support.probe import Probe, create_topic  # noqa: E402
from support.server import answers_metadata  # noqa: E402

PAUSE_S = 0.1
CALM_S = 4.0
"""Between rounds, so that all that moved has settled."""
TARGETS_S = {"accepted": 3.0, "served": 3.0, "answers": 2.0}


@dataclass
class Figures:
    """Seconds, one of each per round."""

    rounds: int = 0
    disturbed: int = 0
    failed_records: int = 0
    accepted: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    """From an agent's start to its first answer."""
    takes_all: list[float] = field(default_factory=list)
    """From its start to a record in each partition that it alone was given."""


def one_round(world: World, probe: Probe, victim: Agent, topic: str, figures: Figures) -> None:
    others = [agent for agent in world.agents.agents if agent is not victim]
    pids = [agent.server.process and agent.server.process.pid for agent in others]
    killed_s = time.monotonic()
    victim.server.kill()
    accepted = probe.wait_accepted(killed_s)
    served = probe.wait_served(killed_s) if topic == "object" else 0.0
    disturbed = pids != [a.server.process and a.server.process.pid for a in others] or not all(
        agent.server.running() for agent in others
    )
    figures.rounds += 1
    if disturbed:
        figures.disturbed += 1
        world.keep_alive()
    else:
        figures.accepted.append(accepted)
        if topic == "object":
            figures.served.append(served)
    started_s = time.monotonic()
    figures.answers.append(victim.server.start())
    with Probe(
        victim.address, topic, probe.partitions, reads=False, producer=probe.producer
    ) as alone:
        alone.wait_accepted(0.0)
    figures.takes_all.append(time.monotonic() - started_s)
    assert answers_metadata("127.0.0.1", victim.server.kafka_port)
    time.sleep(CALM_S)


def measure(
    world: World,
    durability: str,
    *,
    rounds: int,
    partitions: int,
    idempotent: bool,
    reconnect_ms: int,
) -> Figures:
    figures = Figures()
    first = world.agents.agents[0].address
    create_topic(first, durability, partitions, penstock_durability=durability)
    producer = {"enable.idempotence": idempotent, "acks": "all"}
    with Probe(
        world.agents.bootstrap,
        durability,
        partitions,
        pause_s=PAUSE_S,
        client={"reconnect.backoff.max.ms": reconnect_ms},
        producer=producer,
    ) as probe:
        probe.warm_up()
        time.sleep(CALM_S)
        for number in range(rounds):
            victim = world.agents.agents[number % len(world.agents.agents)]
            one_round(world, probe, victim, durability, figures)
    figures.failed_records = len(probe.failed())
    return figures


def row(name: str, measured: str, seconds: list[float], target_s: float | None) -> str:
    if not seconds:
        return f"{name:<8} {measured:<36} nothing was measured"
    target = f"{target_s:6.1f}" if target_s is not None else "      "
    return (
        f"{name:<8} {measured:<36} {min(seconds):6.2f} {statistics.median(seconds):6.2f} "
        f"{max(seconds):6.2f} {target}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--reconnect-ms", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, World(Path(folder)) as w:
        for durability in ("object", "wal"):
            found[durability] = measure(
                w,
                durability,
                rounds=arguments.rounds,
                partitions=arguments.partitions,
                idempotent=arguments.idempotent,
                reconnect_ms=arguments.reconnect_ms,
            )
    print(f"{'topic':<8} {'seconds':<36} {'least':>6} {'median':>6} {'most':>6} {'target':>6}")
    for name, figures in found.items():
        print(row(name, "killed -> all partitions accept", figures.accepted, TARGETS_S["accepted"]))
        if name == "object":
            print(row(name, "killed -> all partitions served", figures.served, TARGETS_S["served"]))
        print(row(name, "started -> answers a client", figures.answers, TARGETS_S["answers"]))
        print(row(name, "started -> wrote to every partition", figures.takes_all, None))
        print(
            f"{name:<8} {figures.rounds} rounds, {figures.disturbed} disturbed, "
            f"{figures.failed_records} records given up"
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({name: vars(figures) for name, figures in found.items()}, indent=1)
        )


if __name__ == "__main__":
    main()
