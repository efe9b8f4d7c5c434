"""`penstock pipeline plan`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.client.http import JsonObject
from penstock.cli.compaction_options import make_settings, plan_options
from penstock.cli.options import json_option
from penstock.cli.pipeline_options import (
    ApiOptions,
    api_options,
    open_client,
    registry_option,
)
from penstock.cli.tables import counted, print_json, print_table

if TYPE_CHECKING:
    from penstock.pipeline.api_messages import Range, TopicState
    from penstock.pipeline.compaction.items import Item
    from penstock.pipeline.table_plan import PlannedTable

_SHOWN_PARTITIONS = 3


@click.command("plan")
@plan_options
@api_options
@registry_option
@json_option
def command(
    topics: tuple[str, ...],
    run_mib: int,
    object_mib: int,
    old_s: int,
    api: ApiOptions,
    registry: str,
    as_json: bool,
) -> None:
    """Show what compaction would do now and what each topic's table would read, and why. Nothing is
    changed.

    The tables shown are those of topics with the config penstock.table, which `penstock pipeline
    run` keeps. Their progress comes from the journal; no catalog is opened. SECONDS is for how long
    a table that lacks records has been where it is; ROWS, FILES and SNAPSHOTS are as its job last
    knew them; BAD are the dead letters, and their share of the records that it has followed;
    CONFLICTS are commits that another one was ahead of.
    """
    reached = api.client_options()
    from penstock.pipeline.compaction.job import plan_compaction
    from penstock.pipeline.table_plan import plan_tables

    with open_client(reached) as client:
        planned, known = plan_compaction(
            client, make_settings(run_mib, object_mib, old_s), topics or None
        )
        tables = plan_tables(client, topics or None, registry=registry)
    rows = [_row(item, known) for item in planned.items]
    if as_json:
        print_json(
            {
                "runs": planned.run_count,
                "bytes": planned.size_bytes,
                "planned_runs": planned.planned_runs,
                "planned_bytes": planned.planned_bytes,
                "items": rows,
                "tables": [_table_row(table) for table in tables],
            }
        )
        return
    print_table(
        ("kind", "partitions", "runs", "objects", "bytes", "why"),
        [
            (
                row["kind"],
                _partitions(row["partitions"]),
                row["runs"],
                row["objects"],
                row["bytes"],
                row["reason"],
            )
            for row in rows
        ],
    )
    click.echo(
        f"{counted(len(rows), 'item')}: {planned.planned_runs:,} of "
        f"{counted(planned.run_count, 'run')}, {planned.planned_bytes:,} of "
        f"{counted(planned.size_bytes, 'byte')}"
    )
    if tables:
        click.echo()
        print_table(
            (
                "table",
                "topic",
                "partitions",
                "records",
                "seconds",
                "bytes",
                "rows",
                "files",
                "snapshots",
                "bad",
                "conflicts",
                "why",
            ),
            [
                (
                    table.table,
                    table.topic,
                    len(table.ranges),
                    table.records,
                    round(table.seconds),
                    table.size_bytes,
                    *(_known(count) for count in _sizes(table).values()),
                    f"{table.state.bad_records} ({100 * table.state.bad_share:.2f}%)",
                    table.state.conflicts,
                    table.reason,
                )
                for table in tables
            ],
        )


def _table_row(table: "PlannedTable") -> JsonObject:
    return {
        "topic": table.topic,
        "table": table.table,
        "mode": table.mode,
        "reason": table.reason,
        "records": table.records,
        "seconds": table.seconds,
        "bytes": table.size_bytes,
        **_sizes(table),
        "bad_records": table.state.bad_records,
        "bad_share": table.state.bad_share,
        "conflicts": table.state.conflicts,
        "ranges": [_offsets(area) for area in table.ranges],
        "lost": [_offsets(area) for area in table.lost],
    }


def _sizes(table: "PlannedTable") -> dict[str, int | None]:
    """The table's sizes as its job last noted them; None: it hasn't."""
    state = table.state
    return {
        name: None if count < 0 else count
        for name, count in (
            ("rows", state.rows),
            ("files", state.files),
            ("snapshots", state.snapshots),
        )
    }


def _known(count: int | None) -> int | str:
    return "-" if count is None else count


def _offsets(area: "Range") -> dict[str, int]:
    return {"partition": area.partition, "start": area.start, "end": area.end}


def _row(item: "Item", topics: "dict[str, TopicState]") -> JsonObject:
    from penstock.pipeline.compaction.items import JoinItem

    joins = isinstance(item, JoinItem)
    partitions = item.partitions if isinstance(item, JoinItem) else [item.partition]
    return {
        "kind": "join" if joins else "by key",
        "reason": item.reason,
        "runs": item.run_count,
        "bytes": item.size_bytes,
        "objects": len(item.objects),
        "partitions": [f"{topics[each.topic_id].name}-{each.partition}" for each in partitions],
    }


def _partitions(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_PARTITIONS])
    more = len(names) - _SHOWN_PARTITIONS
    return f"{shown} and {more} more" if more > 0 else shown
