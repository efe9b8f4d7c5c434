"""Requests by presigned URLs need certain headers, and their answers have meanings of their own.

A URL is good for every process that has it. It is kept in memory, and no error, log line or pickle
shows it.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import urllib3
from typing_extensions import Buffer
from urllib3.exceptions import HTTPError

from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError

_CONNECT_TIMEOUT_S: Final = 5.0
_CONNECTIONS: Final = 64
"""Kept per host; urllib3 warns of each that it drops."""
_EXPIRED: Final = frozenset({400, 401, 403})
"""S3 and Azure answer 403, GCS 400. S3 also answers 403 for a missing object if the credentials may
not list."""
_UNSETTLED: Final = (b"<Code>ConditionalRequestConflict<", b"<Code>OperationAborted<")
"""S3's 409s: two conditional puts at once, and neither is settled."""
_THERE_ALREADY: Final = frozenset({409, 412})


class AccessOverError(PenstockError):
    """The URL isn't accepted: another one is to be asked for."""


class ObjectThereError(PenstockError):
    """A conditional put found the key taken."""


class PresignedCalls:
    """One request a call, nothing tried twice. Any thread."""

    def __init__(self, *, timeout_s: float) -> None:
        _hide_urls_in_logs()
        self._timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=timeout_s)
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=_CONNECTIONS, retries=False)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def get_range(self, url: str, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object.

        Raises:
            NotFoundError: there is no such object.
            CorruptDataError: it is shorter.
            AccessOverError: the URL is over.
            RetryableError: no good answer.
        """
        status, data, _ = self._send("GET", url, key, {"range": f"bytes={start}-{end - 1}"}, ())
        if status == 206 and len(data) == end - start:
            return data
        if status == 200 and len(data) >= end:
            return data[start:end]
        if status in {200, 206, 416}:
            raise CorruptDataError("read", key, f"the object is shorter than {end} bytes")
        raise _error("read", key, status)

    def size(self, url: str, key: str) -> int:
        """An object's size in bytes, by a URL to read it. Raises: as `get_range`."""
        status, data, headers = self._send("GET", url, key, {"range": "bytes=0-0"}, ())
        if status == 206:
            total = headers.get("content-range", "").rpartition("/")[2]
            return int(total) if total.isdigit() else -1
        if status == 200:
            return len(data)
        raise _error("look up", key, status)

    def put(self, url: str, key: str, parts: Sequence[Buffer], *, if_absent: bool = True) -> bool:
        """Store an object.

        Returns:
            False when the store doesn't know conditional puts: put again without.

        Raises:
            ObjectThereError: the key is taken.
            AccessOverError: the URL is over.
            RetryableError: no good answer; whether it was stored is unknown.
        """
        headers = put_headers(url, if_absent=if_absent)
        status, data, _ = self._send("PUT", url, key, headers, parts)
        if status in {200, 201, 204}:
            return True
        if status == 501 and if_absent:
            return False
        if status in _THERE_ALREADY and not any(code in data for code in _UNSETTLED):
            raise ObjectThereError("put", key, "it is there already")
        raise _error("put", key, status)

    def _send(
        self,
        method: str,
        url: str,
        key: str,
        headers: Mapping[str, str],
        parts: Sequence[Buffer],
    ) -> tuple[int, bytes, Mapping[str, str]]:
        sent = dict(headers)
        views: list[Any] = [memoryview(part).cast("B") for part in parts]
        if method == "PUT":
            sent["content-length"] = str(sum(map(len, views)))
        failure = ""
        try:
            response = self._pool.request(
                method,
                url,
                headers=sent,
                body=views or None,
                redirect=False,
                retries=False,
                timeout=self._timeout,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            failure = type(error).__name__
        if failure:
            # Outside of the handler, and without the error's text: both repeat the URL.
            raise RetryableError(method.lower(), key, f"the object store: {failure}")
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, response.data, headers


def put_headers(url: str, *, if_absent: bool = True) -> dict[str, str]:
    """Return the headers that a put by a presigned URL needs besides its bytes.

    S3 and Azure heed `If-None-Match` although the signature doesn't cover it. Google's condition
    (`x-goog-if-generation-match`) counts only where it was signed, which it isn't: there, only
    random names keep attempts apart.
    """
    names = {name.lower() for name, _ in parse_qsl(urlsplit(url).query)}
    condition = {"if-none-match": "*"} if if_absent else {}
    if "sig" in names:
        return {"x-ms-blob-type": "BlockBlob", **condition}
    if any(name.startswith("x-goog-") for name in names):
        return {}
    return condition


def _error(operation: str, key: str, status: int) -> PenstockError:
    if status == 404:
        return NotFoundError(operation, key, "no such object")
    if status in _EXPIRED:
        return AccessOverError(operation, key, f"HTTP {status}")
    return RetryableError(operation, key, f"the object store answered with HTTP {status}")


class _UrlFilter(logging.Filter):
    """Cuts queries of URLs, which hold signatures."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                argument.partition("?")[0] + "?..."
                if isinstance(argument, str) and "?" in argument
                else argument
                for argument in record.args
            )
        return True


_FILTER: Final = _UrlFilter()


def _hide_urls_in_logs() -> None:
    """urllib3 logs each request's path at level debug."""
    for name in ("urllib3.connectionpool", "urllib3.util.retry", "urllib3.connection"):
        logging.getLogger(name).addFilter(_FILTER)
