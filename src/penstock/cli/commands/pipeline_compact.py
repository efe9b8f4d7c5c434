"""`penstock pipeline compact`."""

from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.compaction_options import make_settings, plan_options
from penstock.cli.options import json_option
from penstock.cli.pipeline_options import (
    door_options,
    engine_options,
    make_door,
    make_engine,
    open_engine,
)
from penstock.cli.progress import Progress
from penstock.cli.tables import print_json

if TYPE_CHECKING:
    from penstock.pipeline.compaction.job import Summary

_SHOWN_REFUSALS = 5


@click.command("compact")
@plan_options
@door_options
@engine_options
@json_option
@click.pass_context
def command(
    context: click.Context,
    topics: tuple[str, ...],
    run_mib: int,
    object_mib: int,
    old_s: int,
    urls: tuple[str, ...],
    secret_file: str,
    objects: str,
    engine: str | None,
    master: str | None,
    memory: str,
    workers: int,
    ui_port: int,
    as_json: bool,
) -> None:
    """Join short runs into long ones, and clean compacted topics by key.

    Consumers notice nothing: offsets never change. What it is stopped in the middle of is left
    undone, and the rest stays done. Exit status 1: something is damaged or was refused.
    """
    door = make_door(urls, secret_file, objects)
    choice = make_engine(engine, master, memory, workers, ui_port)
    from penstock.pipeline.client import DoorClient
    from penstock.pipeline.compaction.job import compact

    with (
        DoorClient(door) as client,
        open_engine(choice, urls=door.urls) as running,
        Progress("bytes", total=1) as progress,
    ):

        def watch(done_bytes: int, total_bytes: int, _items: int) -> None:
            progress.total = total_bytes
            progress.update(done_bytes, done_bytes)

        summary = compact(
            client,
            running,
            make_settings(run_mib, object_mib, old_s),
            names=topics or None,
            watch=watch,
        )
    if as_json:
        print_json(msgspec.to_builtins(summary))
    else:
        _print(summary)
    if summary.failures:
        context.exit(1)


def _print(summary: "Summary") -> None:
    click.echo(
        f"{summary.items} of {summary.planned_items} items in {summary.seconds:.1f} s: "
        f"{summary.runs_before:,} runs of {summary.partitions:,} partitions became "
        f"{summary.runs_after:,}"
    )
    click.echo(f"read {summary.read_bytes:,} bytes, wrote {summary.written_bytes:,}")
    if summary.dropped_records:
        click.echo(f"{summary.dropped_records:,} superseded records were left out")
    if summary.gone_items:
        click.echo(f"{summary.gone_items} items were of no use any more: their objects are gone")
    for refused in summary.refused[:_SHOWN_REFUSALS]:
        click.echo(f"not replaced: {refused.topic}-{refused.partition}: {refused.code}")
    if len(summary.refused) > _SHOWN_REFUSALS:
        click.echo(f"and {len(summary.refused) - _SHOWN_REFUSALS} partitions more")
    for failure in summary.failures:
        click.echo(f"penstock: {failure}", err=True)
