"""A call of the pipeline's door: how it is described, its JSON read and its answer made."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.app.http.connection import read_body
from penstock.model.errors import (
    InvalidRequestError,
)
from penstock.model.malformed import MALFORMED

T = TypeVar("T")
BODY_BYTES_MAX: Final = 64 << 20
"""Largest body of a JSON request: it holds a commit of many runs."""

Handler = Callable[[Request], Awaitable[Response]]
Call = tuple[str, str, str, Handler]
"""Path, method, name in metrics, and what answers."""


async def read_message(request: Request, kind: type[T]) -> T:
    """A JSON body.

    Raises:
        InvalidRequestError: it is none of that kind, or too long.
        OverloadedError: see `read_body`.
    """
    body = await read_body(request, BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise InvalidRequestError("read", request.url.path, str(error)) from error


def message(value: msgspec.Struct) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def nothing() -> Response:
    """An answer that tells nothing but that it is done."""
    return Response(b"{}", media_type="application/json")
