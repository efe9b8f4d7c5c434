"""`penstock verify`."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from penstock.cli.options import json_option
from penstock.cli.pipeline_options import engine_options, make_door, make_engine, open_engine
from penstock.cli.progress import Progress
from penstock.cli.tables import print_json, print_table
from penstock.config.checks import check_places
from penstock.config.sources import load_settings
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.recovery.directory import find_data, verify_directory
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

if TYPE_CHECKING:
    from penstock.pipeline.client import DoorClient
    from penstock.recovery.verify import VerifyReport

DAMAGE_EXIT_STATUS = 1


@click.command("verify")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PENSTOCK_DATA",
    help="The data directory of a server that is alone.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with a server's settings: its data directory, or the cluster's objects and "
    "journal.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="A cluster's objects (its setting `objects`), or a backup.",
)
@click.option(
    "--journal",
    metavar="URL",
    help="A cluster's journal. Without it the state is that of the archive's end.",
)
@click.option("--cluster-name", metavar="NAME", default="penstock", show_default=True)
@click.option(
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    help="Verify a running cluster through this agent's HTTP port, in parallel; several agents are "
    "tried in turn.",
)
@click.option("--secret-file", metavar="FILE", default="", help="With --url: the cluster's secret.")
@click.option(
    "--access",
    "access",
    type=click.Choice(("auto", "agent", "ambient")),
    default="auto",
    show_default=True,
    help="With --url: how objects are reached.",
)
@engine_options
@json_option
@click.pass_context
def command(
    context: click.Context,
    data: Path | None,
    config_file: Path | None,
    objects: str | None,
    journal: str | None,
    cluster_name: str,
    urls: tuple[str, ...],
    secret_file: str,
    access: str,
    engine: str | None,
    master: str | None,
    memory: str,
    workers: int,
    ui_port: int,
    as_json: bool,
) -> None:
    """Read everything that a data directory, a cluster's bucket or a cluster has, and say what is
    not as it must be.

    Checks each batch's CRC, the offsets of each partition, the WAL's frames, the journal's files,
    the state against what they give, the segments' indexes, and that no object is missing.
    Orphans, which nothing names, are told too, but are no damage: the server deletes them. Servers
    may be running.

    Of a cluster's bucket, what is only in an agent's WAL is counted and not read, and what lies
    between the archive's snapshots is replayed and compared. With --url what is in WALs is read
    through the agents, and the work is spread: over Spark's executors, or over threads; the archive
    is replayed with --access ambient alone, by this process, whose credentials open the bucket.
    What wasn't replayed is told.

    Exit status: 0 as it must be, 1 damaged, 2 there is nothing that could be checked.
    """
    if urls:
        if data is not None or config_file is not None or objects is not None:
            raise click.UsageError("give either --url, or what to read without a server")
        door = make_door(urls, secret_file, access)
        choice = make_engine(engine, master, memory, workers, ui_port)
        with Progress("bytes", total=1) as progress:

            def watch(done: int, total: int) -> None:
                progress.total = total
                progress.update(done, done)

            from penstock.pipeline.client import DoorClient
            from penstock.pipeline.verify import verify_cluster as verify_by_agents

            with (
                DoorClient(door) as client,
                open_engine(choice, urls=door.urls) as running,
            ):
                report = verify_by_agents(client, running, watch=watch)
                _replay(client, report)
        _print(context, report, as_json=as_json)
        return
    # The environment's are for the commands that take one.
    given = (context.get_parameter_source(name) for name in ("engine", "master"))
    if ParameterSource.COMMANDLINE in given:
        raise click.UsageError("--engine and --master go with --url")
    if config_file is not None:
        settings = load_settings(
            file=config_file, environment=os.environ, command_line={}, check=check_places
        )
        if settings.journal:
            objects, journal = settings.objects, settings.journal
            cluster_name = settings.cluster_name
        else:
            data = Path(settings.data)
    if objects is None and data is None:
        raise click.UsageError("give --data, --config or --objects")
    try:
        layout = (
            None if objects is not None or data is None else find_data(data, needs_database=False)
        )
    except (NotFoundError, InvalidRequestError) as error:
        # Exit status 2: what is not there, or not read, is not damaged.
        raise click.UsageError(str(error)) from error
    with Progress("bytes", total=1) as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        try:
            # On demand: of the two, a data directory is verified more often.
            from penstock.recovery.cluster import verify_cluster

            if layout is not None:
                report = asyncio.run(verify_directory(layout, tell))
            else:
                report = asyncio.run(
                    verify_cluster(
                        objects or "",
                        journal=journal or "",
                        name=cluster_name,
                        clock=SystemClock(),
                        random=SystemRandom(),
                        progress=tell,
                    )
                )
        except (NotFoundError, InvalidRequestError) as error:
            raise click.UsageError(str(error)) from error
    _print(context, report, as_json=as_json)


def _replay(client: "DoorClient", report: "VerifyReport") -> None:
    """Replay the cluster's archive, if this process has credentials for the bucket."""
    if client.options.objects != "ambient":
        report.not_replayed = "--access ambient, or --objects, opens the bucket for it"
        return
    from penstock.recovery.cluster import verify_replay

    info = client.info()
    asyncio.run(
        verify_replay(
            info.objects_url,
            report,
            cluster_id=info.cluster_id,
            clock=client.clock,
            random=client.random,
        )
    )


def _print(context: click.Context, report: "VerifyReport", *, as_json: bool) -> None:
    findings = [
        {"kind": finding.kind.value, "subject": finding.subject, "detail": finding.detail}
        for finding in report.findings
    ]
    counts = {
        name: getattr(report, name)
        for name in ("topics", "partitions", "runs", "batches", "records", "bytes", "objects")
    }
    for name in (
        "unread_runs",
        "unapplied_entries",
        "lost_offsets",
        "replayed_entries",
        "younger_objects",
    ):
        if value := getattr(report, name):
            counts[name] = value
    if as_json:
        notes = {"not_replayed": report.not_replayed} if report.not_replayed else {}
        print_json({"ok": report.ok, **counts, **notes, "findings": findings})
    else:
        if findings:
            print_table(("kind", "subject", "detail"), [tuple(row.values()) for row in findings])
        younger = counts.pop("younger_objects", 0)
        click.echo(", ".join(f"{count:,} {name}" for name, count in counts.items()))
        if younger:
            click.echo(f"younger than the archive's end: {younger:,} objects")
        if report.unapplied_entries:
            click.echo(
                f"{report.unapplied_entries:,} entries of the journal are not in the database yet"
                f" ({report.unapplied_in_wal:,} of them only in the WAL): the next start, or the"
                " server that runs, applies them. The records that they name were not read."
            )
        if report.not_replayed:
            click.echo(f"the archived journal was not replayed: {report.not_replayed}")
        click.echo("all as it must be" if report.ok else "DAMAGED")
    if not report.ok:
        context.exit(DAMAGE_EXIT_STATUS)
