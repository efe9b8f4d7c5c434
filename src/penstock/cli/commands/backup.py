"""`penstock backup`."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import click

from penstock.cli.client.http import JsonObject, call_with_progress, http_option
from penstock.cli.options import json_option
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json


@click.command("backup")
@click.option(
    "--to", "destination", required=True, metavar="URL", help="Path or URL without a backup."
)
@http_option("HTTP port, or URL, of the server that makes the backup while it serves.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Back up this data directory, on which no server runs.",
)
@json_option
def command(destination: str, url: str, data: Path | None, as_json: bool) -> None:
    """Copy every record acknowledged so far to another store.

    The destination is a directory, or a URL such as s3://bucket/prefix. A relative path starts at
    the directory in which this command runs.

    A cluster's agents refuse this command: the cluster's bucket is its backup, see penstock
    restore.
    """
    if "://" not in destination:
        destination = str(Path(destination).absolute())
    manifest = _ask(url, destination) if data is None else _copy(data, destination)
    if as_json:
        print_json(manifest)
        return
    click.echo(
        f"backed up {counted(manifest['topics'], 'topic')}, "
        f"{counted(manifest['objects'], 'object')}, {counted(manifest['bytes'], 'byte')} "
        f"to {destination}"
    )


def _ask(url: str, destination: str) -> JsonObject:
    with Progress("bytes", total=1) as progress:

        def watch(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        return call_with_progress(
            "back up",
            url,
            "/v1/backup",
            body={"to": destination},
            result="manifest",
            watch=watch,
            hint="is a server running there? --data DIR backs up a directory without a server",
        )


def _copy(data: Path, destination: str) -> JsonObject:
    from penstock.recovery import directory
    from penstock.state.read.queries import Queries
    from penstock.system.clock import SystemClock
    from penstock.system.lock import DirectoryLock
    from penstock.system.randomness import SystemRandom

    layout = directory.find_data(data)
    with (
        DirectoryLock.acquire(layout.root),
        ThreadPoolExecutor(2) as pool,
        closing(Queries(layout.metadata)) as queries,
        Progress("bytes", total=1) as progress,
    ):

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        return asyncio.run(
            directory.back_up(
                layout,
                destination,
                store=directory.open_objects(layout, queries, executor=pool),
                pool=pool,
                clock=SystemClock(),
                random=SystemRandom(),
                progress=tell,
            )
        )
