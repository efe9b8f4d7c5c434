"""`penstock user`."""

import sys
from pathlib import Path
from typing import Final

import click

from penstock.cli.asking import ask_to_delete
from penstock.cli.client.users import delete_credentials, list_credentials, save_credentials
from penstock.cli.options import connect, json_option, server_option, timeout_option
from penstock.cli.tables import counted, print_json, print_table
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.security.scram.credential import (
    BY_SASL_NAME,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
)

COLUMNS: Final = ("user", "mechanism", "iterations")

_mechanism_option = click.option(
    "--mechanism",
    "names",
    multiple=True,
    type=click.Choice(list(BY_SASL_NAME)),
    help="May be repeated; without it, all.",
)


@click.group("user")
def command() -> None:
    """List, make and delete users' credentials: the passwords of SCRAM and PLAIN."""


@command.command("create")
@click.argument("name")
@_mechanism_option
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False),
    help="A file whose first line is the password; - for standard input. Without it, the command "
    "asks.",
)
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="Rounds of the hash: more make guessing slower, and so each connection of the user.",
)
@server_option
@timeout_option
def create(
    name: str,
    names: tuple[str, ...],
    password_file: str | None,
    iterations: int,
    server: str,
    timeout_s: float,
) -> None:
    """Give the user NAME a password, or another one in place of the one before.

    The server is sent what SCRAM derives from the password, not the password.
    """
    password = _password(password_file)
    mechanisms = _mechanisms(names)
    with connect(server, timeout_s) as client:
        save_credentials(client, name, password.encode(), mechanisms, iterations=iterations)
    click.echo(f"saved {counted(len(mechanisms), 'credential')} of {name}")


@command.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@server_option
@timeout_option
def list_command(names: tuple[str, ...], as_json: bool, server: str, timeout_s: float) -> None:
    """List credentials of the users NAME, or of all. Nothing secret is shown."""
    with connect(server, timeout_s) as client:
        found = list_credentials(client, names)
    rows = [(one.user, one.mechanism.sasl_name, one.iterations) for one in found]
    if as_json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    else:
        print_table(COLUMNS, rows)


@command.command("delete")
@click.argument("name")
@_mechanism_option
@click.option("--yes", is_flag=True, help="Don't ask.")
@server_option
@timeout_option
def delete(name: str, names: tuple[str, ...], yes: bool, server: str, timeout_s: float) -> None:
    """Delete credentials of the user NAME, which ends the connections that they opened."""
    with connect(server, timeout_s) as client:
        known = [one.mechanism for one in list_credentials(client, [name])]
        wanted = [one for one in _mechanisms(names) if one in known or names]
        if not wanted:
            raise NotFoundError("delete credentials", name, "the user has none")
        ask_to_delete(lambda: f"Delete {counted(len(wanted), 'credential')} of {name}?", yes=yes)
        delete_credentials(client, name, wanted)
    click.echo(f"deleted {counted(len(wanted), 'credential')} of {name}")


def _mechanisms(names: tuple[str, ...]) -> list[ScramMechanism]:
    return [BY_SASL_NAME[name] for name in dict.fromkeys(names)] or list(ScramMechanism)


def _password(file: str | None) -> str:
    """Return the password, which other users of the machine could read if it were an option."""
    if file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on: give --password-file")
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError("read password", file, str(error)) from error
    first = text.split("\n", 1)[0].removesuffix("\r")
    if not first:
        raise InvalidRequestError("read password", file, "its first line is empty")
    return first
