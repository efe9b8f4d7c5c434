"""docs/cli.md, made from the commands themselves."""

from collections.abc import Iterator

import click

from penstock.cli.main import root

_HEAD = """\
# Commands

Made from `penstock.cli` by `make docs`. Every command has `--help`; those that print
tables have `--json`. Exit status: 0 done, 1 an error (one line on standard error), 2 wrong usage,
130 interrupted by Ctrl-C; those whose help says "until Ctrl-C" end with 0.
"""
_WIDTH = 100


def cli_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for context in _contexts("penstock", root, None):
        text = context.get_help().rstrip()
        parts.append(f"\n## {context.command_path}\n\n```\n{text}\n```\n")
    return "".join(parts)


def _contexts(
    name: str, command: click.Command, parent: click.Context | None
) -> Iterator[click.Context]:
    """A context of each command, made as a call of it makes one, since what is shown depends on
    those above it."""
    settings = {**command.context_settings, "max_content_width": _WIDTH, "terminal_width": _WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _contexts(child, found, context)
