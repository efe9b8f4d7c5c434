"""`penstock pipeline import`."""

import click
import msgspec

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


@click.command("import")
@click.option(
    "--from",
    "source",
    metavar="URL",
    required=True,
    help="The folder that `penstock pipeline export` made of a topic.",
)
@click.option(
    "--topic",
    "name",
    metavar="NAME",
    default="",
    help="Name of the topic; without it, the exported topic's name.",
)
@click.option(
    "--offsets",
    type=click.Choice(("keep", "new")),
    default="keep",
    show_default=True,
    help="keep: keep the offsets; the topic must be empty. append: append to the topic's records, "
    "without gaps.",
)
@click.option(
    "--import-id",
    metavar="TEXT",
    default="",
    help="Name of this import: another call with the same name goes on where the first stopped. "
    "Without it, the export and the topic give the name.",
)
@click.option(
    "--codec",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    default="zstd",
    show_default=True,
    help="Compression of the batches in the log.",
)
@api_options
@engine_options
@json_option
def command(
    source: str,
    name: str,
    offsets: str,
    import_id: str,
    codec: str,
    api: ApiOptions,
    engine: EngineOptions,
    as_json: bool,
) -> None:
    """Write an export into an existing topic, once, however often the command is repeated.

    Partitions, order, keys, values, headers and timestamps stay as they were; producers' ids don't.
    """
    from penstock.pipeline.imports import import_topic

    with (
        open_pipeline(api, engine) as (client, running),
        Progress("records", total=1) as progress,
    ):

        def watch(records: int, total: int) -> None:
            progress.total = total
            progress.update(records, records)

        done = import_topic(
            client,
            running,
            source,
            name=name,
            import_id=import_id,
            offsets=offsets,
            codec=codec,
            watch=watch,
        )
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    click.echo(f"{done.topic}: {counted(done.records, 'record')} in {done.seconds:.1f} s")
    if done.repeated_records:
        repeated = counted(done.repeated_records, "record")
        click.echo(f"{repeated} had already been written by an earlier call")
