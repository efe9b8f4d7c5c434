"""Calls of the pipeline API are described, their JSON is read and their answers are made here."""

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
"""The largest body of a JSON request, which has room for a commit of many runs."""

Handler = Callable[[Request], Awaitable[Response]]
Call = tuple[str, str, str, Handler]
"""A path, a method, the call's name in metrics, and the handler."""


async def read_message(request: Request, kind: type[T]) -> T:
    """Read a JSON body.

    Raises:
        InvalidRequestError: the body is not a message of this kind, or is too long.
        OverloadedError: see `read_body`.
    """
    body = await read_body(request, BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise InvalidRequestError("read", request.url.path, str(error)) from error


def message(value: msgspec.Struct) -> Response:
    """Make a JSON answer."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def nothing() -> Response:
    """Make the empty answer of a call that succeeded."""
    return Response(b"{}", media_type="application/json")
