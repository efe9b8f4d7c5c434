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
        else:
            rows.append((prefix + name, "-" if item is None else str(item)))
    return rows
