"""Handlers of calls share this: how they are called, bodies, and answers that come later."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.authz.service.call import Answer, Call
from penstock.authz.service.directory import Access
from penstock.authz.service.environment import Environment
from penstock.model.errors import InvalidRequestError

T = TypeVar("T")

Answering: TypeAlias = Answer | Awaitable[Answer]


class Handler(Protocol):
    """Answers a call to an environment."""

    def __call__(self, environment: Environment, access: Access, call: Call) -> Answering:
        """Answer at once, or later. Raises: PenstockError."""
        ...


_SHOWN: Final = 300


class BodyError(InvalidRequestError):
    """A body isn't JSON, or not of the call's shape."""


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Give what reads a body. It raises BodyError."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise BodyError("read", "body", f"the body isn't valid: {text[:_SHOWN]}") from error

    return read


def then(found: "T | asyncio.Future[T]", make: Callable[[T], Answer]) -> Answering:
    """Make the answer of what was found, once it is."""
    if not asyncio.isfuture(found):
        return make(found)

    async def later(waited: "asyncio.Future[Any]") -> Answer:
        return make(await waited)

    return later(found)
