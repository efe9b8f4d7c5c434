"""`penstock pipeline export`."""

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

_MIB = 1 << 20


@click.command("export")
@click.option("--topic", "topics", metavar="NAME", multiple=True, required=True)
@click.option(
    "--to",
    "target",
    metavar="URL",
    required=True,
    help="A directory, or a URL such as s3://BUCKET/PREFIX; each topic gets a folder there.",
)
@click.option(
    "--compression",
    type=click.Choice(("zstd", "snappy", "gzip", "lz4", "none")),
    default="zstd",
    show_default=True,
)
@click.option(
    "--file-mib",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="About how much of the log goes into one file.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace a finished export: its files are deleted once the new files are written.",
)
@api_options
@engine_options
@json_option
def command(
    topics: tuple[str, ...],
    target: str,
    compression: str,
    file_mib: int,
    overwrite: bool,
    api: ApiOptions,
    engine: EngineOptions,
    as_json: bool,
) -> None:
    """Write all present records of topics as Parquet files, with offsets, times and headers."""
    from penstock.pipeline.export import export_topic

    done = []
    with open_pipeline(api, engine) as (client, running):
        for name in topics:
            with Progress("records", total=1) as progress:

                def watch(done_bytes: int, total_bytes: int, records: int) -> None:
                    progress.total = total_bytes
                    progress.update(done_bytes, records)

                done.append(
                    export_topic(
                        client,
                        running,
                        name,
                        target,
                        compression=compression,
                        file_bytes=file_mib * _MIB,
                        overwrite=overwrite,
                        watch=watch,
                    )
                )
    if as_json:
        print_json([msgspec.to_builtins(one) for one in done])
        return
    for one in done:
        click.echo(
            f"{one.topic}: wrote {counted(one.records, 'record')} in {counted(one.files, 'file')} "
            f"of {counted(one.bytes, 'byte')} ({one.log_bytes:,} in the log) to {one.url} "
            f"in {one.seconds:.1f} s"
        )
