"""These HTTP calls list, drain and remove a cluster's agents, and take over their WALs."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.http.callers import DeniedError
from penstock.app.http.connection import BodyTooLargeError, read_body
from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.model.malformed import MALFORMED

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSources:
    """The functions that answer the calls; each raises PenstockError."""

    agents: Callable[[], list[dict[str, object]]]
    drain: Callable[[int, bool], Awaitable[None]]
    remove: Callable[[int], Awaitable[None]]
    take_over: Callable[[str], Awaitable[int]] | None = None
    """Takes over the WAL in a directory; returns the bytes of records that were moved. None: this
    agent can't take over WALs."""
    without_secret: bool = False
    """Whether calls need no secret. Workers of one host need none, since clients that reach their
    ports may make a backup as well."""


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/agents/ID/drain."""

    draining: bool = True


class TakeoverRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/takeover."""

    directory: str


def agent_routes(sources: AgentSources) -> Sequence[BaseRoute]:
    """Return the routes, for an application that has checked the secret."""

    async def agents(_: Request) -> Response:
        return json_response({"agents": sources.agents()})

    async def drain(request: Request) -> Response:
        wanted = msgspec.json.decode(await read_body(request), type=DrainRequest)
        await sources.drain(_agent_id(request), wanted.draining)
        note_change(request, f"draining of agent {_agent_id(request)} -> {wanted.draining}")
        return json_response({})

    async def remove(request: Request) -> Response:
        await sources.remove(_agent_id(request))
        note_change(request, f"agent {_agent_id(request)} removed")
        return json_response({})

    async def take_over(request: Request) -> Response:
        if sources.take_over is None:
            raise NotFoundError(
                "take over", "WAL", "this agent can't take over WALs", "ask another agent"
            )
        wanted = msgspec.json.decode(await read_body(request), type=TakeoverRequest)
        return json_response({"bytes": await sources.take_over(wanted.directory)})

    return [
        Route("/v1/agents", answered(agents)),
        Route("/v1/agents/{agent:int}/drain", answered(drain), methods=["POST"]),
        Route("/v1/agents/{agent:int}", answered(remove), methods=["DELETE"]),
        Route("/v1/takeover", answered(take_over), methods=["POST"]),
    ]


def answered(
    handle: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler so that its errors become answers with the fitting status."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except BodyTooLargeError as error:
            # The rest of the body isn't received, so the connection can't be used again.
            return json_response({"error": str(error)}, 413, {"connection": "close"})
        except DeniedError as error:
            return json_response({"error": str(error), "kind": "denied"}, 403)
        except MALFORMED as error:
            return json_response({"error": str(error)}, 400)
        except NotFoundError as error:
            return json_response({"error": str(error)}, 404)
        except RetryableError as error:
            return json_response({"error": str(error)}, 503)
        except PenstockError as error:
            return json_response({"error": str(error)}, 409)

    return answer


def note_change(request: Request, change: str) -> None:
    """Log an administrative change, with the address of the client that made it."""
    address = "?" if request.client is None else request.client.host
    logger.info("client at %s (HTTP): %s", address, change)


def _agent_id(request: Request) -> int:
    agent: int = request.path_params["agent"]
    return agent


def json_response(
    value: dict[str, object], status_code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Make an answer of JSON."""
    return Response(msgspec.json.encode(value), status_code, headers, "application/json")
