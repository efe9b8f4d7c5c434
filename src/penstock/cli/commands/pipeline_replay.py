"""`penstock pipeline replay-dead-letters`."""

import click
import msgspec

from penstock.cli.options import json_option
from penstock.cli.pipeline_options import (
    ApiOptions,
    CatalogOptions,
    api_options,
    catalog_options,
    open_client,
)
from penstock.cli.tables import counted, print_json


@click.command("replay-dead-letters")
@click.option(
    "--topic", required=True, metavar="TOPIC", help="The topic whose table set the letters aside."
)
@catalog_options
@click.option("--table", metavar="NAME", default="", help="namespace.table  [default: the topic's]")
@click.option(
    "--dead-letters", metavar="TOPIC", default="", help="Their topic.  [default: the topic's]"
)
@api_options
@json_option
def command(
    topic: str,
    catalog: CatalogOptions,
    table: str,
    dead_letters: str,
    registry: str,
    api: ApiOptions,
    as_json: bool,
) -> None:
    """Add a topic's dead letters to its table that can be rows by now.

    Rows have their records' own partition, offset and time, and each is added once, however often
    the command is called and wherever it is stopped. Letters stay in their topic.
    """
    from penstock.pipeline.tables.replay import replay_dead_letters
    from penstock.pipeline.tables.settings import TableSettings

    settings = TableSettings(
        topic=topic,
        catalog=catalog.settings(),
        table=table,
        dead_letters=dead_letters,
        registry=registry,
    )
    with open_client(api.client_options()) as client:
        summary = replay_dead_letters(client, settings)
    if as_json:
        print_json(msgspec.to_builtins(summary))
        return
    click.echo(
        f"{summary.table}: {counted(summary.rows, 'row')} of dead letters, "
        f"{counted(summary.commits, 'commit')}"
    )
    for number, what in (
        (summary.known, "in the table already"),
        (summary.bad, "still bad"),
        (summary.ahead, "not read by the table yet"),
        (summary.others, "of another topic, or without one record"),
    ):
        if number:
            click.echo(f"{counted(number, 'letter')} {what}")
