"""`penstock authz environment`."""

import click

from penstock.cli.authz_calls import call_service, service_options
from penstock.cli.options import json_option, timeout_option
from penstock.cli.tables import print_json


@click.group("environment")
def command() -> None:
    """List and create environments of the authorization service."""


@command.command("list")
@service_options
@json_option
@timeout_option
def list_environments(url: str, key_file: str, as_json: bool, timeout_s: float) -> None:
    """List environments, by name."""
    found = call_service(
        "list environments", url, key_file, "/v1/environments", timeout_s=timeout_s
    )
    if as_json:
        print_json(found)
        return
    for name in found["environments"]:
        click.echo(name)


@command.command("create")
@click.argument("name")
@service_options
@timeout_option
def create_environment(name: str, url: str, key_file: str, timeout_s: float) -> None:
    """Create the environment NAME: 1 to 63 of a-z, 0-9 and -."""
    call_service(
        "create environment",
        url,
        key_file,
        "/v1/environments",
        method="POST",
        body={"name": name},
        timeout_s=timeout_s,
    )
    click.echo(f"created environment {name}")
