"""The HTTP port: metrics, health, status, backup. Imported once the Kafka port listens, since
starlette, uvicorn and prometheus_client take longer to import than a server to start."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from penstock.app.agents_api import AgentSources, agent_routes
from penstock.app.backup_stream import CONTENT_TYPE as CONTENT_TYPE_LINES
from penstock.app.backup_stream import backup_lines
from penstock.app.peer_routes import PeerSources, SecretCheck, peer_routes
from penstock.app.pipeline_api import PipelineSources, pipeline_routes
from penstock.app.repair_api import RepairSources, repair_routes
from penstock.log.backup import Progress
from penstock.model.errors import PenstockError
from penstock.observability.exposition import CONTENT_TYPE, Exposition
from penstock.observability.metrics import Metrics
from penstock.peers.secret import ClusterSecret
from penstock.version import VERSION

_POINTER = f"Penstock {VERSION}: see /v1/status, /metrics, /healthz, /readyz.\n"
_KEEP_ALIVE_S = 30
_CONNECTIONS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSources:
    """What the answers are made of.

    `status` gives a JSON object; `not_ready` the reason why the server is not ready, or "";
    `back_up` copies everything to a path or URL, tells how far it is, and gives the manifest;
    `secret` is what callers must know (None: nothing; see `SecretCheck` for what stays open);
    `peers` is what other agents are answered from, `agents` what tools are told of them, in a
    cluster; `pipeline` is what jobs are answered from, `repair` what repairs are.
    """

    metrics: Metrics
    status: Callable[[], dict[str, Any]]
    not_ready: Callable[[], str]
    back_up: Callable[[str, Progress | None], Awaitable[dict[str, Any]]]
    secret: ClusterSecret | None = None
    peers: PeerSources | None = None
    agents: AgentSources | None = None
    pipeline: PipelineSources | None = None
    repair: RepairSources | None = None


def application(sources: HttpSources) -> ASGIApp:
    """The ASGI application."""
    exposition = Exposition(sources.metrics, version=VERSION)

    async def pointer(_: Request) -> Response:
        return PlainTextResponse(_POINTER)

    async def metrics(_: Request) -> Response:
        return Response(exposition.text(), headers={"content-type": CONTENT_TYPE})

    async def healthz(_: Request) -> Response:
        # That the event loop answers is what is asked; whether clients are served is /readyz's.
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = sources.not_ready()
        if reason:
            return PlainTextResponse(f"not ready: {reason}\n", status_code=503)
        return PlainTextResponse("ready\n")

    async def status(_: Request) -> Response:
        return _json(sources.status())

    async def back_up(request: Request) -> Response:
        # A web page that a person on this machine looks at may send requests here, but no JSON
        # ones without asking first, and never without telling its origin.
        if "origin" in request.headers or not _is_json(request):
            return _problem(403, "send application/json, and not from a web page")
        try:
            wanted = msgspec.json.decode(await request.body(), type=BackupRequest)
            if CONTENT_TYPE_LINES in request.headers.get("accept", ""):
                lines = backup_lines(partial(sources.back_up, wanted.to))
                return StreamingResponse(lines, media_type=CONTENT_TYPE_LINES)
            return _json(await sources.back_up(wanted.to, None))
        except msgspec.MsgspecError as error:
            return _problem(400, str(error))
        except PenstockError as error:
            return _problem(409, str(error))

    routes: list[BaseRoute] = [
        Route("/", pointer),
        Route("/metrics", metrics),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/v1/status", status),
        Route("/v1/backup", back_up, methods=["POST"]),
    ]
    # Without a secret anybody who reaches the port could read all data through them.
    if sources.peers is not None and sources.secret is not None:
        routes += peer_routes(sources.peers)
    agents = sources.agents
    if agents is not None and (sources.secret is not None or agents.without_secret):
        routes += agent_routes(agents)
    repair = sources.repair
    if repair is not None and (sources.secret is not None or repair.without_secret):
        routes += repair_routes(repair)
    pipeline = sources.pipeline
    if pipeline is not None and (sources.secret is not None or pipeline.without_secret):
        routes += pipeline_routes(pipeline)
    return SecretCheck(Starlette(routes=routes), sources.secret)


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What POST /v1/backup takes."""

    to: str


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0] == "application/json"


def _json(value: dict[str, Any], status_code: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code, media_type="application/json")


def _problem(status_code: int, text: str) -> Response:
    return _json({"error": text}, status_code)


class HttpServer:
    """Serves the application on a socket that listens already. Start, then close."""

    def __init__(self, sources: HttpSources, listener: socket.socket) -> None:
        config = uvicorn.Config(
            application(sources),
            # Logs are configured by the server, the loop runs already, and no route needs more.
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="none",
            http="h11",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._server = _QuietServer(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve until `close`."""
        self._task = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._listener]), name="http"
        )

    async def close(self) -> None:
        """Stop; requests under way have a second to end."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()


class _QuietServer(uvicorn.Server):
    """Signals are the whole server's, not the HTTP port's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
