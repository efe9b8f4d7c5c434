"""Options of the commands that plan compaction, and what is made of them."""

import click

from penstock.cli.options import Command, together
from penstock.pipeline.compaction.items import MIB, CompactionSettings


def plan_options(command: Command) -> Command:
    """--topic, --run-mib, --object-mib and --old-after; see `make_settings`."""
    usual = CompactionSettings()
    return together(
        click.option(
            "--topic",
            "topics",
            metavar="NAME",
            multiple=True,
            help="Of these topics alone; may be given several times.",
        ),
        click.option(
            "--run-mib",
            metavar="MIB",
            type=click.IntRange(min=1),
            default=usual.run_bytes_target // MIB,
            show_default=True,
            help="Runs of this length are left alone, shorter ones are joined up to it.",
        ),
        click.option(
            "--object-mib",
            metavar="MIB",
            type=click.IntRange(min=1),
            default=usual.object_bytes_target // MIB,
            show_default=True,
            help="Longest object that is made of several runs: about the memory of each worker.",
        ),
        click.option(
            "--old-after",
            "old_s",
            metavar="SECONDS",
            type=click.IntRange(min=0),
            default=usual.old_ms // 1000,
            show_default=True,
            help="Short runs of this age are joined even if they are few.",
        ),
    )(command)


def make_settings(run_mib: int, object_mib: int, old_s: int) -> CompactionSettings:
    """What the options of `plan_options` say."""
    return CompactionSettings(
        run_bytes_target=run_mib * MIB,
        object_bytes_target=max(run_mib, object_mib) * MIB,
        old_ms=old_s * 1000,
    )
