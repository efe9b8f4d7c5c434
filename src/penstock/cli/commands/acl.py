"""`penstock acl`."""

from collections.abc import Callable, Sequence
from typing import Final

import click
from msgspec import Struct

from penstock.cli.asking import ask_to_delete
from penstock.cli.client.acls import create_acls, delete_acls, describe_acls
from penstock.cli.client.cluster import Client
from penstock.cli.options import (
    Command,
    connect,
    json_option,
    packed,
    server_option,
    timeout_option,
    together,
)
from penstock.cli.tables import counted, print_json, print_table
from penstock.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    binding_problem,
)

COLUMNS: Final = ("principal", "host", "permission", "operation", "resource", "pattern", "name")
_OPERATIONS: Final = [
    one.name.lower().replace("_", "-")
    for one in Operation
    if one not in (Operation.UNKNOWN, Operation.ANY)
]


class Resources(Struct, frozen=True, kw_only=True):
    """The resources that a command names, by the options of their types."""

    topics: tuple[str, ...]
    groups: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    tokens: tuple[str, ...]
    users: tuple[str, ...]
    cluster: bool

    def named(self) -> list[tuple[ResourceType, str]]:
        """Return types and names of all of them."""
        every = (
            (ResourceType.TOPIC, self.topics),
            (ResourceType.GROUP, self.groups),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_ids),
            (ResourceType.DELEGATION_TOKEN, self.tokens),
            (ResourceType.USER, self.users),
            (ResourceType.CLUSTER, (CLUSTER_NAME,) if self.cluster else ()),
        )
        return [(kind, name) for kind, names in every for name in names]


def _named_option(name: str, field: str, help_text: str) -> Callable[[Command], Command]:
    return click.option(name, field, multiple=True, metavar="NAME", help=help_text)


_resources_option = packed(
    "resources",
    Resources,
    _named_option("--topic", "topics", "A topic, or * for all. May be repeated."),
    _named_option("--group", "groups", "A group, or * for all. May be repeated."),
    _named_option("--transactional-id", "transactional_ids", "The same of transactional ids."),
    _named_option("--delegation-token", "tokens", "The same of delegation tokens."),
    _named_option("--user", "users", "The same of users whose tokens are made or listed."),
    click.option("--cluster", is_flag=True, help="The cluster."),
)
_operation_type = click.Choice(_OPERATIONS, case_sensitive=False)


def _filter_options(command: Command) -> Command:
    return together(
        _resources_option,
        click.option("--prefixed", is_flag=True, help="Only rules for this prefix of names."),
        click.option(
            "--about",
            is_flag=True,
            help="All rules about a resource of this name: by name, by prefix, and for all.",
        ),
        click.option("--principal", metavar="TYPE:NAME", help="Only rules of this principal."),
        click.option("--host", help="Only rules for this host."),
        click.option("--operation", type=_operation_type, help="Only rules for this operation."),
    )(command)


@click.group("acl")
def command() -> None:
    """List, add and delete access rules: what clients may do."""


@command.command("add")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="TYPE:NAME",
    help="Allow this principal, such as User:alice, or User:* for all. May be repeated.",
)
@click.option(
    "--deny",
    "denied",
    multiple=True,
    metavar="TYPE:NAME",
    help="Deny it, whatever other rules allow. May be repeated.",
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    required=True,
    type=_operation_type,
    help="May be repeated.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=(WILDCARD,),
    show_default=True,
    help="An address, a network such as 10.0.0.0/8, or * for all. May be repeated.",
)
@_resources_option
@click.option("--prefixed", is_flag=True, help="Names are prefixes of names.")
@server_option
@timeout_option
def add(
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    operations: tuple[str, ...],
    hosts: tuple[str, ...],
    resources: Resources,
    prefixed: bool,
    server: str,
    timeout_s: float,
) -> None:
    """Add a rule for each principal, operation, host and resource.

    Rules that are there already stay.
    """
    named = resources.named()
    if not named:
        raise click.UsageError("name a resource: --topic, --group, --cluster or another one")
    who = [(name, Permission.ALLOW) for name in allowed]
    who += [(name, Permission.DENY) for name in denied]
    if not who:
        raise click.UsageError("name a principal: --allow or --deny")
    bindings = [
        AclBinding(
            kind,
            name,
            _pattern(kind, prefixed=prefixed),
            principal,
            host,
            _operation(operation),
            permission,
        )
        for kind, name in named
        for principal, permission in who
        for host in hosts
        for operation in operations
    ]
    for binding in bindings:
        problem = binding_problem(binding)
        if problem is not None:
            raise click.UsageError(problem)
    with connect(server, timeout_s) as client:
        create_acls(client, bindings)
    click.echo(f"added {counted(len(bindings), 'rule')}")


@command.command("list")
@_filter_options
@json_option
@server_option
@timeout_option
def list_command(
    resources: Resources,
    prefixed: bool,
    about: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
    as_json: bool,
    server: str,
    timeout_s: float,
) -> None:
    """List rules; without options all of them."""
    filters = _filters(resources, prefixed, about, principal, host, operation)
    with connect(server, timeout_s) as client:
        found = {binding for one in filters for binding in describe_acls(client, one)}
    _print(sorted(found), as_json=as_json)


@command.command("delete")
@_filter_options
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@server_option
@timeout_option
def delete(
    resources: Resources,
    prefixed: bool,
    about: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
    yes: bool,
    as_json: bool,
    server: str,
    timeout_s: float,
) -> None:
    """Delete the rules that all options together find, and print them."""
    filters = _filters(resources, prefixed, about, principal, host, operation)
    if filters == [AclFilter()]:
        raise click.UsageError("name a resource, a principal, a host or an operation")
    with connect(server, timeout_s) as client:
        ask_to_delete(lambda: f"Delete {_count(client, filters)}?", yes=yes)
        gone = {binding for one in filters for binding in delete_acls(client, one)}
    _print(sorted(gone), as_json=as_json)


def _count(client: Client, filters: Sequence[AclFilter]) -> str:
    found = {binding for one in filters for binding in describe_acls(client, one)}
    return counted(len(found), "rule")


def _filters(
    resources: Resources,
    prefixed: bool,
    about: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
) -> list[AclFilter]:
    if prefixed and about:
        raise click.UsageError("give --prefixed or --about, not both")
    named = resources.named()
    if about and not named:
        raise click.UsageError("--about needs a resource")
    pattern = PatternType.MATCH if about else PatternType.LITERAL
    if prefixed:
        pattern = PatternType.PREFIXED
    rest = {
        "principal": principal,
        "host": host,
        "operation": Operation.ANY if operation is None else _operation(operation),
    }
    if not named:
        kind = PatternType.PREFIXED if prefixed else PatternType.ANY
        return [AclFilter(pattern_type=kind, **rest)]  # type: ignore[arg-type]
    return [
        AclFilter(resource_type=kind, name=name, pattern_type=pattern, **rest)  # type: ignore[arg-type]
        for kind, name in named
    ]


def _pattern(kind: ResourceType, *, prefixed: bool) -> PatternType:
    if prefixed and kind is not ResourceType.CLUSTER:
        return PatternType.PREFIXED
    return PatternType.LITERAL


def _operation(text: str) -> Operation:
    return Operation[text.upper().replace("-", "_")]


def _print(bindings: Sequence[AclBinding], *, as_json: bool) -> None:
    rows = [
        (
            binding.principal,
            binding.host,
            Permission(binding.permission).name.lower(),
            Operation(binding.operation).name.lower(),
            ResourceType(binding.resource_type).name.lower(),
            PatternType(binding.pattern_type).name.lower(),
            binding.name,
        )
        for binding in bindings
    ]
    if as_json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
        return
    print_table(COLUMNS, rows)
