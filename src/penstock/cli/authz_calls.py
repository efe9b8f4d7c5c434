"""Calls of the authorization service, which commands make with a key."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import click

from penstock.cli.client.http import base_url
from penstock.cli.options import Command, together
from penstock.model.errors import InvalidRequestError, NotFoundError, RetryableError

DEFAULT_HTTP = "127.0.0.1:8081"
KEY_VARIABLE = "PENSTOCK_AUTHZ_KEY"
KEY_FILE_VARIABLE = "PENSTOCK_AUTHZ_KEY_FILE"


def service_options(command: Command) -> Command:
    """Add --http and --key-file."""
    options: tuple[Callable[[Command], Command], ...] = (
        click.option(
            "--http",
            "--url",
            "url",
            metavar="HOST:PORT",
            envvar="PENSTOCK_AUTHZ_HTTP",
            default=DEFAULT_HTTP,
            show_default=True,
            show_envvar=True,
            help="The service's address, or its URL.",
        ),
        click.option(
            "--key-file",
            metavar="FILE",
            envvar=KEY_FILE_VARIABLE,
            show_envvar=True,
            default="",
            help=f"File with the key; {KEY_VARIABLE} may have the key itself.",
        ),
    )
    return together(*options)(command)


def call_service(
    operation: str,
    url: str,
    key_file: str,
    path: str,
    *,
    method: str = "GET",
    body: Mapping[str, object] | None = None,
    timeout_s: float,
) -> dict[str, Any]:
    """Make a call whose answer is a JSON object.

    Raises:
        InvalidRequestError: the service refused it, or there is no key.
        RetryableError: the service doesn't answer.
    """
    target = base_url(url) + path
    headers = {"authorization": f"Bearer {_key(key_file)}"}
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["content-type"] = "application/json"
    request = urllib.request.Request(  # noqa: S310 - checked by base_url
        target, data=data, headers=headers, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - as above
            found: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        try:
            detail = json.load(error)["message"]
        except (ValueError, KeyError, TypeError):
            detail = f"status {error.code} {error.reason}"
        kind = RetryableError if error.code == 503 else InvalidRequestError
        raise kind(operation, target, detail) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason)
        raise RetryableError(operation, target, text, "is the service running?") from error
    return found


def _key(key_file: str) -> str:
    if key_file:
        try:
            with open(key_file, encoding="utf-8") as file:  # noqa: PTH123
                return file.read().strip()
        except OSError as error:
            detail = error.strerror or str(error)
            raise NotFoundError("read key", key_file, detail) from error
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise InvalidRequestError(
            "find", "key", "no key is given", f"use --key-file DIR/key, or set {KEY_VARIABLE}"
        )
    return key
