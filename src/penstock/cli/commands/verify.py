"""`penstock verify`."""

import asyncio
from pathlib import Path

import click

from penstock.app.offline import find_data, verify_directory
from penstock.cli.options import json_option
from penstock.cli.progress import Progress
from penstock.cli.tables import print_json, print_table

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

    Checks each batch's CRC, the offsets of each partition, the segments' indexes, and that no
    object is missing. Orphans, which nothing names, are told too, but are no damage: the server
    deletes them. A server may be running on the directory.
    """
    layout = find_data(data)
    with Progress("bytes", total=1) as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.update(done, done)

        report = asyncio.run(verify_directory(layout, tell))
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
