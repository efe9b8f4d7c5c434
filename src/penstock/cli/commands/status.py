"""`penstock status`."""

import click

from penstock.cli.client.http import JsonObject, call, http_option
from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json


@click.command("status")
@http_option("The server's HTTP port, or its URL.")
@json_option
@timeout_option
def command(url: str, as_json: bool, timeout_s: float) -> None:
    """Show a server's status."""
    status = call("read status", url, "/v1/status", timeout_s=timeout_s)
    if as_json:
        print_json(status)
        return
    rows = list(_flat(status))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


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
