"""`penstock verify`."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from penstock.cli.options import json_option
from penstock.cli.pipeline_options import (
    ApiOptions,
    CatalogOptions,
    EngineOptions,
    engine_options,
    open_pipeline,
)
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json, print_table
from penstock.config.checks import check_places
from penstock.config.sources import load_settings
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.recovery.directory import find_data, verify_directory
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

if TYPE_CHECKING:
    from penstock.pipeline.client import PipelineClient
    from penstock.recovery.verify import VerifyReport

DAMAGE_EXIT_STATUS = 1


@click.command("verify")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PENSTOCK_DATA",
    help="The data directory of a server that is not in a cluster.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with a server's settings, which name its data directory, or objects and "
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
    help="A cluster's journal. Without it, the state at the archive's end is verified.",
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
@click.option(
    "--secret-file",
    metavar="FILE",
    default="",
    help="With --url: a file with the cluster's secret.",
)
@click.option(
    "--access",
    "access",
    type=click.Choice(("auto", "agent", "ambient")),
    default="auto",
    show_default=True,
    help="With --url: how objects are reached.",
)
@click.option(
    "--warehouse",
    metavar="LOCATION",
    default="",
    help="With --url: verify the tables there, too, of which the cluster has notes: a directory, "
    "or s3://BUCKET/PREFIX.",
)
@click.option(
    "--catalog",
    metavar="NAME",
    default="penstock",
    show_default=True,
    help="With --warehouse: the catalog's name.",
)
@click.option(
    "--catalog-property",
    "catalog_properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="With --warehouse: a property of PyIceberg's catalog.",
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
    warehouse: str,
    catalog: str,
    catalog_properties: tuple[str, ...],
    engine: EngineOptions,
    as_json: bool,
) -> None:
    """Read everything in a data directory, a cluster's bucket or a running cluster, and report
    damage. Servers may be running.

    The command checks each batch's CRC, the offsets of each partition, the WAL's frames, the
    journal's files, the state against the journal, the segments' indexes, and that no object is
    missing. Orphans, which are objects that the state doesn't name, are listed but are not damage:
    the server deletes them.

    In a cluster's bucket, runs that only an agent's WAL holds are counted but not read; the journal
    between the archive's snapshots is replayed and compared with them. With --url, runs in WALs are
    read through the agents, and Spark's executors or threads share the work; the archive is
    replayed only with --access ambient, by this process, whose credentials open the bucket. The
    command says what wasn't replayed. With --warehouse, the files of tables are read as well, with
    their checksums; `penstock pipeline table --rebuild` makes damaged ones again from the log.

    Exit status: 0 no damage, 1 damage, 2 there is nothing to check.
    """
    if urls:
        if data is not None or config_file is not None or objects is not None:
            raise click.UsageError("give either --url or one of --data, --config and --objects")
        with Progress("bytes", total=1) as progress:

            def watch(done: int, total: int) -> None:
                progress.total = total
                progress.update(done, done)

            from penstock.pipeline.verify import verify_cluster as verify_by_agents

            api = ApiOptions(urls, secret_file, access)
            with open_pipeline(api, engine) as (client, running):
                report = verify_by_agents(client, running, watch=watch)
                _replay(client, report)
                if warehouse:
                    from penstock.pipeline.verify_tables import verify_tables

                    options = CatalogOptions(warehouse, catalog, catalog_properties)
                    verify_tables(client, running, options.settings(), report)
        _print(context, report, as_json=as_json)
        return
    if warehouse:
        raise click.UsageError("--warehouse goes with --url")
    # An engine that the environment names is for the commands that always take one.
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
        # Exit status 2, since data that is missing or can't be read is not known to be damaged.
        raise click.UsageError(str(error)) from error
    with Progress("bytes", total=1) as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        try:
            # Imported here, since most calls verify a data directory.
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


def _replay(client: "PipelineClient", report: "VerifyReport") -> None:
    """Replay the cluster's archive, if this process has credentials for the bucket."""
    if client.options.objects != "ambient":
        report.not_replayed = "give --access ambient, or --objects, to open the bucket for it"
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


def _counted(name: str, count: int) -> str:
    """Return a count with its name in words: `unread_runs` 1 is "1 unread run"."""
    noun = name.replace("_", " ")
    for plural, singular in (("batches", "batch"), ("entries", "entry")):
        if noun.endswith(plural):
            return counted(count, noun.removesuffix(plural) + singular, noun)
    return counted(count, noun.removesuffix("s"))


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
        click.echo(", ".join(_counted(name, count) for name, count in counts.items()))
        if younger:
            click.echo(f"younger than the archive's end: {counted(younger, 'object')}")
        if report.unapplied_entries:
            click.echo(
                f"the database doesn't have the last {report.unapplied_entries:,} of the journal's"
                f" entries yet ({report.unapplied_in_wal:,} of them are only in the WAL): the next"
                " start, or the running server, applies them. Records that only these entries name"
                " were not read."
            )
        if report.not_replayed:
            click.echo(f"the archived journal was not replayed: {report.not_replayed}")
        click.echo("OK: no problems found" if report.ok else "DAMAGED: see the findings above")
    if not report.ok:
        context.exit(DAMAGE_EXIT_STATUS)
