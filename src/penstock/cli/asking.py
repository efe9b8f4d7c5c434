"""Asks before what can't be undone."""

import sys
from collections.abc import Callable

import click


def ask_to_delete(question: Callable[[], str], *, yes: bool) -> None:
    """Ask on the terminal, unless the caller said yes before.

    Args:
        question: makes the question, once there is a terminal to ask on.

    Raises:
        click.UsageError: there is no terminal.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: give --yes to delete")
    click.confirm(question(), abort=True)
