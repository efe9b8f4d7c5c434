"""`penstock authz`: the authorization service and its policies."""

from collections.abc import Mapping
from typing import Final

import click

from penstock.cli.lazy import Lazy, LazyGroup

COMMANDS: Final[Mapping[str, Lazy]] = {
    "serve": Lazy("authz_serve", "Run the authorization service in the foreground."),
    "explain": Lazy("authz_explain", "Say why something is allowed, or what would allow it."),
    "environment": Lazy("authz_environment", "List and create environments."),
    "key": Lazy("authz_key", "List, create and revoke keys."),
    "recover": Lazy("authz_recover", "Make a database of an earlier position."),
    "policy": Lazy("authz_policy", "Check, format and test policies, without a server."),
}


@click.group(
    "authz",
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Authorization: the service (docs/authz.md) and policies in Polar (docs/authz-polar.md)."""
