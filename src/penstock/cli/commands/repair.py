"""`penstock repair`."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.client.http import JsonObject, call, http_option
from penstock.cli.damaged_runs import DamagedRuns, Run
from penstock.cli.options import json_option
from penstock.cli.pipeline_options import CatalogOptions
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json, print_table

if TYPE_CHECKING:
    from penstock.pipeline.tables.settings import CatalogSettings

UNREPAIRED_EXIT_STATUS = 1


@click.command("repair")
@click.option(
    "--history",
    "of_history",
    is_flag=True,
    help="Repair what the journal lost when its database came back older.",
)
@click.option(
    "--number",
    metavar="N",
    type=click.IntRange(min=1),
    help="With --history: this lost history alone; without it, all open histories.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Without --history: give up records that are damaged or missing.",
)
@click.option(
    "--from",
    "source",
    metavar="URL",
    default="",
    help="Without --history: also look for copies in this backup, directory or bucket, which the"
    " servers read.",
)
@click.option(
    "--from-table",
    "table",
    metavar="NAME",
    default="",
    help="With --topic: encode lost records again from this Iceberg table, such as"
    " penstock.flights.",
)
@click.option(
    "--topic", metavar="TOPIC", default="", help="With --from-table: the topic to bring back."
)
@click.option(
    "--warehouse",
    metavar="LOCATION",
    default="warehouse",
    show_default=True,
    help="With --from-table: where tables are, a directory or s3://BUCKET/PREFIX.",
)
@click.option(
    "--catalog",
    metavar="NAME",
    default="penstock",
    show_default=True,
    help="With --from-table: the catalog's name.",
)
@click.option(
    "--catalog-property",
    "catalog_properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="With --from-table: a property of PyIceberg's catalog, see `penstock pipeline table`.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Without --history: don't ask before anything is brought back.",
)
@click.option(
    "--scan",
    is_flag=True,
    help="Without --history: first let the servers read and check everything stored.",
)
@click.option(
    "--rate",
    "scan_mib",
    metavar="MIB",
    type=click.IntRange(min=1, max=1 << 16),
    default=64,
    show_default=True,
    help="With --scan: how much each server reads per second.",
)
@click.option(
    "--only",
    is_flag=True,
    help="Without --history: ask only this server, and no other agent or worker.",
)
@click.option("--dry-run", is_flag=True, help="List what is lost, and change nothing.")
@click.option("--give-up", is_flag=True, help="Append nothing: the lost records may be deleted.")
@http_option("HTTP port of an agent of the cluster, or its URL.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Longest time to wait for the agent.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    of_history: bool,
    number: int | None,
    accept_loss: bool,
    source: str,
    table: str,
    topic: str,
    warehouse: str,
    catalog: str,
    catalog_properties: tuple[str, ...],
    yes: bool,
    scan: bool,
    scan_mib: int,
    only: bool,
    dry_run: bool,
    give_up: bool,
    url: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Repair damaged records, or bring back records that the journal has lost.

    Without --history the command asks every agent of a cluster, or every worker of a host, for runs
    of records that are known to be damaged or missing; readers and scrubbers find such runs
    (docs/operations.md, "Damage"). The servers read each run once more, and the command lists what
    is still lost. With --scan the servers first read everything stored, since they may not have
    read lately what `penstock verify` has found.

    The servers look for copies of damaged runs in their memory, in WAL files that were not used
    again, in objects that the state no longer names, and in the place that --from names. A run with
    a copy is brought back after a confirmation, or at once with --yes: the copy is checked and put
    in a new object. With --accept-loss the records without a copy are given up: consumers step over
    their offsets as in a compacted log, and the status lists the offsets until retention has passed
    them. Undamaged records of a damaged run stay.

    With --from-table, lost records without a copy are encoded again from the topic's table, which
    must be a raw table in append mode: the same keys, values, headers and timestamps at the same
    offsets, but without producer ids, batch boundaries and compression. The command lists these
    records first, and goes on after a confirmation or with --yes. A damaged run stays as it is if
    the table lacks one of its offsets, unless --accept-loss gives up the rest. Losses that were
    accepted before are filled, too.

    With --history the command lists the records of each open lost history (docs/operations.md, "A
    database that failed over to an older state") per partition, and appends them again, at new
    offsets; it leaves out batches of idempotent producers that the log has by now. A history whose
    records could all be read is closed: objects that only this history named may then be deleted.
    Records that lay only in the WAL of another agent can't be read by this agent: ask the agent
    whose id the list names, or close the history with --give-up.

    PENSTOCK_CLUSTER_SECRET must be the cluster's secret. Exit status: 0 done, 1 something could not
    be repaired, or a server could not be asked.
    """
    if not of_history:
        if number is not None or give_up:
            raise click.UsageError("--number and --give-up are for --history")
        if dry_run and (accept_loss or yes):
            raise click.UsageError("--dry-run changes nothing: leave out --accept-loss and --yes")
        if bool(table) != bool(topic):
            raise click.UsageError("--from-table and --topic go together")
        again = None
        if table:
            again = (
                CatalogOptions(warehouse, catalog, catalog_properties).settings(),
                table,
                topic,
            )
        _repair_damage(
            context,
            DamagedRuns(url, only=only, timeout_s=timeout_s),
            again=again,
            scan_mib=scan_mib if scan else None,
            source=source if "://" in source or not source else str(Path(source).absolute()),
            accept_loss=accept_loss,
            may_restore=not dry_run,
            yes=yes,
            as_json=as_json,
        )
        return
    if accept_loss or scan or only or source or yes or table:
        raise click.UsageError(
            "--accept-loss, --from, --from-table, --only, --scan and --yes are not for --history"
        )
    if dry_run and give_up:
        raise click.UsageError("give either --dry-run or --give-up")
    action = "look" if dry_run else "give_up" if give_up else "append"
    answer = call(
        "repair",
        url,
        "/v1/repair/histories",
        method="POST",
        body={"action": action, "history": number},
        timeout_s=timeout_s,
    )
    if as_json:
        print_json(answer)
    else:
        _print(answer["histories"])
    if not dry_run and not all(report["closed"] for report in answer["histories"]):
        context.exit(UNREPAIRED_EXIT_STATUS)


def _repair_damage(
    context: click.Context,
    damaged: DamagedRuns,
    *,
    again: "tuple[CatalogSettings, str, str] | None",
    scan_mib: int | None,
    source: str,
    accept_loss: bool,
    may_restore: bool,
    yes: bool,
    as_json: bool,
) -> None:
    answer: JsonObject = {}
    if scan_mib is not None:
        answer["scanned"] = _scan(damaged, scan_mib)
    runs = damaged.look(source)
    copied = [run for run in runs if run["state"] == "damaged" and run["copy"]]
    if copied and may_restore and (yes or (not as_json and _wants(runs, copied))):
        runs = _with(runs, damaged.act("restore", copied, source=source))
    if again is not None:
        rebuilt = _rebuild(damaged, runs, again, accept_loss=accept_loss, may=may_restore, yes=yes)
        if rebuilt is not None:
            answer["rebuilt"] = rebuilt
            runs = damaged.look(source)
    if accept_loss and (again is None or "rebuilt" in answer):
        # A run that has a copy is not given up.
        lost = [run for run in runs if run["state"] == "damaged" and not run["copy"]]
        runs = _with(runs, damaged.act("accept_loss", lost))
    answer["runs"] = runs
    answer["not_asked"] = [
        {"server": absent.name, "reason": absent.reason} for absent in damaged.absent
    ]
    if as_json:
        print_json(answer)
    else:
        _print_damage(answer)
    if damaged.absent or any(run["state"] in ("damaged", "unknown") for run in runs):
        context.exit(UNREPAIRED_EXIT_STATUS)


def _rebuild(
    damaged: DamagedRuns,
    runs: list[Run],
    again: "tuple[CatalogSettings, str, str]",
    *,
    accept_loss: bool,
    may: bool,
    yes: bool,
) -> list[Run] | None:
    """Say what a table would fill, ask, and fill it; None: the user said no."""
    from penstock.cli.from_table import fill, lost_of, print_plan

    settings, table, topic = again
    lost = lost_of(damaged, runs, topic)
    if not lost:
        click.echo(f"{topic} has no lost record without a copy", err=True)
        return []
    count = sum(one.offsets for one in lost)
    with contextlib.redirect_stdout(sys.stderr):
        # The plan is always shown; it goes to standard error, which --json doesn't use.
        print_plan(lost, table)
        wanted = f"encode {counted(count, 'record')} again from {table}?"
        if not may or not (yes or _confirms(wanted)):
            click.echo("nothing was done: give --yes to do it")
            return None
    with Progress("records", total=count) as progress:
        return list(
            fill(
                damaged,
                lost,
                settings,
                table,
                accept_loss=accept_loss,
                on_done=lambda done, _: progress.update(done, done),
            )
        )


def _confirms(question: str) -> bool:
    return _is_terminal() and click.confirm(question, err=True)


def _wants(runs: list[Run], copied: list[Run]) -> bool:
    """Ask whether to bring runs back. Scripts give --yes instead."""
    if not _is_terminal():
        return False
    _print_runs(runs)
    return _confirms(f"bring back {counted(len(copied), 'run')} from copies?")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _with(runs: list[Run], done: list[Run]) -> list[Run]:
    """Return the runs, with the results of those that were acted on."""
    names = {(run["partition_key"], run["start"], run["place"]): run for run in done}
    return [names.get((run["partition_key"], run["start"], run["place"]), run) for run in runs]


def _scan(damaged: DamagedRuns, mib_per_s: int) -> JsonObject:
    with Progress("bytes", total=1) as progress:

        def watch(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        return damaged.scan(mib_per_s << 20, watch)


def _print_damage(answer: JsonObject) -> None:
    runs = answer["runs"]
    if scanned := answer.get("scanned"):
        click.echo(
            f"read {counted(scanned['bytes'], 'byte')} of {counted(scanned['runs'], 'run')} without"
            f" damage, and {counted(scanned['damaged'], 'damaged run')}"
        )
    for one in answer.get("rebuilt", ()):
        filled = ", ".join(f"{start} to {end - 1}" for start, end in one["filled"]) or "nothing"
        lost = ", ".join(f"{start} to {end - 1}" for start, end in one["lost"]) or "nothing"
        click.echo(f"{one['partition']}: encoded again: {filled}; not in the table: {lost}")
    if runs:
        _print_runs(runs)
    elif "scanned" in answer:
        click.echo("no damage was found")
    else:
        click.echo(
            "no damage is known. The servers learn of damage that `penstock verify` has found when"
            " they read the damaged bytes: --scan lets them read everything stored"
        )
    for run in runs:
        if run["note"]:
            click.echo(f"  {run['partition']}: {run['note']}")
    if any(run["state"] == "damaged" and run["copy"] for run in runs):
        click.echo("give --yes to bring back the runs that have a copy")
    for absent in answer["not_asked"]:
        click.echo(f"not asked: {absent['server']}: {absent['reason']}")


def _print_runs(runs: list[Run]) -> None:
    if runs:
        print_table(
            ["PARTITION", "OFFSETS", "STATE", "LOST", "KEPT BATCHES", "KNOWN TO", "PLACE", "COPY"],
            [
                [
                    run["partition"],
                    f"{run['start']} to {run['end'] - 1}",
                    run["state"],
                    ", ".join(f"{start} to {end - 1}" for start, end in run["lost"]) or "-",
                    str(run["kept_batches"]),
                    run["server"],
                    run["place"],
                    run["copy"] or "-",
                ]
                for run in runs
            ],
        )


def _print(reports: list[Run]) -> None:
    if not reports:
        click.echo("no lost history is open")
    for report in reports:
        state = "closed" if report["closed"] else "open"
        click.echo(
            f"lost history {report['history']}: positions {report['start']} to {report['end']},"
            f" noted by agent {report['agent']}, {state}"
        )
        if report["held_end"] < report["end"]:
            click.echo(
                f"  the archive holds this history up to position {report['held_end']}: an agent"
                " that isn't running may hold more of it"
            )
        if report["moves"]:
            click.echo(
                f"  segments that only this history names hold {counted(report['moves'], 'run')} of"
                " the log"
            )
        for key in report["damaged"]:
            click.echo(
                f"  {key} is damaged, and holds runs that this history had moved there;"
                " bring the segment back from a copy, or close the history with --give-up"
            )
        for topic in report["topics"]:
            click.echo(f"  topic {topic} is only in this history")
        if report["partitions"]:
            print_table(
                ["PARTITION", "RECORDS", "OFFSETS THERE", "APPENDED", "DUPLICATES", "UNREADABLE"],
                [_row(found) for found in report["partitions"]],
            )
        for found in report["partitions"]:
            for note in found["notes"]:
                click.echo(f"  {found['topic']}-{found['partition']}: {note}")


def _row(found: JsonObject) -> list[str]:
    offsets = f"{found['first_offset']} to {found['end_offset'] - 1}" if found["records"] else "-"
    return [
        f"{found['topic']}-{found['partition']}",
        str(found["records"]),
        offsets,
        str(found["appended"]),
        str(found["duplicates"]),
        str(found["unread"]),
    ]
