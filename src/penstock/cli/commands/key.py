"""`penstock key`."""

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import click

from penstock.cli.client.http import call, http_option
from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json, print_table
from penstock.model.errors import NotFoundError

COLUMNS: Final = ("ID", "PRINCIPAL", "EXPIRES", "NOTE")
_AGE: Final = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_server = http_option("HTTP port of any server or agent, or its URL.")


@click.group("key", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make, list and revoke API keys: credentials of the HTTP port, each of one principal.

    Each command asks a server over HTTP, with the credential that PENSTOCK_API_KEY_FILE,
    PENSTOCK_API_KEY, PENSTOCK_CLUSTER_SECRET_FILE or PENSTOCK_CLUSTER_SECRET gives. Where there
    is an authorizer, listing needs DESCRIBE on the cluster, all else ALTER.
    """


@command.command("create")
@click.argument("principal", metavar="TYPE:NAME")
@click.option("--note", default="", help="What the key is for, for people.")
@click.option(
    "--expires",
    "age",
    metavar="AGE",
    help="After how long it ends, for example 12h or 30d. Without it: never.",
)
@_server
@json_option
@timeout_option
def create(
    principal: str, note: str, age: str | None, url: str, as_json: bool, timeout_s: float
) -> None:
    """Make a key of the principal TYPE:NAME, such as User:nightly, and print it.

    Access rules say what its holder may do. The key is shown this once: the server keeps a hash.
    """
    made = call(
        "make API key",
        url,
        "/v1/keys",
        method="POST",
        body={"principal": principal, "note": note, "seconds": _seconds(age)},
        timeout_s=timeout_s,
    )
    if as_json:
        print_json(made)
    else:
        click.echo(made["key"])


@command.command("list")
@_server
@json_option
@timeout_option
def list_(url: str, as_json: bool, timeout_s: float) -> None:
    """List the keys. Nothing secret is shown."""
    keys = call("list API keys", url, "/v1/keys", timeout_s=timeout_s)["keys"]
    if as_json:
        print_json(keys)
        return
    print_table(
        COLUMNS,
        [
            (key["id"], key["principal"], _expiry(key["expires_ms"], key["expired"]), key["note"])
            for key in keys
        ],
    )


@command.command("revoke")
@click.argument("key_id", metavar="ID")
@_server
@json_option
@timeout_option
def revoke(key_id: str, url: str, as_json: bool, timeout_s: float) -> None:
    """Revoke the key ID, or the key whose text this is: no agent takes it after a second."""
    found = re.fullmatch(r"(?:psk_)?([0-9a-f]{16})(?:_.*)?", key_id)
    if found is None:
        raise NotFoundError("revoke API key", key_id[:32], "an id has 16 hexadecimal digits")
    call(
        "revoke API key",
        url,
        f"/v1/keys/{quote(found[1], safe='')}",
        method="DELETE",
        timeout_s=timeout_s,
    )
    if as_json:
        print_json({"revoked": found[1]})
    else:
        click.echo(f"revoked {found[1]}")


def _seconds(age: str | None) -> int:
    if age is None:
        return 0
    found = _AGE.fullmatch(age)
    if found is None or not int(found[1]):
        raise click.UsageError(f"--expires {age}: give a number and s, m, h or d, such as 30d")
    return int(found[1]) * _SECONDS[found[2]]


def _expiry(expires_ms: int, expired: bool) -> str:
    if not expires_ms:
        return "never"
    when = datetime.fromtimestamp(expires_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{when} (over)" if expired else when
