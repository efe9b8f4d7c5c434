"""The pipeline API of a simulated agent: the real routes, called as HTTP requests would be.

What is between a caller and an agent loses requests and replies, carries out requests twice and
long after, and is cut, as `sim.connections` does with Kafka's connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette

from penstock.app.api.routes import pipeline_routes
from penstock.app.api.sources import PipelineSources
from penstock.app.http.callers import EVERYONE
from penstock.model.errors import RetryableError
from penstock.observability.metrics import Metrics
from penstock.pipeline.api_messages import Problem
from sim.connections import BrokenError
from support.simulated.link import SimulatedLink

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.chance import Chance
    from sim.world import World

T = TypeVar("T")

BLOCK_BYTES = 1 << 10
"""Of all simulated agents: what one asks of another is refused where theirs differ."""
PATIENCE_S = 2.5
RETRY = 503


class ProblemError(Exception):
    """An answer that is no success and for which asking again is of no use."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{status} {problem.reason or problem.kind}: {problem.error}")
        self.status = status
        self.problem = problem


def open_api(sources: PipelineSources) -> Starlette:
    """An agent's side."""
    return Starlette(routes=pipeline_routes(sources))


def sources_of(**parts: Any) -> PipelineSources:
    """`PipelineSources` with what is the same for all simulated agents."""
    return PipelineSources(
        version="simulated",
        metrics=Metrics(),
        scratch="",
        objects_url="",
        block_bytes=BLOCK_BYTES,
        object_bytes_max=1 << 30,
        confirm_timeout_s=2.0,
        **parts,
    )


class ApiCaller:
    """A caller's side: of one job's driver, or of one writer."""

    def __init__(self, world: World, chance: Chance) -> None:
        self._world = world
        self._chance = chance

    async def call(
        self, agent: Agent, method: str, path: str, message: object, answer: type[T]
    ) -> T:
        """Ask once.

        Raises:
            BrokenError: what became of it is unknown, or it may be tried again.
            ProblemError: it is refused for good.
        """
        body = b"" if message is None else msgspec.json.encode(message)
        parts = agent.parts
        app = None if parts is None else parts.api
        if app is None or agent.broker is None or agent.node.dead:
            raise BrokenError("connection refused")
        link = SimulatedLink(
            self._world.loop, self._chance, server=agent.node, timeout_s=PATIENCE_S
        )
        link.cut = agent.cut_from_clients
        permille = int(1000 * self._world.break_share)
        link.fail_permille = link.lost_permille = link.twice_permille = permille
        link.slow_permille = int(1000 * self._world.slow_share)
        try:
            status, data = await link.call(method, path, lambda: _ask(app, method, path, body))
        except RetryableError as error:
            raise BrokenError(str(error)) from error
        if status == RETRY:
            raise BrokenError(data.decode())
        if status >= 300:
            raise ProblemError(status, msgspec.json.decode(data, type=Problem))
        return msgspec.json.decode(data, type=answer)


async def _ask(app: Starlette, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """One request by ASGI; status and body."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        # As the port's guard does where nothing is asked for.
        "penstock.caller": EVERYONE,
    }
    status = 0
    answer = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Any) -> None:
        nonlocal status
        if event["type"] == "http.response.start":
            status = event["status"]
        else:
            answer.extend(event.get("body", b""))

    await app(scope, receive, send)
    return status, bytes(answer)
