"""HTTP/1.1 requests out of bytes. Pure.

It reads what the authorization service's clients send, and refuses the rest: bodies have a
Content-Length, heads are bounded, and nothing is guessed that two servers could read differently
(request smuggling). A general server takes several hundred microseconds of CPU for a request; a
check of authorization takes twenty.

Source: RFC 9112.
"""

from http import HTTPStatus
from typing import Final

import msgspec

HEAD_BYTES_MAX: Final = 32 << 10
HEADERS_MAX: Final = 100
BODY_BYTES_MAX: Final = 10 << 20
"""Oso's clients send at most so much."""
_METHODS: Final = frozenset(["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
_TOKEN: Final = frozenset(
    b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
LAST_CHUNK: Final = b"0\r\n\r\n"
_ONCE: Final = ("content-length", "transfer-encoding", "host")
_CHANGING: Final = frozenset(["content-length", "x-request-id", "osooffset"])
_SEEN_MAX: Final = 32
_SEEN_BYTES: Final = 512
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class BadRequestError(Exception):
    """The bytes aren't a request that is served; the connection is closed after the answer."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(status, message)


class Request(msgspec.Struct, frozen=True):
    """A whole request; the target's path is as it was sent, not decoded."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    keeps_alive: bool


class _Head(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body_bytes: int
    keeps_alive: bool


class RequestReader:
    """Takes bytes as they come, in any pieces, and gives whole requests in order."""

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._body_bytes_max = body_bytes_max
        self._head: _Head | None = None
        self._searched = 0
        self._seen: dict[str, tuple[str, str]] = {}
        """Headers by their line: a client sends most of them again with each request."""

    @property
    def is_in_body(self) -> bool:
        """Whether a head has come, and its body hasn't yet."""
        return self._head is not None

    @property
    def is_empty(self) -> bool:
        """Whether no part of a request has come."""
        return self._head is None and not self._buffer

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that wait."""
        return len(self._buffer)

    @property
    def wants_continue(self) -> bool:
        """Whether the sender of the body waits for leave to send it."""
        head = self._head
        return (
            head is not None
            and not self._buffer
            and head.body_bytes > 0
            and head.headers.get("expect", "").lower() == "100-continue"
        )

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._buffer += data

    def next(self) -> Request | None:
        """Give the next whole request; None: more has to come.

        Raises:
            BadRequestError: it will never be one that is served.
        """
        head = self._head
        if head is None:
            head = self._head = self._next_head()
            if head is None:
                return None
        if len(self._buffer) < head.body_bytes:
            return None
        body = bytes(memoryview(self._buffer)[: head.body_bytes]) if head.body_bytes else b""
        del self._buffer[: head.body_bytes]
        self._head = None
        return Request(head.method, head.path, head.query, head.headers, body, head.keeps_alive)

    def _next_head(self) -> _Head | None:
        buffer = self._buffer
        # Empty lines before a request are allowed (RFC 9112, section 2.2).
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
            self._searched = 0
        end = buffer.find(b"\r\n\r\n", max(0, self._searched - 3))
        if end < 0:
            self._searched = len(buffer)
            if len(buffer) > HEAD_BYTES_MAX:
                raise BadRequestError(431, f"a head has at most {HEAD_BYTES_MAX:,} bytes")
            return None
        if end > HEAD_BYTES_MAX:
            raise BadRequestError(431, f"a head has at most {HEAD_BYTES_MAX:,} bytes")
        # Latin-1 gives each byte a character, so that nothing can fail to decode.
        lines = bytes(memoryview(buffer)[:end]).decode("latin-1").split("\r\n")
        del buffer[: end + 4]
        self._searched = 0
        return self._parsed(lines)

    def _parsed(self, lines: list[str]) -> _Head:
        parts = lines[0].split(" ")
        if len(parts) != 3:
            raise BadRequestError(400, "the first line isn't METHOD TARGET HTTP/1.1")
        method, target, version = parts
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            if version.startswith("HTTP/"):
                raise BadRequestError(505, "HTTP/1.1 is served here")
            raise BadRequestError(400, "the first line isn't METHOD TARGET HTTP/1.1")
        if method not in _METHODS:
            raise BadRequestError(501, "this method isn't served")
        if not target.startswith("/") or not target.isascii() or not target.isprintable():
            raise BadRequestError(400, "the target isn't a path")
        headers = self._headers(lines)
        if "transfer-encoding" in headers:
            raise BadRequestError(411, "send Content-Length; no transfer coding is served")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise BadRequestError(400, "Content-Length isn't a number")
        if int(length) > self._body_bytes_max:
            raise BadRequestError(
                413, f"a body of {int(length):,} bytes; {self._body_bytes_max:,} are allowed"
            )
        connection = headers.get("connection", "").lower()
        is_old = version == "HTTP/1.0"
        path, _, query = target.partition("?")
        return _Head(
            method,
            path,
            query,
            headers,
            int(length),
            connection == "keep-alive" if is_old else connection != "close",
        )

    def _headers(self, lines: list[str]) -> dict[str, str]:
        if len(lines) > HEADERS_MAX + 1:
            raise BadRequestError(431, f"more than {HEADERS_MAX} headers")
        seen = self._seen
        pairs = [seen.get(line) or self._header(line) for line in lines[1:]]
        headers = dict(pairs)
        if len(headers) < len(pairs):
            names = [name for name, _ in pairs]
            for name in _ONCE:
                if names.count(name) > 1:
                    raise BadRequestError(400, f"{name} is given twice")
        return headers

    def _header(self, line: str) -> tuple[str, str]:
        name, colon, value = line.partition(":")
        if not colon or not name or not _TOKEN.issuperset(name.encode("latin-1")):
            raise BadRequestError(400, "a header's name isn't one")
        if "\r" in value or "\n" in value or "\0" in value:
            raise BadRequestError(400, "a header's value has control characters")
        found = name.lower(), value.strip(" \t")
        if found[0] not in _CHANGING and len(self._seen) < _SEEN_MAX and len(line) < _SEEN_BYTES:
            self._seen[line] = found
        return found


def response(
    status: int,
    body: bytes,
    *,
    content_type: str,
    headers: tuple[tuple[str, str], ...] = (),
    keeps_alive: bool = True,
    without_body: bool = False,
) -> bytes:
    """Give the bytes of a response.

    Args:
        headers: without line breaks.
        without_body: the answer of HEAD.
    """
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers]
    if not keeps_alive:
        lines.append("Connection: close")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if without_body else head + body


def streamed_response(
    status: int, content_type: str, headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Give the head of a response whose body comes in chunks, and ends the connection."""
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}",
        f"Content-Type: {content_type}",
        "Transfer-Encoding: chunked",
        *(f"{name}: {value}" for name, value in headers),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def chunk(part: bytes) -> bytes:
    """Give a part of such a body; it must not be empty."""
    return b"%x\r\n%b\r\n" % (len(part), part)
