"""How soon do groups go on whose coordinator was killed, or is cut off from PostgreSQL alone?

    .venv-test/bin/python bench/bench_groups_go_on.py [--rounds 5] [--only cut_off] [--events]
        [--json FILE]

Three agents with default settings, PostgreSQL (each agent reaches it through a link of its own) and
an S3 server on this machine; a group of one member of each library (`support.committing_member`,
whose settings are the libraries' defaults but for session and request timeouts), all coordinated
by one agent, and an idempotent producer that writes every 50 ms. Each round disturbs that agent:
`killed` is SIGKILL, `cut_off` freezes its link, so that nothing passes and nothing is closed.
Measured is, from the disturbance on,

- `first`: until the client was told that it has committed something that was acknowledged 0.3 s
  after it or later: it has found its coordinator;
- `all`: until that is so in each of three partitions: the producer has found other leaders, and the
  consumer has left the agent for them. The row `writer` is the producer's share of it.

`--events` prints the lines that the agents logged meanwhile, by seconds since the disturbance. To
compare two commits run it on each, alternating, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from chaos.world import World  # noqa: E402
from support.agents import Agent  # noqa: E402
from support.coordinated_groups import LIBRARIES, WRITER, Took, groups_of  # noqa: E402

DISTURBANCES = ("killed", "cut_off")
TARGET_S = 1.5
IN_FLIGHT_S = 0.3
STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z ")


def one_round(world: World, disturbance: str, *, shows_events: bool) -> Took:
    """One measurement of all libraries."""
    with groups_of(world) as groups:
        victim = groups.coordinator
        link = world.links[world.agents.agents.index(victim)]
        began_s, wall_s = time.monotonic(), time.time()
        if disturbance == "killed":
            victim.server.kill()
        else:
            link.freeze()
        # What is still answered now says nothing of what comes after it.
        time.sleep(IN_FLIGHT_S)
        took = groups.wait_further(began_s)
        if shows_events:
            show_events(world.agents.agents, wall_s, took)
        link.heal()
        world.heal()
        groups.check(world.agents.agents[0])
    return took


def show_events(agents: list[Agent], wall_s: float, took: Took) -> None:
    """Print what agents logged since a moment."""
    events = [(seconds, f"{library} goes on") for library, seconds in took.all_s.items()]
    events += [(seconds, f"{library} commits") for library, seconds in took.first_s.items()]
    for number, agent in enumerate(agents):
        for line in agent.server.log.read_text().splitlines():
            if stamp := STAMP.match(line):
                at_s = datetime.fromisoformat(stamp[1]).replace(tzinfo=UTC).timestamp() - wall_s
                if at_s >= 0:
                    events.append((at_s, f"agent {number}: {line[stamp.end() :]}"))
    for at_s, what in sorted(events):
        print(f"  {at_s:6.2f}  {what}")


def row(disturbance: str, library: str, what: str, seconds: list[float]) -> str:
    least, median, most = min(seconds), statistics.median(seconds), max(seconds)
    return (
        f"{disturbance:<8} {library:<10} {what:<8} {least:6.2f} {median:6.2f} {most:6.2f} "
        f"{TARGET_S:6.1f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=DISTURBANCES)
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[Took]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, World(Path(folder)) as w:
        for number in range(arguments.rounds):
            for disturbance in (arguments.only,) if arguments.only else DISTURBANCES:
                took = one_round(w, disturbance, shows_events=arguments.events)
                found.setdefault(disturbance, []).append(took)
                print(number, disturbance, took, flush=True)
    print(f"{'':<19} {'seconds':<8} {'least':>6} {'median':>6} {'most':>6} {'target':>6}")
    for disturbance, rounds in found.items():
        for library in LIBRARIES:
            print(row(disturbance, library, "first", [took.first_s[library] for took in rounds]))
        for name in (WRITER, *LIBRARIES):
            print(row(disturbance, name, "all", [took.all_s[name] for took in rounds]))
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {name: [took._asdict() for took in rounds] for name, rounds in found.items()},
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
