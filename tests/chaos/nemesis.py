"""What goes wrong in a chaos run: faults, chosen by a seed, one or two at a time, each healed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.world import World
from support.s3_proxy import Rule, s3_delays


@dataclass(frozen=True)
class Fault:
    """`begin` makes it happen, and returns what ends it."""

    name: str
    begin: Callable[[World, random.Random], Callable[[], None]]
    seconds: tuple[float, float]


def _kill_agent(world: World, chance: random.Random) -> Callable[[], None]:
    agent = chance.choice(world.agents.agents)
    if agent.server.running():
        agent.resume()
        agent.server.kill()
    # It is started once whatever else is wrong has ended, too: a start waits for the journal.
    return lambda: None


def _pause_agent(world: World, chance: random.Random) -> Callable[[], None]:
    agent = chance.choice(world.agents.agents)
    agent.pause()
    return agent.resume


def _restart_postgres(world: World, _: random.Random) -> Callable[[], None]:
    world.postgres.stop()
    return world.start_postgres


def _kill_postgres(world: World, _: random.Random) -> Callable[[], None]:
    # Two faults may be of one thing: it may be stopped already.
    if world.postgres.running:
        world.postgres.kill()
    return world.start_postgres


def _s3_fails(world: World, chance: random.Random) -> Callable[[], None]:
    fault = chance.choice(["slow_down", "error", "reset", "lost_reply", "cut_body", "slow_body"])
    world.proxy.set_rules(Rule(fault=fault, percent=chance.choice([20, 60])), s3_delays())
    return world.proxy.set_rules


def _s3_away(world: World, _: random.Random) -> Callable[[], None]:
    world.proxy.refuse(refusing=True)
    return lambda: world.proxy.refuse(refusing=False)


def _cut_link(world: World, chance: random.Random) -> Callable[[], None]:
    link = chance.choice(world.links)
    link.cut()
    return link.heal


def _freeze_link(world: World, chance: random.Random) -> Callable[[], None]:
    link = chance.choice(world.links)
    link.freeze()
    return link.heal


def _skew_clock(world: World, chance: random.Random) -> Callable[[], None]:
    agent = chance.choice(world.agents.agents)
    agent.resume()
    world.skew(agent, chance.choice([-3_600_000, 3_600_000]))
    return lambda: world.unskew(agent)


FAULTS = (
    Fault("kill an agent", _kill_agent, (0.5, 4)),
    Fault("pause an agent", _pause_agent, (0.5, 6)),
    Fault("stop PostgreSQL", _restart_postgres, (0.5, 4)),
    Fault("kill PostgreSQL", _kill_postgres, (0.5, 4)),
    Fault("S3 fails", _s3_fails, (2, 6)),
    Fault("S3 is away", _s3_away, (1, 5)),
    Fault("cut an agent's link to PostgreSQL", _cut_link, (1, 5)),
    Fault("freeze an agent's link to PostgreSQL", _freeze_link, (1, 6)),
    Fault("an agent's clock is an hour off", _skew_clock, (2, 5)),
)
CALM_SECONDS = (0.5, 3.0)


def torment(
    world: World, *, seed: int, seconds: float, say: Callable[[str], None], keep: int = 2
) -> dict[str, int]:
    """Begin and end faults for `seconds`; how often each happened.

    Args:
        keep: at most so many at one time.
    """
    chance = random.Random(seed)
    until = time.monotonic() + seconds
    counts: dict[str, int] = {}
    while time.monotonic() < until:
        chosen = chance.sample(FAULTS, k=chance.choice([1, 1, min(2, keep)]))
        ends = []
        for fault in chosen:
            counts[fault.name] = counts.get(fault.name, 0) + 1
            say(fault.name)
            ends.append(fault.begin(world, chance))
        time.sleep(max(chance.uniform(*fault.seconds) for fault in chosen))
        for end in ends:
            end()
        world.keep_alive()
        time.sleep(chance.uniform(*CALM_SECONDS))
    return counts
