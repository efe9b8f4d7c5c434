"""`penstock status`."""

import json
import urllib.error
import urllib.request
from typing import Any

import click

from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json
from penstock.model.errors import InvalidRequestError, RetryableError

DEFAULT_URL = "http://127.0.0.1:8080"


@click.command("status")
@click.option(
    "--url",
    metavar="URL",
    envvar="PENSTOCK_STATUS_URL",
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    help="The server's HTTP port.",
)
@json_option
@timeout_option
def command(url: str, as_json: bool, timeout_s: float) -> None:
    """Show what a server says about itself."""
    status = _read(url.rstrip("/") + "/v1/status", timeout_s)
    if as_json:
        print_json(status)
        return
    rows = list(_flat(status))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


def _read(url: str, timeout_s: float) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise InvalidRequestError("read status", url, "not a URL of http or https")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - checked above
            value = json.load(response)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise RetryableError(
            "read status", url, str(reason), "is a server running there?"
        ) from error
    except ValueError as error:
        raise InvalidRequestError("read status", url, f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("read status", url, "no JSON object")
    return value


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, "-" if item is None else str(item)))
    return rows
