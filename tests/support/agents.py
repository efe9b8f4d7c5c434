"""A cluster of real agent processes, with real PostgreSQL and S3, for tests, chaos and benches."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import forked
from support.server import REPOSITORY, ServerFailedError, ServerProcess, answers_metadata

SECRET = "a-secret-of-tests-0123456789"
LIVE_SECONDS_MAX = 120.0
ANSWER_S = 60.0
PATIENCE = {"AGENT_TIMEOUT_MS": "8000"}
"""A machine that runs other things, too, may let an agent wait for longer than the default, and one
that is fenced for that ends. How long a failover takes with the default is measured by
bench/bench_failover.py."""


@dataclass
class Agent:
    """One agent's process and what a test may do to it."""

    server: ServerProcess
    zone: str
    paused: bool = False

    @property
    def address(self) -> str:
        """host:port for Kafka clients."""
        return self.server.bootstrap

    @property
    def agent_id(self) -> int:
        """Its id in the cluster; it was started once."""
        return int((self.server.data / "agent-id").read_text())

    @property
    def http(self) -> str:
        """host:port of its HTTP port, once it listens."""
        return self.server.http

    def known_agents(self) -> dict[int, dict[str, Any]]:
        """What this agent knows of all agents, by id: the body of GET /v1/agents."""
        return {agent["id"]: agent for agent in self._get("/v1/agents")["agents"]}

    def status(self) -> dict[str, Any]:
        """Its GET /v1/status."""
        return self._get("/v1/status")

    def _get(self, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.http, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"authorization": f"Bearer {SECRET}"})
            answer = connection.getresponse()
            body: dict[str, Any] = json.load(answer)
            assert answer.status == 200, body
            return body

    def pause(self) -> None:
        """SIGSTOP: it stops, and notices nothing of it."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self._signal(signal.SIGCONT)
            self.paused = False

    def _signal(self, number: int) -> None:
        if self.server.process is not None and self.server.process.poll() is None:
            self.server.process.send_signal(number)


@dataclass
class Agents:
    """Agents over one journal and one store.

    Args:
        folder: of logs and replicas.
        journal: the journal's URL, or one for each agent (each through a link of its own).
        objects: the store's URL.
        environment: variables with which agents find the store.
    """

    folder: Path
    journal: str | list[str]
    objects: str
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    zones: tuple[str, ...] = ("a", "b", "c")
    agents: list[Agent] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, **settings: str) -> Agent:
        """Start one more agent and wait until it serves."""
        agent = self.prepare(**settings)
        agent.server.start()
        return agent

    def prepare(self, **settings: str) -> Agent:
        """One more agent, not started."""
        number = next(self._numbers)
        zone = self.zones[number % len(self.zones)]
        journals = [self.journal] if isinstance(self.journal, str) else self.journal
        journal = journals[number % len(journals)]
        server = ServerProcess(
            self.folder / f"agent-{number}",
            self.folder / f"agent-{number}.log",
            settings={
                "JOURNAL": journal,
                "OBJECTS": self.objects,
                "CLUSTER_SECRET": SECRET,
                "LABELS": f"region=test,zone={zone}",
                **self.settings,
                **settings,
            },
            environment=dict(self.environment),
        )
        agent = Agent(server, zone)
        self.agents.append(agent)
        return agent

    @property
    def bootstrap(self) -> str:
        """host:port of all agents, joined by commas."""
        return ",".join(agent.address for agent in self.agents)

    def wait_live(self, count: int | None = None, *, seconds: float = LIVE_SECONDS_MAX) -> None:
        """Wait until every running agent answers and names `count` brokers (default: those that
        run)."""
        running = [agent for agent in self.agents if agent.server.running() and not agent.paused]
        wanted = len(running) if count is None else count
        deadline = time.monotonic() + seconds
        while True:
            seen = [brokers_named(agent.address) for agent in running]
            if all(number == wanted for number in seen):
                return
            if time.monotonic() > deadline:
                raise ServerFailedError(f"agents name {seen} brokers, not {wanted}")
            time.sleep(0.05)

    def stop(self) -> list[int]:
        """Resume, drain and end all; their exit statuses."""
        statuses = []
        for agent in self.agents:
            agent.resume()
        for agent in self.agents:
            if agent.server.running():
                statuses.append(agent.server.stop())
        return statuses

    def __enter__(self) -> Agents:  # noqa: PYI034 - a dataclass without subclasses
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.resume()
            if agent.server.running():
                agent.server.kill()


def brokers_named(address: str) -> int:
    """How many brokers an agent names in its metadata; 0 when it doesn't answer."""
    from penstock.config.addresses import parse_address
    from penstock.kafka.wire.schema import build
    from penstock.model.errors import PenstockError
    from support.connection import Connection

    def make(types: Any) -> Any:
        return build(
            types.MetadataRequest,
            topics=(),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    host, _, port = address.rpartition(":")
    if not answers_metadata(host, int(port)):
        return 0
    try:
        connection = Connection(parse_address(address, setting="agent"), timeout_s=3)
        answer: Any = connection.request("metadata", make)
        connection.close()
    except (PenstockError, OSError):
        return 0
    return len(answer.brokers)


def run_cli(*arguments: str, timeout_seconds: float = 180) -> subprocess.CompletedProcess[str]:
    """Run one `penstock` command with the cluster's secret."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    environment["PENSTOCK_CLUSTER_SECRET"] = SECRET
    return forked.run("penstock", arguments, environment=environment, timeout_s=timeout_seconds)
