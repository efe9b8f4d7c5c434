"""Other agents call these HTTP routes, after a check of the cluster's secret.

docs/formats/peers.md is the protocol. This module is imported with `penstock.app.http_port`,
since starlette is slow to load.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import Buffer

from penstock.app.http.connection import read_body
from penstock.model.errors import InvalidRequestError, OverloadedError, RetryableError
from penstock.peers.blocks import OwnBlocks
from penstock.peers.codec import REQUEST_BYTES_MAX, decode_blocks, decode_wal
from penstock.peers.secret import ClusterSecret
from penstock.peers.serve import ReadWal, serve_blocks, serve_wal
from penstock.peers.standing import (
    STANDING_PATH,
    AnswerStanding,
    decode_asked,
    serve_standing,
)
from penstock.peers.wal import WAL_PATH
from penstock.peers.zone import BLOCKS_PATH, BLOCKS_PATH_UNVERSIONED
from penstock.pipeline import api_messages as api

FRAMES_TYPE: Final = "application/x-penstock-frames"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSources:
    """The sources of answers to other agents. `read_wal`: None where this agent has no WAL."""

    own: OwnBlocks
    block_bytes: int
    read_wal: ReadWal | None = None
    standing_of: AnswerStanding | None = None
    """Answers questions of agents that can't reach the journal; None: agents share no journal."""


def peer_routes(sources: PeerSources) -> Sequence[BaseRoute]:
    """Return the routes, for an application that `SecretCheck` guards."""

    async def blocks(request: Request) -> Response:
        try:
            ranges = decode_blocks(
                await read_body(request, REQUEST_BYTES_MAX), block_bytes=sources.block_bytes
            )
        except InvalidRequestError as error:
            return PlainTextResponse(str(error), 400)
        except OverloadedError as error:
            return PlainTextResponse(str(error), 503)
        versions = request.url.path == BLOCKS_PATH
        return _frames(serve_blocks(sources.own, ranges, versions=versions))

    async def wal(request: Request) -> Response:
        if sources.read_wal is None:
            return PlainTextResponse("this agent writes no WAL\n", 404)
        try:
            wanted = decode_wal(await read_body(request, REQUEST_BYTES_MAX))
        except InvalidRequestError as error:
            return PlainTextResponse(str(error), 400)
        except OverloadedError as error:
            return PlainTextResponse(str(error), 503)
        return _frames(serve_wal(sources.read_wal, wanted))

    async def standing(request: Request) -> Response:
        if sources.standing_of is None:
            return PlainTextResponse("this agent shares no journal\n", 404)
        try:
            asked = decode_asked(await read_body(request, REQUEST_BYTES_MAX))
            found = sources.standing_of(asked)
        except InvalidRequestError as error:
            return PlainTextResponse(str(error), 400)
        except RetryableError as error:
            return PlainTextResponse(str(error), 503)
        return _frames(serve_standing(found))

    return [
        Route(STANDING_PATH, standing, methods=["POST"]),
        Route(BLOCKS_PATH, blocks, methods=["POST"]),
        Route(BLOCKS_PATH_UNVERSIONED, blocks, methods=["POST"]),
        Route(WAL_PATH, wal, methods=["POST"]),
    ]


class SecretCheck:
    """ASGI middleware that answers 401 to requests without the secret.

    The check comes before routing, so that no route can be forgotten, and before a body is read.
    """

    def __init__(self, app: ASGIApp, secret: ClusterSecret) -> None:
        self._app = app
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and not self._secret.accepts(
            dict(scope["headers"]).get(b"authorization")
        ):
            await _secret_needed()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _secret_needed() -> Response:
    headers = {"www-authenticate": 'Bearer realm="penstock"', "connection": "close"}
    body = msgspec.json.encode(api.Problem(error="the cluster's secret is needed", kind="secret"))
    return Response(body, 401, headers, media_type="application/json")


def _frames(parts: AsyncIterator[Buffer]) -> Response:
    async def views() -> AsyncIterator[memoryview]:
        async for part in parts:
            yield memoryview(part)

    return StreamingResponse(views(), media_type=FRAMES_TYPE)
