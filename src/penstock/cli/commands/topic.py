"""`penstock topic`."""

import click

from penstock.cli.asking import ask_to_delete
from penstock.cli.client.admin import DEFAULT_COUNT, EARLIEST, LATEST
from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import RefusedError
from penstock.cli.client.http import JsonObject
from penstock.cli.options import connect, json_option, parse_pairs, server_option, timeout_option
from penstock.cli.tables import counted, print_json, print_table
from penstock.kafka.errors import ErrorCode


@click.group("topic")
def command() -> None:
    """Create, list, describe, alter and delete topics."""


@command.command("create")
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Number of partitions; without it, the server's default.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Number of replicas that clients are shown; without it, one for each zone.",
)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@server_option
@timeout_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    server: str,
    timeout_s: float,
) -> None:
    """Create the topic NAME."""
    values = parse_pairs(configs, option="--config")
    with connect(server, timeout_s) as client:
        try:
            client.admin.create_topic(
                name,
                partitions=partitions or DEFAULT_COUNT,
                configs=values,
                replication_factor=replication_factor or DEFAULT_COUNT,
            )
        except RefusedError as error:
            if if_not_exists and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                click.echo(f"{name} already exists")
                return
            raise
        count = partitions or len(client.topic(name).leaders)
    click.echo(f"created {name} with {counted(count, 'partition')}")


@command.command("list")
@click.option("--internal", is_flag=True, help="List internal topics, too.")
@json_option
@server_option
@timeout_option
def list_topics(internal: bool, as_json: bool, server: str, timeout_s: float) -> None:
    """List topics and their numbers of partitions."""
    with connect(server, timeout_s) as client:
        found = client.metadata(None)
    topics = sorted(
        (topic for topic in found if internal or not topic.is_internal),
        key=lambda topic: topic.name,
    )
    if as_json:
        print_json(
            [
                {"name": topic.name, "id": topic.topic_id, "partitions": len(topic.leaders)}
                for topic in topics
            ]
        )
        return
    print_table(("topic", "partitions"), [(topic.name, len(topic.leaders)) for topic in topics])


@command.command("describe")
@click.argument("names", nargs=-1, required=True)
@click.option("--all-configs", is_flag=True, help="Show configs with default values, too.")
@json_option
@server_option
@timeout_option
def describe(
    names: tuple[str, ...], all_configs: bool, as_json: bool, server: str, timeout_s: float
) -> None:
    """Describe topics: configs, and the offsets of each partition."""
    with connect(server, timeout_s) as client:
        described = [_describe(client, name, all_configs=all_configs) for name in names]
    if as_json:
        print_json(described)
        return
    for index, topic in enumerate(described):
        if index:
            click.echo()
        click.echo(f"{topic['name']}  id {topic['id'] or 'unknown'}")
        for name, value in topic["configs"].items():
            click.echo(f"  {name} = {value}")
        print_table(
            ("partition", "leader", "start", "end", "records"),
            [
                (
                    row["partition"],
                    row["leader"],
                    row["start"],
                    row["end"],
                    row["end"] - row["start"],
                )
                for row in topic["partitions"]
            ],
        )


@command.command("alter")
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Raise the number of partitions to this."
)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Reset a config to its default. May be repeated.",
)
@server_option
@timeout_option
def alter(
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    server: str,
    timeout_s: float,
) -> None:
    """Change the topic NAME: more partitions, other configs."""
    values = parse_pairs(configs, option="--config")
    if partitions is None and not values and not deleted:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    with connect(server, timeout_s) as client:
        if values or deleted:
            client.admin.alter_configs(name, set_values=values, delete_names=deleted)
        if partitions is not None:
            client.admin.add_partitions(name, total=partitions)
    click.echo(f"altered {name}")


@command.command("delete")
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Don't ask.")
@server_option
@timeout_option
def delete(names: tuple[str, ...], yes: bool, server: str, timeout_s: float) -> None:
    """Delete topics with all their records."""
    ask_to_delete(lambda: f"Delete {', '.join(names)} with all records?", yes=yes)
    with connect(server, timeout_s) as client:
        for name in names:
            client.admin.delete_topic(name)
            click.echo(f"deleted {name}")


def _describe(client: Client, name: str, *, all_configs: bool) -> JsonObject:
    topic = client.topic(name)
    starts = client.admin.list_offsets(topic.leaders, EARLIEST)
    ends = client.admin.list_offsets(topic.leaders, LATEST)
    return {
        "name": topic.name,
        "id": topic.topic_id,
        "configs": {
            config.name: config.value
            for config in client.admin.describe_configs(name)
            if all_configs or config.is_own
        },
        "partitions": [
            {
                "partition": partition.partition,
                "leader": leader,
                "start": starts[partition],
                "end": ends[partition],
            }
            for partition, leader in topic.leaders.items()
        ],
    }
