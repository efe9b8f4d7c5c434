"""`penstock backup`."""

import asyncio
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from penstock.cli.client.http import http_option, open_call
from penstock.cli.options import json_option
from penstock.cli.progress import Progress
from penstock.cli.tables import print_json
from penstock.model.errors import InvalidRequestError, RetryableError

SILENCE_S = 60.0
"""The server sends a line twice a second."""


@click.command("backup")
@click.option("--to", "destination", required=True, metavar="URL", help="Path or URL, without one.")
@http_option("HTTP port of the server, which makes the backup while it serves; or its URL.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Back up this directory, on which no server runs.",
)
@json_option
def command(destination: str, url: str, data: Path | None, as_json: bool) -> None:
    """Copy everything that was acknowledged so far to another store.

    The destination is a directory, or a URL such as s3://bucket/prefix; a relative path is taken
    from where this command runs.

    A cluster's agents refuse it: its bucket is its backup, see penstock restore.
    """
    if "://" not in destination:
        destination = str(Path(destination).absolute())
    manifest = _ask(url, destination) if data is None else _copy(data, destination)
    if as_json:
        print_json(manifest)
        return
    click.echo(
        f"backed up {manifest['topics']} topics, {manifest['objects']} objects, "
        f"{manifest['bytes']:,} bytes to {destination}"
    )


def _ask(url: str, destination: str) -> dict[str, Any]:
    with (
        open_call(
            "back up",
            url,
            "/v1/backup",
            method="POST",
            body={"to": destination},
            headers={"accept": "application/x-ndjson"},
            timeout_s=SILENCE_S,
            hint="is a server running there? --data DIR backs up a directory without one",
        ) as response,
        Progress("bytes", total=1) as progress,
    ):
        try:
            return _follow(response, progress, url)
        except (TimeoutError, ConnectionError) as error:
            raise RetryableError("back up", url, str(error)) from error


def _follow(lines: Iterable[bytes], progress: Progress, url: str) -> dict[str, Any]:
    """Draw how far the server is until it says what came of it."""
    for line in lines:
        value: dict[str, Any] = json.loads(line)
        if "manifest" in value:
            manifest: dict[str, Any] = value["manifest"]
            return manifest
        if "error" in value:
            raise InvalidRequestError("back up", url, value["error"])
        progress.total = value["total"]
        progress.update(value["done"], value["done"])
    raise RetryableError("back up", url, "the server ended before the backup did")


def _copy(data: Path, destination: str) -> dict[str, Any]:
    from penstock.app import offline
    from penstock.metadata.queries import Queries
    from penstock.system.clock import SystemClock
    from penstock.system.lock import DirectoryLock
    from penstock.system.randomness import SystemRandom

    layout = offline.find_data(data)
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
            offline.back_up(
                layout,
                destination,
                store=offline.open_objects(layout, queries, executor=pool),
                pool=pool,
                clock=SystemClock(),
                random=SystemRandom(),
                progress=tell,
            )
        )
