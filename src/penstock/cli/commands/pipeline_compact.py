"""`penstock pipeline compact`."""

from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.compaction_options import make_settings, plan_options
from penstock.cli.options import json_option
from penstock.cli.pipeline_options import (
    ApiOptions,
    EngineOptions,
    api_options,
    engine_options,
    open_pipeline,
)
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json

if TYPE_CHECKING:
    from penstock.pipeline.compaction.job import Summary

_SHOWN_REFUSALS = 5


@click.command("compact")
@plan_options
@api_options
@engine_options
@json_option
@click.pass_context
def command(
    context: click.Context,
    topics: tuple[str, ...],
    run_mib: int,
    object_mib: int,
    old_s: int,
    api: ApiOptions,
    engine: EngineOptions,
    as_json: bool,
) -> None:
    """Join short runs into long ones, and clean compacted topics by key.

    Consumers notice nothing, since offsets never change. The command may be stopped at any time:
    finished work stays, and unfinished work has no effect. Exit status 1: something is damaged or
    was refused.
    """
    from penstock.pipeline.compaction.job import compact

    with (
        open_pipeline(api, engine) as (client, running),
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
        f"{summary.items} of {counted(summary.planned_items, 'item')} in {summary.seconds:.1f} s: "
        f"{counted(summary.runs_before, 'run')} of {counted(summary.partitions, 'partition')} "
        f"became {counted(summary.runs_after, 'run')}"
    )
    click.echo(
        f"read {counted(summary.read_bytes, 'byte')}, "
        f"wrote {counted(summary.written_bytes, 'byte')}"
    )
    if summary.merged_batches:
        merged = counted(summary.merged_batches, "small batch", "small batches")
        click.echo(f"merged {merged} into larger ones")
    if summary.dropped_records:
        click.echo(f"left out {counted(summary.dropped_records, 'superseded record')}")
    if summary.gone_items:
        items = counted(summary.gone_items, "item")
        click.echo(f"skipped {items}, whose objects were replaced or deleted meanwhile")
    for refused in summary.refused[:_SHOWN_REFUSALS]:
        click.echo(f"not replaced: {refused.topic}-{refused.partition}: {refused.code}")
    if len(summary.refused) > _SHOWN_REFUSALS:
        click.echo(f"and {counted(len(summary.refused) - _SHOWN_REFUSALS, 'more partition')}")
    for failure in summary.failures:
        click.echo(f"penstock: {failure}", err=True)
