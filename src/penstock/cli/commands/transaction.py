"""`penstock transaction`."""

import time
from datetime import UTC, datetime
from typing import Final

import click

from penstock.cli.client.cluster import Client
from penstock.cli.client.topic_partition import TopicPartition
from penstock.cli.client.transactions import (
    OpenProducer,
    describe_transaction,
    end_by_id,
    end_in_partition,
    list_transactions,
    open_producers,
)
from penstock.cli.options import connect, json_option, server_option, timeout_option
from penstock.cli.tables import counted, print_json, print_table
from penstock.model.errors import NotFoundError

OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
TIMEOUT_MAX_S: Final = 900.0
"""The default of `transaction.max.timeout.ms`, which no open transaction outlives."""


@click.group("transaction")
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only transactional ids in this state, such as Ongoing. May be repeated.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=click.IntRange(min=0),
    help="Only the transactional id of this producer. May be repeated.",
)
@click.option(
    "--longer-than",
    "longer_than_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Only transactions that began longer ago.",
)
@click.option("--pattern", metavar="REGEX", help="Only transactional ids that match (RE2).")
@json_option
@server_option
@timeout_option
def list_command(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_s: float | None,
    pattern: str | None,
    as_json: bool,
    server: str,
    timeout_s: float,
) -> None:
    """List transactional ids, with their producers and states."""
    with connect(server, timeout_s) as client:
        found = list_transactions(
            client,
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=-1 if longer_than_s is None else round(longer_than_s * 1000),
            pattern=pattern,
        )
    rows = [(row.transactional_id, row.producer_id, row.state) for row in found]
    if as_json:
        names = ("transactional_id", "producer_id", "state")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(("transactional id", "producer", "state"), rows)


@command.command("describe")
@click.argument("transactional_id", metavar="ID")
@json_option
@server_option
@timeout_option
def describe(transactional_id: str, as_json: bool, server: str, timeout_s: float) -> None:
    """Describe the transactional id ID: its producer, state and partitions."""
    with connect(server, timeout_s) as client:
        found = describe_transaction(client, transactional_id)
    if as_json:
        print_json(
            {
                "transactional_id": found.transactional_id,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "state": found.state,
                "timeout_ms": found.timeout_ms,
                "begun_ms": found.begun_ms,
                "partitions": [str(place) for place in found.partitions],
            }
        )
        return
    producer = f"producer {found.producer_id} epoch {found.producer_epoch}"
    click.echo(f"{found.transactional_id}  {found.state}, {producer}")
    if found.begun_ms is not None and found.state in OPEN_STATES:
        click.echo(
            f"open for {_age_s(found.begun_ms):.1f} s, since {_moment(found.begun_ms)};"
            f" time-out {found.timeout_ms / 1000:g} s"
        )
        print_table(("topic", "partition"), found.partitions)


@command.command("abort")
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--topic", help="Abort what is open in a partition of this topic.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition of --topic.")
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    help="Offset of the transaction's first record there, as `hanging` shows it.",
)
@server_option
@timeout_option
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    server: str,
    timeout_s: float,
) -> None:
    """Abort the open transaction of the transactional id ID, and fence its producer.

    Where no transactional id is known to have it open (see `hanging`), name a partition and the
    offset at which the transaction begins instead.
    """
    named = (topic, partition, start_offset)
    if transactional_id is not None and named == (None, None, None):
        with connect(server, timeout_s) as client:
            _abort_of_id(client, transactional_id)
        click.echo(f"aborted the transaction of {transactional_id}")
        return
    if transactional_id is not None or topic is None or partition is None or start_offset is None:
        raise click.UsageError("give either ID, or --topic, --partition and --start-offset")
    place = TopicPartition(topic, partition)
    with connect(server, timeout_s) as client:
        _abort_in_partition(client, place, start_offset)
    click.echo(f"aborted the transaction that began at offset {start_offset} of {place}")


@command.command("hanging")
@click.option("--topic", "topics", multiple=True, help="Look at this topic alone. May be repeated.")
@click.option(
    "--max-timeout",
    "timeout_max_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=TIMEOUT_MAX_S,
    show_default=True,
    help="The server's transaction.max.timeout.ms: what wrote since isn't hanging.",
)
@json_option
@server_option
@timeout_option
def hanging(
    topics: tuple[str, ...], timeout_max_s: float, as_json: bool, server: str, timeout_s: float
) -> None:
    """Find open transactions that no transactional id accounts for: `abort` ends them.

    They hold back readers of committed records. A Penstock server has none, since one entry of its
    journal ends a transaction everywhere.
    """
    with connect(server, timeout_s) as client:
        found = [
            producer
            for producer in _old(client, topics, timeout_max_s)
            if not _is_accounted_for(client, producer)
        ]
    header = ("topic", "partition", "producer", "epoch", "start offset", "last written")
    rows = [
        (
            one.place.topic,
            one.place.partition,
            one.producer_id,
            one.producer_epoch,
            one.start_offset,
            _moment(one.last_ms),
        )
        for one in found
    ]
    if as_json:
        names = [name.replace(" ", "_") for name in header]
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if not rows:
        click.echo("no hanging transactions", err=True)
        return
    print_table(header, rows)
    click.echo(
        f"{counted(len(rows), 'hanging transaction')}; end each by penstock transaction abort"
        " --topic T --partition P --start-offset N",
        err=True,
    )


def _abort_of_id(client: Client, transactional_id: str) -> None:
    transaction = describe_transaction(client, transactional_id)
    if transaction.state not in OPEN_STATES:
        raise NotFoundError(
            "abort transaction",
            transactional_id,
            f"it has no open transaction, its state is {transaction.state}",
        )
    end_by_id(client, transaction)


def _abort_in_partition(client: Client, place: TopicPartition, start_offset: int) -> None:
    known = client.topic(place.topic)
    leader = known.leaders.get(place)
    if leader is None:
        raise NotFoundError(
            "abort transaction", str(place), f"the topic has {len(known.leaders)} partitions"
        )
    for producer in open_producers(client, known):
        if producer.place == place and producer.start_offset == start_offset:
            end_in_partition(client, leader, producer)
            return
    raise NotFoundError(
        "abort transaction", str(place), f"no open transaction begins at offset {start_offset}"
    )


def _old(client: Client, topics: tuple[str, ...], timeout_max_s: float) -> list[OpenProducer]:
    """Open transactions that were last written to longer ago than any may be open."""
    named = client.metadata(topics or None)
    return [
        producer
        for topic in named
        for producer in open_producers(client, topic)
        if _age_s(producer.last_ms) > timeout_max_s
    ]


def _is_accounted_for(client: Client, producer: OpenProducer) -> bool:
    for row in list_transactions(client, producer_ids=[producer.producer_id]):
        try:
            found = describe_transaction(client, row.transactional_id)
        except NotFoundError:
            continue  # forgotten meanwhile
        if found.producer_id == producer.producer_id and producer.place in found.partitions:
            return True
    return False


def _age_s(moment_ms: int) -> float:
    return max(0.0, time.time() - moment_ms / 1000)


def _moment(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
