"""`make chaos MINUTES=10`: agents, PostgreSQL, S3 and clients on this machine, and faults.

Prints what was done, what the checker found, and how to do it again. Exit status 1: an anomaly.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from chaos.checker import Report, check  # noqa: E402
from chaos.load import LoadRun  # noqa: E402
from chaos.nemesis import torment  # noqa: E402
from chaos.world import World, seed_from_system  # noqa: E402
from peers.line_clients import line_programs  # noqa: E402

TOPIC = "chaos"
PARTITIONS = 3
ACKED_MIN = 1000
"""Fewer would show little; a slow machine takes longer for them."""
COMPARING = {"DIGEST_INTERVAL_MS": "5000"}
"""Nothing that is done to agents here makes the state of one differ from the others'."""
DIFFERENCES = ("writes stop:", "differ from the majority", "differs from that of the majority")


def chaos(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    settings: dict[str, str] | None = None,
    java: bool = False,
) -> tuple[Report, list[str]]:
    """One run; the checker's report, and what crashed of the clients.

    Args:
        java: with the Java client, whose processes take a core by themselves.
    """
    programs, missing = line_programs(java=java)
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {text}", flush=True)

    for sentence in missing:
        say(f"without one of the client libraries: {sentence}")
    with World(folder, settings={**COMPARING, **(settings or {})}) as world:
        create_topic(world.agents.agents[0].address)
        load = LoadRun(
            lambda: world.agents.bootstrap,
            topic=TOPIC,
            partitions=PARTITIONS,
            programs=programs,
        )
        load.start()
        time.sleep(3)
        counts = torment(world, seed=seed, seconds=seconds, say=say)
        say("healing")
        world.heal()
        load.wait_acked(ACKED_MIN)
        load.finish()
        say(f"faults: {counts}; agents started again: {world.restarts}")
        report = check(load.recorder.history)
        logs = [agent.server.log.read_text("utf-8", "replace") for agent in world.agents.agents]
        differing = [line for log in logs for line in log.splitlines() if is_difference(line)]
        if not report.ok or load.crashed or differing:
            print(world.logs())
        return report, load.crashed + differing[:5]


def is_difference(line: str) -> bool:
    """Whether an agent says that states differ."""
    return any(text in line for text in DIFFERENCES)


def create_topic(address: str) -> None:
    """The load's topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
        created.result(60)


def main() -> int:
    """Returns: the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--java", action="store_true", help="with the Java client, too")
    arguments = parser.parse_args()
    seed = seed_from_system() if arguments.seed is None else arguments.seed
    print(f"seed {seed}: make chaos MINUTES={arguments.minutes:g} SEED={seed}")
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder:
        report, crashed = chaos(
            Path(folder), seed=seed, seconds=60 * arguments.minutes, java=arguments.java
        )
    print(report.text())
    for text in crashed:
        print(text)
    return 0 if report.ok and not crashed else 1


if __name__ == "__main__":
    sys.exit(main())
