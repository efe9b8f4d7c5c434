"""The whole of a chaos run on this machine: PostgreSQL, S3 behind a proxy, links, agents."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from support.agents import Agent, Agents
from support.links import Link, Links
from support.postgres import running_postgres
from support.s3 import S3Server, environment
from support.s3_proxy import S3ProxyProcess
from support.server import ServerFailedError

HEAL_SECONDS_MAX = 120.0
HEAL_LOOK_SECONDS = 20.0
"""After which agents are looked at that have ended meanwhile."""
SKEWED = str(Path(__file__).with_name("skewed.py"))
SKEW_MS = "PENSTOCK_TEST_CLOCK_SKEW_MS"


class World:
    """Everything, started by `with`; each agent reaches PostgreSQL through a link of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        agents: int = 3,
        settings: dict[str, str] | None = None,
        prepare: Callable[[Agent], None] | None = None,
    ):
        """
        Args:
            prepare: called with each agent before its first start.
        """
        self.prepare = prepare
        self.folder = folder
        self.count = agents
        self.settings = settings or {}
        self.links: list[Link] = []
        self.restarts = 0

    def __enter__(self) -> World:  # noqa: PYI034 - no subclasses
        with ExitStack() as stack:
            self.postgres = stack.enter_context(running_postgres())
            self.s3 = S3Server(self.folder / "s3.log").start()
            stack.callback(self.s3.stop)
            self.bucket = self.s3.make_bucket()
            self.proxy = stack.enter_context(
                S3ProxyProcess(upstream=self.s3.endpoint, log=self.folder / "proxy.log")
            )
            links = stack.enter_context(Links())
            self.links = [links.open("127.0.0.1", self.postgres.port) for _ in range(self.count)]
            self.agents = stack.enter_context(
                Agents(
                    self.folder,
                    journal=[
                        f"postgresql://postgres@127.0.0.1:{link.port}/postgres"
                        for link in self.links
                    ],
                    objects=f"s3://{self.bucket}/log",
                    environment=environment(self.proxy.endpoint),
                    settings=self.settings,
                )
            )
            for _ in range(self.count):
                agent = self.agents.prepare()
                if self.prepare is not None:
                    self.prepare(agent)
                agent.server.start()
            self.agents.wait_live(self.count)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def skew(self, agent: Agent, milliseconds: int) -> None:
        """Launch an agent again with its wall clock off by so much."""
        self._end(agent)
        agent.server.launcher = (SKEWED,)
        agent.server.environment[SKEW_MS] = str(milliseconds)
        # What else is wrong may keep it from serving until that has ended.
        agent.server.launch()

    def unskew(self, agent: Agent) -> None:
        """End an agent whose clock is off; `keep_alive` starts it with the right time."""
        if SKEW_MS in agent.server.environment:
            self._end(agent)
            agent.server.launcher = ("-m", "penstock")
            del agent.server.environment[SKEW_MS]

    @staticmethod
    def _end(agent: Agent) -> None:
        if agent.server.running():
            agent.server.kill()
        agent.server.process = None

    def start_postgres(self) -> None:
        """Start PostgreSQL again if it was stopped or killed."""
        if not self.postgres.running:
            self.postgres.start()

    def start_again(self, agent: Agent) -> None:
        """Start an agent that ended, as its supervisor would; it may fail while things are away."""
        if agent.server.running() or agent.paused:
            return
        agent.server.process = None
        with contextlib.suppress(ServerFailedError):
            agent.server.start()
        self.restarts += 1

    def heal(self) -> None:
        """Everything is there again, and every agent serves."""
        for link in self.links:
            link.heal()
        self.proxy.set_rules()
        self.proxy.refuse(refusing=False)
        self.start_postgres()
        for agent in self.agents.agents:
            agent.resume()
        for agent in self.agents.agents:
            self.unskew(agent)
        until = time.monotonic() + HEAL_SECONDS_MAX
        while True:
            self.keep_alive()
            try:
                self.agents.wait_live(self.count, seconds=HEAL_LOOK_SECONDS)
            except ServerFailedError as error:
                if time.monotonic() > until:
                    raise ServerFailedError(f"{error}\n{self.logs()}") from error
            else:
                return

    def keep_alive(self) -> None:
        """Start agents that ended by themselves."""
        for agent in self.agents.agents:
            self.start_again(agent)

    def logs(self) -> str:
        """The end of each agent's log."""
        return "\n".join(
            f"== {agent.server.log.name}\n{agent.server.tail(3000)}" for agent in self.agents.agents
        )


def seed_from_system() -> int:
    """A seed that nobody had before."""
    return int.from_bytes(os.urandom(4), "big")
