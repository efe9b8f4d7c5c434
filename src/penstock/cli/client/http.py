"""Calls of a server's HTTP port, as the commands make them."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final

import click

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.pipeline.secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE, find_secret

DEFAULT_URL: Final = "http://127.0.0.1:8080"


def http_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--http, the port that a command calls; also named --url."""
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
    """HOST:PORT or a URL, as a URL without a slash at its end. Raises: InvalidRequestError."""
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise InvalidRequestError("call", text, "not HOST:PORT, nor a URL of http or https")
    return url.rstrip("/")


def open_call(
    operation: str,
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: dict[str, Any] | None = None,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float,
    hint: str = "is a server running there?",
) -> Any:
    """Make a call and return the response, which the caller reads and closes. `body` is sent as
    JSON, `data` as it is.

    The cluster's secret is taken from PENSTOCK_CLUSTER_SECRET_FILE or PENSTOCK_CLUSTER_SECRET, if
    one of them is set.

    Raises:
        InvalidRequestError: the server refused it, or the secret's file can't be read.
        RetryableError: the server doesn't answer.
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
        return urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise InvalidRequestError(
                operation,
                target,
                "the cluster's secret is needed",
                f"set {SECRET_VARIABLE} or {SECRET_FILE_VARIABLE}",
            ) from None
        try:
            detail = json.load(error)["error"]
        except (ValueError, KeyError, TypeError):
            detail = str(error)
        if error.code == 503:
            raise RetryableError(operation, target, detail) from None
        raise InvalidRequestError(operation, target, detail) from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise RetryableError(
            operation, target, str(getattr(error, "reason", error)), hint
        ) from error


def call(
    operation: str,
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: dict[str, Any] | None = None,
    timeout_s: float,
) -> dict[str, Any]:
    """Make a call whose answer is a JSON object.

    Raises:
        InvalidRequestError: refused, or no JSON object came back.
        RetryableError: the server doesn't answer.
    """
    try:
        with open_call(
            operation, url, path, method=method, body=body, timeout_s=timeout_s
        ) as response:
            value = json.load(response)
    except ValueError as error:
        raise InvalidRequestError(operation, url, f"no JSON: {error}") from error
    except (TimeoutError, ConnectionError) as error:
        raise RetryableError(operation, url, str(error)) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(operation, url, "no JSON object")
    return value
