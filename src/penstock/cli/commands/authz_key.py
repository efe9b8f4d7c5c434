"""`penstock authz key`."""

from datetime import UTC, datetime

import click

from penstock.cli.authz_calls import call_service, service_options
from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json, print_table


@click.group("key")
def command() -> None:
    """List, create and revoke keys of the authorization service."""


@command.command("list")
@service_options
@json_option
@timeout_option
def list_keys(url: str, key_file: str, as_json: bool, timeout_s: float) -> None:
    """List keys, oldest first. The text of a key is stored nowhere."""
    found = call_service("list keys", url, key_file, "/v1/keys", timeout_s=timeout_s)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["number"],
            each["environment"],
            each["scope"],
            datetime.fromtimestamp(each["created_ms"] / 1000, UTC).isoformat(timespec="seconds"),
            each["name"],
        )
        for each in found["keys"]
    ]
    print_table(("number", "environment", "scope", "created", "name"), rows)


@command.command("create")
@click.argument("environment")
@click.option(
    "--scope",
    type=click.Choice(["read", "write", "admin"]),
    default="write",
    show_default=True,
    help="`read` asks, `write` also changes, `admin` also manages environments and keys.",
)
@click.option("--name", default="", help="Words that say whose key it is.")
@service_options
@timeout_option
def create_key(
    environment: str, scope: str, name: str, url: str, key_file: str, timeout_s: float
) -> None:
    """Create a key of ENVIRONMENT and print it. It is shown this once."""
    found = call_service(
        "create key",
        url,
        key_file,
        "/v1/keys",
        method="POST",
        body={"environment": environment, "scope": scope, "name": name},
        timeout_s=timeout_s,
    )
    click.echo(found["key"])


@command.command("revoke")
@click.argument("number")
@service_options
@timeout_option
def revoke_key(number: str, url: str, key_file: str, timeout_s: float) -> None:
    """Revoke the key that NUMBER names, as `penstock authz key list` shows it."""
    call_service(
        "revoke key",
        url,
        key_file,
        "/v1/keys",
        method="DELETE",
        body={"number": number},
        timeout_s=timeout_s,
    )
    click.echo(f"revoked key {number}")
