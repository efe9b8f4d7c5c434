"""`penstock verify`."""

import asyncio
from pathlib import Path

import click

from penstock.app.offline import find_data, verify_directory
from penstock.cli.options import json_option
from penstock.cli.progress import Progress
from penstock.cli.tables import print_json, print_table
from penstock.model.errors import InvalidRequestError, NotFoundError

DAMAGE_EXIT_STATUS = 1


@click.command("verify")
@click.option(
    "--data",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="PENSTOCK_DATA",
    help="The data directory.",
)
@json_option
@click.pass_context
def command(context: click.Context, data: Path, as_json: bool) -> None:
    """Read everything in a data directory and say what is not as it must be.

    Checks each batch's CRC, the offsets of each partition, the WAL's frames, the segments'
    indexes, and that no object is missing. Orphans, which nothing names, are told too, but are no
    damage: the server deletes them. A server may be running on the directory.

    Exit status: 0 as it must be, 1 damaged, 2 there is nothing that could be checked.
    """
    try:
        layout = find_data(data)
    except (NotFoundError, InvalidRequestError) as error:
        # Exit status 2: what is not there, or not read, is not damaged.
        raise click.UsageError(str(error)) from error
    with Progress("bytes", total=1) as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        try:
            report = asyncio.run(verify_directory(layout, tell))
        except InvalidRequestError as error:
            raise click.UsageError(str(error)) from error
    findings = [
        {"kind": finding.kind.value, "subject": finding.subject, "detail": finding.detail}
        for finding in report.findings
    ]
    counts = {
        name: getattr(report, name)
        for name in ("topics", "partitions", "runs", "batches", "records", "bytes", "objects")
    }
    if as_json:
        print_json({"ok": report.ok, **counts, "findings": findings})
    else:
        if findings:
            print_table(("kind", "subject", "detail"), [tuple(row.values()) for row in findings])
        click.echo(", ".join(f"{count:,} {name}" for name, count in counts.items()))
        click.echo("all as it must be" if report.ok else "DAMAGED")
    if not report.ok:
        context.exit(DAMAGE_EXIT_STATUS)
