"""`penstock serve`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.config.fields import Kind, setting_fields
from penstock.config.sources import load_settings


def _setting_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add one option per setting. Other sources give the settings whose options aren't given."""
    for field in reversed(setting_fields().values()):
        names = [field.option]
        flag: dict[str, Any] = {"metavar": field.kind.value.split()[0].upper()}
        if field.kind is Kind.SWITCH:
            names = [f"{field.option}/--no-{field.option.removeprefix('--')}"]
            flag = {"is_flag": True}
        help_text = f"{field.about.text}  [default: {field.show(field.default) or 'empty'}]"
        command = click.option(*names, field.name, default=None, help=help_text, **flag)(command)
    return command


@click.command("serve")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings; PENSTOCK_CONFIG may name the file instead.",
)
@click.option("--worker", "worker", hidden=True, help="Set by the parent of workers.")
@_setting_options
def command(config_file: Path | None, worker: str | None, **options: str | bool | None) -> None:
    """Run a server in the foreground until Ctrl-C or SIGTERM, which drain it.

    Each option is a setting. The environment (PENSTOCK_DATA, ...) and a TOML file may also give
    settings: the command line wins, then the environment, then the file.
    """
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in options.items()
        if value is not None
    }
    settings = load_settings(file=config_file, environment=os.environ, command_line=given)
    from penstock.app.host.workers import WorkerPlace
    from penstock.app.run import run

    run(settings, worker=WorkerPlace.parse(worker) if worker else None)
