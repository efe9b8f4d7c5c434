"""Servers that answer `penstock repair` as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.http_stub import Agent

Asked = tuple[str, dict[str, Any]]
"""Path and body."""


class Servers:
    """Stub servers of one log, the first of them the one that is asked.

    Args:
        answers: of each server; given path and body, the answer.
        agents: whether they are agents of a cluster, with ids from 1 on.
        silent: ids of agents that are listed and don't answer.
    """

    def __init__(
        self,
        *answers: Callable[[str, dict[str, Any]], dict[str, Any]],
        agents: bool = False,
        others: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._stubs: list[Agent] = []
        self._others = others
        self._are_agents = agents
        for number, answer in enumerate(answers, 1):
            self._stubs.append(self._stub(number, answer))

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run `penstock repair`."""
        return CliRunner().invoke(
            root, ["repair", *arguments, "--http", self._stubs[0].url], input=stdin
        )

    def asked(self, number: int = 1) -> list[Asked]:
        """What a server was asked, without the calls that find the others."""
        return [
            (path, json.loads(body))
            for _, path, _, body in self._stubs[number - 1].asked
            if path.startswith("/v1/repair")
        ]

    def close(self) -> None:
        for stub in self._stubs:
            stub.close()

    def _stub(self, number: int, answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Agent:
        def answered(_: int, request: Any, body: bytes) -> tuple[int, bytes]:
            if request.path == "/v1/status":
                found: dict[str, Any] = {"node_id": number}
                if self._are_agents:
                    found["agents"] = len(self._stubs)
            elif request.path == "/v1/agents":
                live = [
                    {"id": one, "status": "live", "http": stub.url, "wal_runs": 0}
                    for one, stub in enumerate(self._stubs, 1)
                ]
                found = {"agents": [*live, *self._others]}
            else:
                found = answer(request.path, json.loads(body))
            return 200, json.dumps(found).encode()

        return Agent(answered)
