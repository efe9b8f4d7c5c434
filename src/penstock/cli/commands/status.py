"""`penstock status`."""

import time
from typing import Final

import click

from penstock.cli.client.http import JsonObject, call, http_option, open_call
from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json
from penstock.model.errors import RetryableError

LOOK_S: Final = 0.2


@click.command("status")
@http_option("The server's HTTP port, or its URL.")
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Wait for this long until the server is ready: for scripts that have just started it.",
)
@json_option
@timeout_option
def command(url: str, wait_s: float, as_json: bool, timeout_s: float) -> None:
    """Show a server's status."""
    if wait_s:
        wait_until_ready(url, wait_s, timeout_s)
    status = call("read status", url, "/v1/status", timeout_s=timeout_s)
    if as_json:
        print_json(status)
        return
    rows = list(_flat(status))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


def wait_until_ready(url: str, wait_s: float, timeout_s: float) -> None:
    """Return once a server says that it is ready.

    Raises:
        RetryableError: it wasn't within `wait_s`: why, the last time.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            with open_call("wait for server", url, "/readyz", timeout_s=timeout_s):
                return
        except RetryableError:
            if time.monotonic() + LOOK_S >= end_s:
                raise
        time.sleep(LOOK_S)


def _flat(value: JsonObject, prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{name}.")
        elif isinstance(item, list) and item:
            rows += [(prefix + name, _text(each)) for each in item]
        else:
            rows.append((prefix + name, _text(item)))
    return rows


def _text(item: object) -> str:
    """Show an item on one line; what is empty or unknown is a dash, as in tables."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in item.items())
    return "-" if item in (None, "", []) else str(item)
