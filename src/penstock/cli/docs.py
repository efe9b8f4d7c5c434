"""docs/cli.md, made from the commands themselves."""

from collections.abc import Iterator

import click

from penstock.cli.main import root

_HEAD = """\
# Commands

Made from `penstock.cli`; `make docs` makes it anew. Every command has `--help`; those that print
tables have `--json`. Exit status: 0 done, 1 an error (one line on standard error), 2 wrong usage.
"""
_WIDTH = 100


def cli_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for path, command in _commands("penstock", root):
        context = click.Context(
            command, info_name=path, max_content_width=_WIDTH, terminal_width=_WIDTH
        )
        text = command.get_help(context).rstrip()
        parts.append(f"\n## {path}\n\n```\n{text}\n```\n")
    return "".join(parts)


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(f"{path} {name}", found)
