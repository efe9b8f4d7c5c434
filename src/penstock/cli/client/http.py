"""Commands make calls to a server's HTTP port."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import click

from penstock.cli.client.notice import notice
from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.pipeline.secret import (
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    find_secret,
)

DEFAULT_URL: Final = "http://127.0.0.1:8080"
IS_RUNNING: Final = "is a server running there?"
LINES_SILENT_S: Final = 60.0
"""A server that sends a line twice a second may be silent for this many seconds."""

JsonObject: TypeAlias = dict[str, Any]
"""An object of a server's answer, as JSON gives it."""


def http_option(help_text: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Add --http, the port that a command calls; also named --url."""
    return click.option(
        "--http",
        "--url",
        "url",
        metavar="HOST:PORT",
        envvar="PENSTOCK_STATUS_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help=help_text,
    )


def base_url(text: str) -> str:
    """Turn HOST:PORT or a URL into a URL without a slash at its end. Raises:
    InvalidRequestError."""
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise InvalidRequestError(
            "call", text, "it is neither HOST:PORT nor a URL of http or https"
        )
    return url.rstrip("/")


@contextmanager
def open_call(
    operation: str,
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: Mapping[str, object] | None = None,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float,
    hint: str = IS_RUNNING,
) -> Iterator[http.client.HTTPResponse]:
    """Make a call and yield the response, which is read inside the block. `body` is sent as JSON,
    `data` as it is.

    The credential is what `find_secret` finds in the environment, if there is one.

    Raises:
        InvalidRequestError: the server refused the call, or the secret's file can't be read.
        RetryableError: the server doesn't answer, or its answer was cut off.
    """
    target = base_url(url) + path
    all_headers = dict(headers or {})
    if secret := find_secret():
        all_headers["authorization"] = secret.header
    if data is not None:
        all_headers["content-type"] = "application/octet-stream"
    if body is not None:
        data = json.dumps(body).encode()
        all_headers["content-type"] = "application/json"
    request = urllib.request.Request(  # noqa: S310 - checked by base_url
        target, data=data, headers=all_headers, method=method
    )
    try:
        with notice(base_url(url), timeout_s):
            response = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise InvalidRequestError(
                operation,
                target,
                "a credential is needed: an API key, a token, or the cluster's secret",
                f"set {KEY_VARIABLE}, {KEY_FILE_VARIABLE}, {SECRET_VARIABLE} or "
                f"{SECRET_FILE_VARIABLE}",
            ) from None
        try:
            detail = json.load(error)["error"]
        except (ValueError, KeyError, TypeError):
            detail = f"status {error.code} {error.reason}, so it may not be a Penstock server"
        if error.code == 503:
            raise RetryableError(operation, target, detail) from None
        raise InvalidRequestError(operation, target, detail) from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise RetryableError(operation, target, _reason(error), hint) from error
    with response:
        try:
            yield response
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            detail = f"the answer was cut off: {error or type(error).__name__}"
            raise RetryableError(operation, target, detail) from error


def call(
    operation: str,
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: Mapping[str, object] | None = None,
    data: bytes | None = None,
    timeout_s: float,
) -> JsonObject:
    """Make a call whose answer is a JSON object.

    Raises:
        InvalidRequestError: the server refused the call, or its answer is not a JSON object.
        RetryableError: the server doesn't answer, or its answer was cut off.
    """
    try:
        with open_call(
            operation, url, path, method=method, body=body, data=data, timeout_s=timeout_s
        ) as response:
            value = json.load(response)
    except ValueError as error:
        raise InvalidRequestError(operation, url, f"the answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(operation, url, "the answer is not a JSON object")
    return value


def _reason(error: Exception) -> str:
    """Say why a call failed, without the error's number: `str` gives "[Errno 111] Connection
    ..."."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def call_with_progress(
    operation: str,
    url: str,
    path: str,
    *,
    body: Mapping[str, object],
    result: str,
    watch: Callable[[int, int], None],
    hint: str = IS_RUNNING,
) -> JsonObject:
    """Make a call whose answer is lines of JSON: the work's progress, then its result.

    Args:
        result: the last line's key for the result.
        watch: called with the bytes done so far and the bytes in all.

    Raises:
        InvalidRequestError: the server refused the work, or the work failed.
        RetryableError: the server doesn't answer, or ended before the work did.
    """
    with open_call(
        operation,
        url,
        path,
        method="POST",
        body=body,
        headers={"accept": "application/x-ndjson"},
        timeout_s=LINES_SILENT_S,
        hint=hint,
    ) as lines:
        for line in lines:
            try:
                value: JsonObject = json.loads(line)
            except ValueError as error:
                detail = f"the answer was cut off in a line of {len(line)} bytes"
                raise RetryableError(operation, url, detail) from error
            if result in value:
                found: JsonObject = value[result]
                return found
            if "error" in value:
                raise InvalidRequestError(operation, url, value["error"])
            watch(value["done"], value["total"])
    raise RetryableError(operation, url, "the server ended before the work did")
