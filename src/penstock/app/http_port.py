"""The HTTP port serves metrics, health, status, backups, repairs and the pipeline API.

This module is imported once the Kafka port listens, since starlette, uvicorn and prometheus_client
take longer to import than a server takes to start.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from penstock.app.api.routes import pipeline_routes, problem
from penstock.app.api.sources import PipelineSources
from penstock.app.http.agents_api import AgentSources, agent_routes, answered, json_response
from penstock.app.http.callers import Caller, Callers, DeniedError
from penstock.app.http.connection import OPEN_PATHS, GatedConnection, RequestSlots, read_body
from penstock.app.http.gate import HttpGate
from penstock.app.http.guard import HEALTH, Guard, caller_of, guarded
from penstock.app.http.keys_api import KeySources, key_routes
from penstock.app.http.peer_routes import PeerSources, SecretCheck, peer_routes
from penstock.app.http.progress_lines import CONTENT_TYPE as CONTENT_TYPE_LINES
from penstock.app.http.progress_lines import progress_lines
from penstock.app.http.repair_api import RepairSources, repair_routes
from penstock.app.http.targets import Targets
from penstock.observability.exposition import CONTENT_TYPE, Exposition
from penstock.observability.metrics import Metrics
from penstock.peers.secret import ClusterSecret
from penstock.recovery.backup import Progress
from penstock.security.acl import Operation
from penstock.security.principals import ANONYMOUS
from penstock.system import background
from penstock.version import VERSION

_POINTER = f"Penstock {VERSION}: see /v1/status, /metrics, /healthz, /readyz.\n"
_KEEP_ALIVE_S = 30
_LOOK_S = 1.0
_SHOWN_PATH = 200
"""An answer repeats at most this many characters of a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSources:
    """The sources of the port's answers.

    `status` returns a JSON object; `not_ready` returns the reason why the server is not ready, or
    ""; `back_up` copies everything to a path or URL, reports its progress, and returns the
    manifest; `callers` says who calls; `topics` returns the names of all topics; `hosts` says
    whether a request may name a host (None: any);
    `agents`, `pipeline`, `repair` and `keys` answer the calls of these names; `targets` says where
    backups may go.
    """

    metrics: Metrics
    status: Callable[[], dict[str, object]]
    not_ready: Callable[[], str]
    back_up: Callable[[str, Progress | None], Awaitable[dict[str, object]]]
    callers: Callers = field(default_factory=Callers)
    topics: Callable[[], Iterable[str]] = tuple
    hosts: Callable[[str], bool] | None = None
    agents: AgentSources | None = None
    pipeline: PipelineSources | None = None
    repair: RepairSources | None = None
    keys: KeySources | None = None
    targets: Targets | None = None

    def need_backup(self, caller: Caller) -> None:
        """Raises: DeniedError: a caller may not copy everything that there is. That it may ALTER
        the cluster is known."""
        caller.ask_nothing()
        if self.callers.has_authorizer and caller.principal == ANONYMOUS:
            raise DeniedError("back up", caller.principal, "a backup needs a credential")
        for name in self.topics():
            caller.need_topic(name, Operation.READ)


def application(sources: HttpSources, gate: HttpGate) -> ASGIApp:
    """Return the ASGI application of the HTTP port."""
    exposition = Exposition(sources.metrics, version=VERSION)

    async def pointer(_: Request) -> Response:
        return PlainTextResponse(_POINTER)

    async def metrics(_: Request) -> Response:
        return Response(exposition.text(), headers={"content-type": CONTENT_TYPE})

    async def healthz(_: Request) -> Response:
        # /healthz asks only whether the event loop answers; /readyz, whether clients are served.
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = sources.not_ready()
        if reason:
            return PlainTextResponse(f"not ready: {reason}\n", status_code=503)
        return PlainTextResponse("ready\n")

    async def status(_: Request) -> Response:
        return json_response(sources.status())

    async def back_up(request: Request) -> Response:
        # Browsers send JSON to another origin only after they have asked the server.
        sources.need_backup(caller_of(request))
        if not _is_json(request):
            return json_response({"error": "send application/json"}, 403)
        wanted = msgspec.json.decode(await read_body(request), type=BackupRequest)
        if sources.targets is not None:
            await asyncio.to_thread(sources.targets.check, "back up", wanted.to)
        if CONTENT_TYPE_LINES in request.headers.get("accept", ""):
            lines = progress_lines(partial(sources.back_up, wanted.to), result="manifest")
            return StreamingResponse(lines, media_type=CONTENT_TYPE_LINES)
        return json_response(await sources.back_up(wanted.to, None))

    routes: list[BaseRoute] = [
        Route("/", pointer),
        Route("/metrics", metrics),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/v1/status", status),
        Route("/v1/backup", answered(back_up), methods=["POST"]),
    ]
    asks = sources.callers.asks
    if sources.keys is not None:
        routes += key_routes(sources.keys)
    agents = sources.agents
    if agents is not None and (asks or agents.without_secret):
        routes += agent_routes(agents)
    repair = sources.repair
    if repair is not None and (asks or repair.without_secret):
        routes += repair_routes(repair)
    pipeline = sources.pipeline
    if pipeline is not None and (asks or pipeline.without_secret):
        routes += pipeline_routes(pipeline)
    served = Starlette(
        routes=guarded(routes),
        exception_handlers={HTTPException: _no_such_call, Exception: _own_error},
    )
    return Guard(
        RequestSlots(served, gate),
        sources.callers,
        turn_away=gate.turn_away,
        hosts=sources.hosts,
        # Without an authorizer, scrapers and load balancers need no secret.
        open_paths=(HEALTH,) if sources.callers.has_authorizer else OPEN_PATHS,
    )


async def _no_such_call(request: Request, error: Exception) -> Response:
    """Answer 404 or 405 for a call that there is not. The answer's kind is not `not_found`, since
    drivers would take a server that lacks the call for one that lacks the topic."""
    assert isinstance(error, HTTPException)
    call = f"{request.method} {request.url.path[:_SHOWN_PATH]}"
    text = f"{call}: {error.detail}; docs/operations.md lists the calls of this port"
    return problem(error.status_code, "invalid", text, headers=error.headers)


async def _own_error(_: Request, error: Exception) -> Response:
    """Answer 500 for a bug of this server; starlette then raises the error, and it is logged."""
    text = f"{type(error).__name__} in this server; its log has the traceback"
    return problem(500, "retry", text)


def peer_application(sources: PeerSources, secret: ClusterSecret, gate: HttpGate) -> ASGIApp:
    """Return the application that answers other agents of the cluster, on a port of its own."""
    return SecretCheck(RequestSlots(Starlette(routes=peer_routes(sources)), gate), secret)


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/backup."""

    to: str


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0] == "application/json"


class HttpServer:
    """Serves the application on a socket that already listens. Callers call `start`, then
    `close`."""

    def __init__(self, app: ASGIApp, gate: HttpGate, listener: socket.socket) -> None:
        """
        Args:
            app: the application, which `RequestSlots` of the same gate guards.
        """
        config = uvicorn.Config(
            app,
            # The server has configured its logs, and the event loop runs already.
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="none",
            http=cast("Any", partial(GatedConnection, gate)),
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._server = _QuietServer(config)
        self._gate = gate
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        self._look_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Serve until `close`."""
        self._task = background.start(background.HTTP, self._serve)
        self._look_timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    async def close(self) -> None:
        """Stop; requests under way have a second to end."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._listener])
        if not self._server.should_exit:
            raise RuntimeError(f"the port {self._gate.name} is no longer served")

    def _look(self) -> None:
        self._gate.look()
        self._look_timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)


class _QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
