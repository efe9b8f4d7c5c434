"""Commands that plan compaction share these options, and make their settings from them."""

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
            help="Only this topic; may be given several times.",
        ),
        click.option(
            "--run-mib",
            metavar="MIB",
            type=click.IntRange(min=1),
            default=usual.run_bytes_target // MIB,
            show_default=True,
            help="Runs of this size stay as they are; shorter runs are joined up to this size.",
        ),
        click.option(
            "--object-mib",
            metavar="MIB",
            type=click.IntRange(min=1),
            default=usual.object_bytes_target // MIB,
            show_default=True,
            help="Largest object that is made from several runs; each worker needs about as much "
            "memory.",
        ),
        click.option(
            "--old-after",
            "old_s",
            metavar="SECONDS",
            type=click.IntRange(min=0),
            default=usual.old_ms // 1000,
            show_default=True,
            help="Short runs of this age are joined even if there are few of them.",
        ),
    )(command)


def make_settings(run_mib: int, object_mib: int, old_s: int) -> CompactionSettings:
    """Make the settings of compaction from the options of `plan_options`."""
    return CompactionSettings(
        run_bytes_target=run_mib * MIB,
        object_bytes_target=max(run_mib, object_mib) * MIB,
        old_ms=old_s * 1000,
    )
