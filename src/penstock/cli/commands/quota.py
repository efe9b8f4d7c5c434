"""`penstock quota`."""

from collections.abc import Mapping, Sequence
from typing import Final

import click
from msgspec import Struct

from penstock.cli.client.quotas import alter_quotas, describe_quotas
from penstock.cli.options import (
    connect,
    json_option,
    packed,
    server_option,
    timeout_option,
)
from penstock.cli.tables import print_json, print_table
from penstock.security.quota import (
    CLIENT_ID,
    DEFAULT,
    IP,
    KEYS,
    USER,
    QuotaChange,
    QuotaEntity,
    entity_problem,
    value_problem,
)

COLUMNS: Final = (USER, CLIENT_ID, IP, "key", "value")


class Names(Struct, frozen=True, kw_only=True):
    """The entity that a command names."""

    user: str | None
    default_user: bool
    client_id: str | None
    default_client_id: bool
    ip: str | None
    default_ip: bool

    def entity(self) -> QuotaEntity:
        """Return it; empty: the command names none."""
        return QuotaEntity(
            _name("user", self.user, default=self.default_user),
            _name("client-id", self.client_id, default=self.default_client_id),
            _name("ip", self.ip, default=self.default_ip),
        )


def _name(option: str, name: str | None, *, default: bool) -> str | None:
    if default and name is not None:
        raise click.UsageError(f"give --{option} or --default-{option}, not both")
    if name == "":
        raise click.UsageError(f"--{option} is empty: give a name, or --default-{option}")
    return DEFAULT if default else name


_names_option = packed(
    "names",
    Names,
    click.option("--user", metavar="NAME", help="A user, without its type: alice."),
    click.option("--default-user", is_flag=True, help="Each user without a quota of its own."),
    click.option("--client-id", metavar="NAME", help="A client id; with --user: of that user."),
    click.option("--default-client-id", is_flag=True, help="Each client id without its own."),
    click.option("--ip", metavar="ADDRESS", help="An address that clients connect from."),
    click.option("--default-ip", is_flag=True, help="Each address without its own."),
)


@click.group("quota")
def command() -> None:
    """List, set and remove quotas: how much clients may use."""


@command.command("set")
@click.argument("quotas", nargs=-1, required=True, metavar="KEY=VALUE...")
@_names_option
@server_option
@timeout_option
def set_command(quotas: tuple[str, ...], names: Names, server: str, timeout_s: float) -> None:
    """Set quotas of a user, a client id, both, or an address.

    Keys: producer_byte_rate and consumer_byte_rate in bytes per second, request_percentage of one
    processor, controller_mutation_rate in partitions per second; of an address
    connection_creation_rate per second.
    """
    entity = _checked(names)
    changes: dict[str, float | None] = {}
    for text in quotas:
        key, separator, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            separator = ""
        if not separator:
            raise click.UsageError(f"{text!r} is not KEY=VALUE with a number")
        problem = value_problem(QuotaChange(entity, key, number))
        if problem is not None:
            raise click.UsageError(problem)
        changes[key] = number
    with connect(server, timeout_s) as client:
        alter_quotas(client, entity, changes)
    click.echo(f"set {', '.join(quotas)} of {entity}")


@command.command("remove")
@click.argument("keys", nargs=-1, required=True, type=click.Choice(KEYS), metavar="KEY...")
@_names_option
@server_option
@timeout_option
def remove(keys: tuple[str, ...], names: Names, server: str, timeout_s: float) -> None:
    """Remove quotas of a user, a client id, both, or an address."""
    entity = _checked(names)
    with connect(server, timeout_s) as client:
        alter_quotas(client, entity, dict.fromkeys(keys))
    click.echo(f"removed {', '.join(keys)} of {entity}")


@command.command("list")
@_names_option
@json_option
@server_option
@timeout_option
def list_command(names: Names, as_json: bool, server: str, timeout_s: float) -> None:
    """List quotas; with names those of each entity that has them."""
    with connect(server, timeout_s) as client:
        found = describe_quotas(client, names.entity())
    _print(found, as_json=as_json)


def _checked(names: Names) -> QuotaEntity:
    entity = names.entity()
    problem = entity_problem(entity)
    if problem is not None:
        raise click.UsageError(problem)
    return entity


def _print(found: Sequence[tuple[QuotaEntity, Mapping[str, float]]], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"entity": {kind: name or None for kind, name in entity.parts()}, "quotas": quotas}
                for entity, quotas in found
            ]
        )
        return
    rows = [
        (*map(_shown, (entity.user, entity.client_id, entity.ip)), key, _number(value))
        for entity, quotas in found
        for key, value in sorted(quotas.items())
    ]
    print_table(COLUMNS, rows)


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def _shown(name: str | None) -> str:
    return "-" if name is None else name or "(default)"
