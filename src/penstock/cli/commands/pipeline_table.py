"""`penstock pipeline table`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.options import json_option
from penstock.cli.pipeline_options import (
    ApiOptions,
    CatalogOptions,
    EngineOptions,
    api_options,
    catalog_options,
    engine_options,
    open_client,
    open_pipeline,
)
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json
from penstock.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from penstock.pipeline.client import ClientOptions
    from penstock.pipeline.tables.damage import TableCheck
    from penstock.pipeline.tables.job import TableSummary
    from penstock.pipeline.tables.maintenance import MaintenanceSummary
    from penstock.pipeline.tables.settings import TableSettings

_MIB = 1 << 20
_HOUR_MS = 3_600_000
_SHOWN_LOST = 5
DAMAGE_EXIT_STATUS = 1


@click.command("table")
@click.option(
    "--topic", required=True, metavar="TOPIC", help="The topic whose records become rows."
)
@catalog_options
@click.option("--table", metavar="NAME", default="", help="namespace.table  [default: the topic's]")
@click.option("--mode", type=click.Choice(("append", "upsert")), help="  [default: the topic's]")
@click.option(
    "--value-schema",
    metavar="FILE",
    default="",
    help="Schema of values: a file .avsc, .json, .proto, or a descriptor set (.desc); or the word "
    "registry: values have the registry's wire format.  [default: the topic's]",
)
@click.option(
    "--message", metavar="NAME", default="", help="The message of --value-schema that values are."
)
@click.option(
    "--key-schema",
    metavar="FILE",
    default="",
    help="Schema of keys, like --value-schema.  [default: the topic's]",
)
@click.option(
    "--key-message", metavar="NAME", default="", help="The message of --key-schema that keys are."
)
@click.option(
    "--proto-path",
    "proto_folders",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder with the imports of a .proto file; without it, the file's own folder.",
)
@click.option(
    "--partition",
    metavar="TRANSFORMS",
    default="",
    help="Partitioning of a new table: day(timestamp), hour(timestamp), ... or none.",
)
@click.option(
    "--buckets",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Buckets of a new table with --mode upsert.",
)
@click.option("--dead-letters", metavar="TOPIC", default="", help="Topic that gets bad records.")
@click.option(
    "--target-file-mib",
    metavar="N",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Approximate size of data files.",
)
@click.option(
    "--task-mib",
    metavar="N",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="The most records that one task decodes, about.",
)
@click.option(
    "--commit-mib",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="The most of the log that one commit takes; 0: 2 GiB, or a data file's size for each "
    "executor's core.",
)
@click.option(
    "--begin",
    metavar="WHERE",
    default="",
    help="Where a new table begins: earliest, latest, an instant with its zone, or "
    "PARTITION:OFFSET,... .",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Continue the table of a deleted topic of the same name; not with upsert.",
)
@click.option("--restart", is_flag=True, help="Create a table again that was dropped.")
@click.option(
    "--repair",
    is_flag=True,
    help="Go back to the newest metadata that can be read, where the table's is lost, instead.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read all files of the table with their checksums instead, and name those that are "
    "damaged; exit status 1 then.",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Like --verify, and make damaged files again from the log, as far as it has their rows.",
)
@click.option(
    "--maintain",
    is_flag=True,
    help="Maintain the table instead: join small files, expire snapshots, delete orphans.",
)
@click.option(
    "--native",
    is_flag=True,
    help="With --maintain: join and expire by Iceberg's own procedures; needs Spark with Iceberg's "
    "runtime (docs/tables.md).",
)
@click.option(
    "--snapshot-age-hours",
    metavar="N",
    type=click.IntRange(min=0),
    default=None,
    help="With --maintain: snapshots older than this are expired; by default as the topic's "
    "penstock.table.snapshot.retention.ms says.",
)
@click.option(
    "--orphan-age-hours",
    metavar="N",
    type=click.IntRange(min=1),
    default=None,
    help="With --maintain: files older than this that no snapshot names are deleted; by default "
    "as the topic's penstock.table.orphan.retention.ms says.",
)
@api_options
@engine_options
@json_option
def command(
    topic: str,
    catalog: CatalogOptions,
    table: str,
    mode: str | None,
    registry: str,
    value_schema: str,
    message: str,
    key_schema: str,
    key_message: str,
    proto_folders: tuple[Path, ...],
    partition: str,
    buckets: int,
    dead_letters: str,
    target_file_mib: int,
    task_mib: int,
    commit_mib: int,
    begin: str,
    adopt: bool,
    restart: bool,
    repair: bool,
    verify: bool,
    rebuild: bool,
    maintain: bool,
    native: bool,
    snapshot_age_hours: int | None,
    orphan_age_hours: int | None,
    api: ApiOptions,
    engine: EngineOptions,
    as_json: bool,
) -> None:
    """Bring a topic's Iceberg table up to date, exactly once.

    The columns are key, value, partition, offset, timestamp and headers; with a schema, the value's
    fields. The command may be stopped at any time and started on any machine; `penstock pipeline
    run` does the same on a schedule.
    """
    from penstock.pipeline.tables.damage import check_table
    from penstock.pipeline.tables.job import run_table_once
    from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
    from penstock.pipeline.tables.native import EXTENSIONS
    from penstock.pipeline.tables.settings import TableSettings

    settings = TableSettings(
        topic=topic,
        catalog=catalog.settings(),
        table=table,
        mode=mode or "",
        registry=registry,
        partition=partition,
        buckets=buckets,
        dead_letters=dead_letters,
        target_file_bytes=target_file_mib * _MIB,
        task_bytes=task_mib * _MIB,
        commit_bytes=commit_mib * _MIB,
        begin=begin,
        adopt=adopt,
        restart=restart,
    )
    settings = _with_schema(settings, value_schema, message, proto_folders)
    settings = _with_key_schema(settings, key_schema, key_message, proto_folders)
    if native and not maintain:
        raise InvalidRequestError(
            "make a table", topic, "--native is for --maintain", "leave out --native"
        )
    if repair:
        _repair(api.client_options(), settings)
        return
    conf = EXTENSIONS if native else {}
    with open_pipeline(api, engine, conf=conf, warehouse=catalog.warehouse) as (client, running):
        if verify or rebuild:
            _print_check(check_table(client, running, settings, rebuilds=rebuild), as_json=as_json)
            return
        if maintain:
            maintained = maintain_table(
                client,
                running,
                settings,
                Maintenance(
                    snapshot_age_ms=_hours_ms(snapshot_age_hours),
                    orphan_age_ms=_hours_ms(orphan_age_hours),
                ),
                is_native=native,
            )
            if as_json:
                print_json(msgspec.to_builtins(maintained))
            else:
                _print_maintained(maintained)
            return
        with Progress("bytes", total=1) as progress:

            def watch(done_bytes: int, total_bytes: int) -> None:
                progress.total = total_bytes
                progress.update(done_bytes, done_bytes)

            summary = run_table_once(client, running, settings, watch=watch)
    if as_json:
        print_json(msgspec.to_builtins(summary, str_keys=True))
    else:
        _print(summary)


def _repair(api: "ClientOptions", settings: "TableSettings") -> None:
    from penstock.pipeline.tables.catalog import open_catalog
    from penstock.pipeline.tables.metadata_repair import repair_metadata
    from penstock.pipeline.tables.settings import resolve

    with open_client(api) as client:
        topics = client.topics(names=[settings.topic]).topics
    settings = resolve(settings, topics[0].configs if topics else {})
    with open_catalog(settings.catalog) as catalog:
        before, now = repair_metadata(catalog, settings.identifier)
    if before == now:
        click.echo(f"{settings.full_name}: nothing to repair, {now} can be read")
    else:
        click.echo(f"{settings.full_name}: {before} can't be read, it is at {now} again")


def _hours_ms(hours: int | None) -> int | None:
    return None if hours is None else hours * _HOUR_MS


def _with_schema(
    settings: "TableSettings", value_schema: str, message: str, proto_folders: tuple[Path, ...]
) -> "TableSettings":
    from penstock.pipeline.tables.schema_files import read_schema_file
    from penstock.pipeline.tables.settings import FILE, REGISTRY

    if not value_schema or value_schema == REGISTRY:
        # A registry alone, which may come from the environment, doesn't make a raw topic typed:
        # this command and `pipeline run` must treat a topic alike.
        return msgspec.structs.replace(settings, schema=value_schema)
    return msgspec.structs.replace(
        settings,
        schema=FILE,
        value_schema=read_schema_file(Path(value_schema), message=message, folders=proto_folders),
    )


def _with_key_schema(
    settings: "TableSettings", key_schema: str, message: str, proto_folders: tuple[Path, ...]
) -> "TableSettings":
    from penstock.pipeline.tables.schema_files import read_schema_file
    from penstock.pipeline.tables.settings import FILE, REGISTRY

    if not key_schema or key_schema == REGISTRY:
        return msgspec.structs.replace(settings, key_kind=key_schema)
    return msgspec.structs.replace(
        settings,
        key_kind=FILE,
        key_schema=read_schema_file(
            Path(key_schema), message=message, folders=proto_folders, is_key=True
        ),
    )


def _print(summary: "TableSummary") -> None:
    click.echo(
        f"{summary.table}: {counted(summary.rows, 'row')} in {counted(summary.files, 'file')} "
        f"({counted(summary.file_bytes, 'byte')}), {counted(summary.commits, 'commit')}, "
        f"{summary.milliseconds} ms"
    )
    if summary.bad_records:
        click.echo(f"set aside {counted(summary.bad_records, 'bad record')}")
    if summary.columns_added:
        click.echo(f"new columns: {', '.join(summary.columns_added)}")
    if summary.behind:
        click.echo(f"the table lags by {counted(summary.behind, 'record')}")
    for lost in summary.lost[:_SHOWN_LOST]:
        click.echo(
            f"penstock: lost: partition {lost.partition}, offsets {lost.start} to {lost.end - 1}: "
            "retention deleted the records before the table had them",
            err=True,
        )


def _print_check(check: "TableCheck", *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(check))
    else:
        click.echo(
            f"{check.table}: {counted(check.files, 'file')} with {counted(check.rows, 'row')}: "
            f"{len(check.damaged) + len(check.rebuilt)} damaged, {len(check.rebuilt)} rebuilt"
        )
        for one in check.rebuilt:
            click.echo(f"rebuilt from the log: {one.url}: {one.detail}")
        for one in check.damaged:
            click.echo(f"penstock: damaged: {one.url}: {one.detail}", err=True)
        if check.not_rebuilt:
            click.echo(f"penstock: not rebuilt: {check.not_rebuilt}", err=True)
    if check.damaged:
        raise SystemExit(DAMAGE_EXIT_STATUS)


def _print_maintained(summary: "MaintenanceSummary") -> None:
    click.echo(
        f"{summary.table}: joined {counted(summary.files_joined, 'file')} into "
        f"{summary.files_written}, expired {counted(summary.snapshots_expired, 'snapshot')}, "
        f"deleted {counted(summary.orphans_deleted, 'orphaned file')} "
        f"({counted(summary.orphan_bytes, 'byte')})"
    )
    for damage in summary.damaged:
        click.echo(f"penstock: a damaged file was left as it is: {damage}", err=True)
    if summary.joins_given_up:
        click.echo(
            f"penstock: {counted(summary.joins_given_up, 'join')} given up, since other commits "
            "changed the files",
            err=True,
        )
    if summary.not_expired:
        click.echo(f"penstock: no snapshot was expired: {summary.not_expired}", err=True)
