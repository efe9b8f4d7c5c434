"""A lazy group imports a command only when the command is called."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is not imported yet: its module under `penstock.cli.commands`, and its text in
    the list of commands."""

    module: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that `serve` starts without
    what only clients need."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List names in the order of the table, which is the order in which people need them."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        module = importlib.import_module(f"penstock.cli.commands.{lazy.module}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])
