"""`penstock restore`."""

import asyncio
from pathlib import Path

import click

from penstock.app.layout import DataLayout
from penstock.cli.options import json_option
from penstock.cli.progress import Progress
from penstock.cli.tables import print_json
from penstock.system.lock import DirectoryLock


@click.command("restore")
@click.option("--from", "source", required=True, metavar="URL", help="Path or URL of a backup.")
@click.option(
    "--data",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The new data directory, in which there is nothing yet.",
)
@json_option
def command(source: str, data: Path, as_json: bool) -> None:
    """Make a data directory of a backup; `penstock serve --data DIR` then goes on from there."""
    from penstock.app.offline import restore

    layout = DataLayout(data.absolute())
    with DirectoryLock.acquire(layout.root), Progress("bytes", total=1) as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        manifest = asyncio.run(restore(source, layout, tell))
    if as_json:
        print_json(manifest)
        return
    click.echo(
        f"restored {manifest['topics']} topics, {manifest['objects']} objects, "
        f"{manifest['bytes']:,} bytes to {data}"
    )
