"""`penstock repair`."""

from typing import Any

import click

from penstock.cli.client.http import call, http_option
from penstock.cli.options import json_option
from penstock.cli.tables import print_json, print_table

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
    help="With --history: this lost history alone; without it all that are open.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Without --history: give up the records that are damaged or missing.",
)
@click.option("--dry-run", is_flag=True, help="List what is lost, and change nothing.")
@click.option("--give-up", is_flag=True, help="Append nothing: what is lost may be deleted.")
@http_option("HTTP port of an agent of the cluster, or its URL.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Longest to wait for the agent.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    of_history: bool,
    number: int | None,
    accept_loss: bool,
    dry_run: bool,
    give_up: bool,
    url: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Repair what is damaged, or bring back what the journal has lost.

    Without --history: each run of records that this server or agent has met damaged or missing
    (docs/operations.md, "Damage"; its readers and its scrubber find them) is read once more, and
    what is still lost is listed. What `penstock verify`, another agent or another worker has found
    must be read here first: `penstock consume TOPIC --partition P --offset N`. Put objects back
    under their keys first, from a backup or from the bucket's older versions. With --accept-loss
    what is still lost is given up: consumers step over those offsets as in a compacted log, and
    the status keeps the list until retention has passed them. Records that were only damaged in
    part of their run stay.

    With --history: of each open lost history (docs/operations.md, "A database that failed over to
    an older state") the records are listed per partition and appended again, at new offsets; a
    batch of an idempotent producer which the log has by now is left out. A history of which all
    records could be read is closed: what it alone named may then be deleted. Records that lay only
    in the WAL of another agent can't be read by this one; ask that agent, whose id the list names,
    or close the history with --give-up.

    PENSTOCK_CLUSTER_SECRET must be the cluster's. Exit status: 0 done, 1 something could not be
    repaired.
    """
    if not of_history:
        if number is not None or give_up:
            raise click.UsageError("--number and --give-up are for --history")
        if dry_run and accept_loss:
            raise click.UsageError("give either --dry-run or --accept-loss")
        _repair_damage(context, url, accept_loss=accept_loss, timeout_s=timeout_s, as_json=as_json)
        return
    if accept_loss:
        raise click.UsageError("--accept-loss is not for --history")
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
    context: click.Context, url: str, *, accept_loss: bool, timeout_s: float, as_json: bool
) -> None:
    answer = call(
        "repair",
        url,
        "/v1/repair/damage",
        method="POST",
        body={"action": "accept_loss" if accept_loss else "look"},
        timeout_s=timeout_s,
    )
    runs = answer["runs"]
    if as_json:
        print_json(answer)
    elif not runs:
        click.echo(
            "this server or agent knows of no damage. What `penstock verify` has found, or another"
            " agent, is known here once it was read here: by a consumer, or by the scrubber"
        )
    else:
        print_table(
            ["PARTITION", "OFFSETS", "STATE", "LOST", "KEPT BATCHES", "PLACE"],
            [
                [
                    run["partition"],
                    f"{run['start']} to {run['end'] - 1}",
                    run["state"],
                    ", ".join(f"{start} to {end - 1}" for start, end in run["lost"]) or "-",
                    str(run["kept_batches"]),
                    run["place"],
                ]
                for run in runs
            ],
        )
        for run in runs:
            if run["note"]:
                click.echo(f"  {run['partition']}: {run['note']}")
    if any(run["state"] in ("damaged", "unknown") for run in runs):
        context.exit(UNREPAIRED_EXIT_STATUS)


def _print(reports: list[dict[str, Any]]) -> None:
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
                f"  the archive holds it up to position {report['held_end']}: an agent that isn't"
                " running may have more"
            )
        if report["moves"]:
            click.echo(
                f"  {report['moves']} runs of the log lie in segments that only this history names"
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


def _row(found: dict[str, Any]) -> list[str]:
    offsets = f"{found['first_offset']} to {found['end_offset'] - 1}" if found["records"] else "-"
    return [
        f"{found['topic']}-{found['partition']}",
        str(found["records"]),
        offsets,
        str(found["appended"]),
        str(found["duplicates"]),
        str(found["unread"]),
    ]
