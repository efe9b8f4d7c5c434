"""One call of the HTTP API and its answer, without the protocol around them. Pure."""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

MUTATION_HEADER: Final = "OsoOffset"


class Call(msgspec.Struct, frozen=True):
    """A request.

    Args:
        query: the text after `?`.
        headers: by lower-case name.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class Answer(msgspec.Struct, frozen=True):
    """A response; `body` is JSON unless `content_type` says otherwise.

    Args:
        stream: gives parts of the body as they come, until one side ends it; then `body` is empty.
    """

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    stream: AsyncGenerator[bytes, None] | None = None


_encode = msgspec.json.Encoder().encode


def answer(content: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Give an answer of JSON."""
    return Answer(status, _encode(content), headers)


def failure(status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Give an error as the API does."""
    return answer({"message": message}, status, headers)
