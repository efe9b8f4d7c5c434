"""`penstock restore`."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.client.http import JsonObject
from penstock.cli.options import json_option, parse_time
from penstock.cli.pipeline_options import EngineOptions, engine_options, open_engine
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json
from penstock.log.layout import DataLayout
from penstock.system.clock import SystemClock
from penstock.system.lock import DirectoryLock
from penstock.system.randomness import SystemRandom

if TYPE_CHECKING:
    from penstock.pipeline.engine_choice import EngineChoice
    from penstock.recovery.due_runs import DueOf


@click.command("restore")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="URL",
    help="Path or URL of a backup, or of a cluster's objects (its setting `objects`).",
)
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Make a data directory here, where there is nothing yet.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="Make a cluster with its objects at this URL, which has no cluster yet. Needs --journal.",
)
@click.option("--journal", metavar="URL", help="The new cluster's database.")
@click.option(
    "--cluster-name",
    default="penstock",
    show_default=True,
    metavar="NAME",
    help="The new cluster's setting `cluster_name`, which no journal may have yet.",
)
@click.option(
    "--to-time",
    metavar="TIME",
    help="Restore the state at this time: ms since the epoch, or ISO 8601 (UTC without a zone).",
)
@click.option(
    "--position",
    type=click.IntRange(min=1),
    help="Restore the state at this position of the journal.",
)
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Leave gaps where only an agent's WAL held the records, instead of refusing.",
)
@click.option(
    "--copy",
    "copies",
    is_flag=True,
    help="Copy the cluster's objects, so that the new cluster doesn't need the old one's.",
)
@engine_options
@json_option
def command(
    source: str,
    data: Path | None,
    objects: str | None,
    journal: str | None,
    cluster_name: str,
    to_time: str | None,
    position: int | None,
    allow_loss: bool,
    copies: bool,
    engine: EngineOptions,
    as_json: bool,
) -> None:
    """Make a data directory from a backup, or a cluster from a cluster's bucket as of some moment.

    From a backup: afterwards `penstock serve --data DIR` serves the restored directory.

    From a cluster's objects: the archive in the bucket gives the state, by default the last state.
    The new cluster has its own id, journal and prefix, or is an embedded server's data directory.
    It reads inherited objects in the parent's bucket, and never deletes them: keep the parent's
    bucket, or give --copy. With --copy or --engine all objects are read and checked first, in
    parallel: by Spark's executors, which open both stores with credentials of their own
    environment, or by threads.
    """
    from penstock.recovery.cluster import holds_backup

    if data is not None and (objects is not None or journal is not None):
        raise click.UsageError("give either --data, or --objects and --journal")
    if to_time is not None and position is not None:
        raise click.UsageError("give either --to-time or --position")
    if asyncio.run(holds_backup(source, clock=SystemClock(), random=SystemRandom())):
        if data is None or to_time is not None or position is not None or copies:
            raise click.UsageError("a backup is restored as it is: give --data alone")
        _of_backup(source, data, as_json=as_json)
        return
    if data is None and (objects is None or journal is None):
        raise click.UsageError("give --data, or --objects and --journal")
    _of_cluster(
        source,
        data=data,
        objects=objects or "",
        journal=journal or "",
        cluster_name=cluster_name,
        time_ms=None if to_time is None else parse_time(to_time),
        position=position,
        allow_loss=allow_loss,
        copies=copies,
        choice=engine.choose(),
        reads=copies or engine.is_given,
        as_json=as_json,
    )


def _of_backup(source: str, data: Path, *, as_json: bool) -> None:
    from penstock.recovery.directory import restore

    layout = DataLayout(data.absolute())
    with DirectoryLock.acquire(layout.root), Progress("bytes", total=1) as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        manifest = asyncio.run(
            restore(source, layout, clock=SystemClock(), random=SystemRandom(), progress=tell)
        )
    if as_json:
        print_json(manifest)
        return
    counts = {name: value for name, value in manifest.items() if isinstance(value, int)}
    click.echo(
        f"restored {counted(counts['topics'], 'topic')}, {counted(counts['objects'], 'object')}, "
        f"{counted(counts['bytes'], 'byte')} to {data}"
    )


def _of_cluster(
    source: str,
    *,
    data: Path | None,
    objects: str,
    journal: str,
    cluster_name: str,
    time_ms: int | None,
    position: int | None,
    allow_loss: bool,
    copies: bool,
    choice: "EngineChoice",
    reads: bool,
    as_json: bool,
) -> None:
    from penstock.recovery.cluster import NewCluster, restore_cluster
    from penstock.recovery.point_in_time import Moment

    def transfer(parent: str, into: str, listed: Sequence[tuple[str, int]], due: "DueOf") -> None:
        from penstock.pipeline.restore import transfer_objects

        with open_engine(choice) as running, Progress("bytes", total=1) as progress:

            def watch(done: int, total: int) -> None:
                progress.total = total
                progress.update(done, done)

            transfer_objects(running, parent, into, listed, due=due, watch=watch)

    def run(target: DataLayout | NewCluster) -> JsonObject:
        return asyncio.run(
            restore_cluster(
                source,
                target,
                moment=Moment(position=position, time_ms=time_ms),
                allow_loss=allow_loss,
                clock=SystemClock(),
                random=SystemRandom(),
                transfer=transfer if reads else None,
                copies=copies,
            )
        )

    if data is not None:
        layout = DataLayout(data.absolute())
        with DirectoryLock.acquire(layout.root):
            made = run(layout)
        place = str(data)
    else:
        made = run(NewCluster(objects=objects, journal=journal, name=cluster_name))
        place = objects
    if as_json:
        print_json(made)
        return
    moment = datetime.fromtimestamp(made["time_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
    click.echo(
        f"restored cluster {made['parent_cluster_id']} as of position {made['position']} "
        f"({moment}) to {place} as cluster {made['cluster_id']}"
    )
    click.echo(
        f"{counted(made['objects'], 'object')}, {counted(made['bytes'], 'byte')} "
        + (
            f"were copied from {made['parent']}"
            if copies
            else f"stay in {made['parent']}: keep that bucket"
        )
    )
    for lost in made["lost"]:
        click.echo(f"lost: {lost}")
