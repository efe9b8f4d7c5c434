"""`penstock group`."""

import click

from penstock.cli.asking import ask_to_delete
from penstock.cli.client.admin import (
    EARLIEST,
    LATEST,
    GroupDescription,
)
from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import RefusedError
from penstock.cli.client.groups import describe_group, list_groups
from penstock.cli.client.topic_partition import TopicPartition
from penstock.cli.options import connect, json_option, parse_time, server_option, timeout_option
from penstock.cli.tables import counted, print_json, print_table
from penstock.kafka.errors import ErrorCode
from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError

_WITHOUT_MEMBERS = {"Empty", "Dead", ""}


@click.group("group")
def command() -> None:
    """List, describe, reset and delete groups of every type."""


@command.command("list")
@click.option(
    "--type",
    "kinds",
    multiple=True,
    type=click.Choice(["classic", "consumer", "share", "streams"]),
    help="List only groups of this type. May be repeated.",
)
@json_option
@server_option
@timeout_option
def list_command(kinds: tuple[str, ...], as_json: bool, server: str, timeout_s: float) -> None:
    """List groups with their states and types."""
    with connect(server, timeout_s) as client:
        groups = [row for row in list_groups(client) if not kinds or row.type in kinds]
    if as_json:
        print_json(
            [
                {
                    "group": row.group_id,
                    "state": row.state,
                    "type": row.type,
                    "protocol_type": row.protocol_type,
                }
                for row in groups
            ]
        )
        return
    print_table(
        ("group", "state", "type", "protocol"),
        [(row.group_id, row.state or None, row.type, row.protocol_type or None) for row in groups],
    )


@command.command("describe")
@click.argument("group")
@json_option
@server_option
@timeout_option
def describe(group: str, as_json: bool, server: str, timeout_s: float) -> None:
    """Describe GROUP: its members, committed offsets and lag."""
    with connect(server, timeout_s) as client:
        description = describe_group(client, group)
        committed = client.admin.committed_offsets(group)
        if not committed and description.state == "Dead":
            raise NotFoundError("describe group", group, "there is no such group")
        assigned = {
            partition: member for member in description.members for partition in member.partitions
        }
        partitions = sorted({*committed, *assigned})
        ends = _ends(client, partitions)
    rows: list[dict[str, object]] = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": committed.get(partition),
            "end": ends.get(partition),
            "lag": (
                max(0, ends[partition] - committed[partition])
                if partition in ends and partition in committed
                else None
            ),
            "member": assigned[partition].member_id if partition in assigned else None,
        }
        for partition in partitions
    ]
    if as_json:
        print_json(_as_json(description, rows))
        return
    members = counted(len(description.members), "member")
    state = description.state or "unknown state"
    click.echo(f"{group}  {description.type}, {state}, {members}")
    print_table(
        ("topic", "partition", "committed", "end", "lag", "member"),
        [tuple(row.values()) for row in rows],
    )


@command.command("reset")
@click.argument("group")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,P]",
    help="Reset these partitions; without it, all partitions with a committed offset. May be "
    "repeated.",
)
@click.option("--to-earliest", is_flag=True, help="Reset to the first record.")
@click.option("--to-latest", is_flag=True, help="Reset to the end.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Reset to this offset.")
@click.option(
    "--to-time", metavar="TIME", help="Reset to this time: ISO 8601 (UTC) or ms since the epoch."
)
@click.option(
    "--shift-by", type=int, help="Move forward by this many records; a negative number moves back."
)
@click.option("--execute", is_flag=True, help="Change the offsets; otherwise only show the change.")
@click.option("--dry-run", is_flag=True, help="Only show the change, which is the default.")
@json_option
@server_option
@timeout_option
def reset(
    group: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift_by: int | None,
    execute: bool,
    dry_run: bool,
    as_json: bool,
    server: str,
    timeout_s: float,
) -> None:
    """Set the offsets at which GROUP goes on. The group must have no members.

    An offset below a partition's start becomes the start, an offset above its end becomes the end.
    """
    chosen = [
        to_earliest,
        to_latest,
        to_offset is not None,
        to_time is not None,
        shift_by is not None,
    ]
    if sum(chosen) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by"
        )
    if execute and dry_run:
        raise click.UsageError("give one of --execute and --dry-run")
    with connect(server, timeout_s) as client:
        state = describe_group(client, group).state
        committed = client.admin.committed_offsets(group)
        wanted = _wanted(client, topics, committed)
        if not wanted:
            raise NotFoundError(
                "reset group", group, "it has no committed offsets", "name topics with --topic"
            )
        if state not in _WITHOUT_MEMBERS:
            raise ConflictError(
                "reset group", group, f"its state is {state}", "stop its members first"
            )
        first = client.admin.list_offsets(wanted, EARLIEST)
        end = client.admin.list_offsets(wanted, LATEST)
        if to_earliest:
            target = dict(first)
        elif to_latest:
            target = dict(end)
        elif to_offset is not None:
            target = dict.fromkeys(wanted, to_offset)
        elif to_time is not None:
            found = client.admin.list_offsets(wanted, parse_time(to_time))
            # A partition without a record that young goes on at its end, as in Kafka's own tool.
            target = {key: offset if offset >= 0 else end[key] for key, offset in found.items()}
        else:
            target = {key: committed.get(key, end[key]) + (shift_by or 0) for key in wanted}
        target = {key: min(max(offset, first[key]), end[key]) for key, offset in target.items()}
        if execute:
            client.admin.commit_offsets(group, target)
    _show_reset(committed, target, as_json=as_json, execute=execute)


@command.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Don't ask.")
@server_option
@timeout_option
def delete(group: str, yes: bool, server: str, timeout_s: float) -> None:
    """Delete GROUP and its committed offsets. It must have no members."""
    ask_to_delete(lambda: f"Delete group {group} with its offsets?", yes=yes)
    with connect(server, timeout_s) as client:
        client.admin.delete_group(group)
    click.echo(f"deleted {group}")


def _show_reset(
    committed: dict[TopicPartition, int],
    target: dict[TopicPartition, int],
    *,
    as_json: bool,
    execute: bool,
) -> None:
    rows = [
        (key.topic, key.partition, committed.get(key), offset)
        for key, offset in sorted(target.items())
    ]
    if as_json:
        names = ("topic", "partition", "before", "after")
        print_json(
            {"executed": execute, "offsets": [dict(zip(names, row, strict=True)) for row in rows]}
        )
        return
    print_table(("topic", "partition", "before", "after"), rows)
    if not execute:
        click.echo("nothing was changed; give --execute to change these offsets", err=True)


def _wanted(
    client: Client, texts: tuple[str, ...], committed: dict[TopicPartition, int]
) -> list[TopicPartition]:
    if not texts:
        return sorted(committed)
    wanted: list[TopicPartition] = []
    for text in texts:
        name, colon, numbers = text.partition(":")
        known = client.topic(name).leaders
        if not colon:
            wanted += known
            continue
        try:
            asked = [TopicPartition(name, int(number)) for number in numbers.split(",")]
        except ValueError:
            raise click.BadParameter(f"{text!r} is not TOPIC:P,P", param_hint="--topic") from None
        for partition in asked:
            if partition not in known:
                raise InvalidRequestError(
                    "reset", str(partition), f"the topic has {len(known)} partitions"
                )
        wanted += asked
    return sorted(set(wanted))


def _ends(client: Client, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end of each partition whose topic still exists."""
    ends: dict[TopicPartition, int] = {}
    for name in sorted({partition.topic for partition in partitions}):
        try:
            known = client.topic(name).leaders
        except RefusedError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            continue
        wanted = [partition for partition in partitions if partition in known]
        ends.update(client.admin.list_offsets(wanted, LATEST))
    return ends


def _as_json(description: GroupDescription, rows: list[dict[str, object]]) -> dict[str, object]:
    return {
        "group": description.group_id,
        "state": description.state,
        "type": description.type,
        "protocol": description.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id or None,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [str(partition) for partition in member.partitions],
            }
            for member in description.members
        ],
        "offsets": rows,
    }
