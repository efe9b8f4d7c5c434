"""`penstock authz`: the authorization service and its policies."""

from collections.abc import Mapping
from typing import Final

import click

from penstock.cli.lazy import Lazy, LazyGroup

COMMANDS: Final[Mapping[str, Lazy]] = {
    "policy": Lazy("authz_policy", "Check, format and test policies, without a server."),
}


@click.group(
    "authz",
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Authorization: policies in Polar (docs/authz-polar.md)."""
