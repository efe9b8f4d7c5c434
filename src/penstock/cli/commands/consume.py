"""`penstock consume`."""

import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

import click

from penstock.cli.client.cluster import Client
from penstock.cli.client.fetching import FetchedRecord, fetch
from penstock.cli.client.groups import NO_GENERATION, commit_offsets, committed_offsets
from penstock.cli.client.member import REBALANCE_S, Member
from penstock.cli.client.offsets import EARLIEST, LATEST, TopicPartition, leaders_of, list_offsets
from penstock.cli.options import connect, parse_time, server_option, timeout_option
from penstock.cli.progress import Progress
from penstock.cli.recordtext import json_line, text_line
from penstock.model.errors import InvalidRequestError

WAIT_MS: Final = 500
BYTES_MAX: Final = 16 << 20
COMMIT_INTERVAL_S: Final = 5.0

Batches = Generator[list[FetchedRecord], None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where to begin where nothing is committed: `timestamp` is EARLIEST, LATEST or a time in
    ms; `offset` wins over it; a negative one counts from the end."""

    timestamp: int = LATEST
    offset: int | None = None


@dataclass(slots=True)
class Reading:
    """Partitions being read.

    `positions` is what is fetched next, `printed` the offset after the last record that was
    printed, which is what a group commits: an end in between reads some again rather than never.
    `ends` holds where to stop, where that was asked for.
    """

    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    printed: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def is_over(self) -> bool:
        """Whether every partition with an end is at it."""
        return bool(self.ends) and all(
            self.positions[partition] >= end for partition, end in self.ends.items()
        )


@click.command("consume")
@click.argument("topics", nargs=-1, required=True)
@click.option("--from-beginning", is_flag=True, help="Begin at the first record, not at the end.")
@click.option(
    "--offset", type=int, help="Begin at this offset; a negative one counts from the end."
)
@click.option(
    "--from-time", metavar="TIME", help="Begin at this time: ISO 8601 (UTC) or ms since the epoch."
)
@click.option("--partition", "partitions", multiple=True, type=int, help="Only these.")
@click.option("--group", metavar="NAME", help="Read as a member of a group, and commit.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--until-end", is_flag=True, help="End at what was the end at the start.")
@click.option(
    "--idle-timeout",
    "idle_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="End when nothing arrived for so long.",
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: values. json: one object per record.",
)
@click.option("--key-separator", metavar="TEXT", help="Print the key and this before the value.")
@server_option
@timeout_option
def command(
    topics: tuple[str, ...],
    from_beginning: bool,
    offset: int | None,
    from_time: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    until_end: bool,
    idle_s: float | None,
    line_format: str,
    key_separator: str | None,
    server: str,
    timeout_s: float,
) -> None:
    """Print the records of TOPICS, a line each, until Ctrl-C.

    Without a group, nothing is committed. With one, reading goes on where the group left off;
    the options that say where to begin count where nothing is committed yet.
    """
    if sum((from_beginning, offset is not None, from_time is not None)) > 1:
        raise click.UsageError("give one of --from-beginning, --offset and --from-time")
    if group is not None and (partitions or until_end):
        raise click.UsageError("--partition and --until-end are for reading without a group")
    start = Start(offset=offset)
    if from_beginning:
        start = Start(timestamp=EARLIEST)
    elif from_time is not None:
        start = Start(timestamp=parse_time(from_time))
    separator = None if key_separator is None else key_separator.encode()
    show: Callable[[FetchedRecord], bytes] = json_line
    if line_format == "text":
        show = lambda record: text_line(record, key_separator=separator)  # noqa: E731
    with connect(server, timeout_s) as client:
        reading = Reading()
        if group is None:
            batches = _read_alone(client, reading, topics, partitions, start, until_end=until_end)
        else:
            batches = _read_as_member(client, reading, topics, group, start)
        try:
            _print(batches, reading, show, max_messages=max_messages, idle_s=idle_s)
        except KeyboardInterrupt:
            # Ctrl-C is how one ends this command, so it is no failure.
            pass
        finally:
            batches.close()


def _print(
    batches: Batches,
    reading: Reading,
    show: Callable[[FetchedRecord], bytes],
    *,
    max_messages: int | None,
    idle_s: float | None,
) -> None:
    output, count = sys.stdout.buffer, 0
    arrived_s = time.monotonic()
    # A progress line would run into records that are printed to the same terminal.
    enabled = sys.stderr.isatty() and not sys.stdout.isatty()
    with Progress("records", total=max_messages, enabled=enabled) as progress:
        for records in batches:
            wanted = records if max_messages is None else records[: max_messages - count]
            for record in wanted:
                output.write(show(record))
            output.flush()
            for record in wanted:
                reading.printed[record.partition] = record.offset + 1
            count += len(wanted)
            progress.update(count, count)
            if count == max_messages:
                return
            if records:
                arrived_s = time.monotonic()
            elif idle_s is not None and time.monotonic() - arrived_s >= idle_s:
                return


def _read_alone(
    client: Client,
    reading: Reading,
    names: tuple[str, ...],
    only: tuple[int, ...],
    start: Start,
    *,
    until_end: bool,
) -> Batches:
    for name in dict.fromkeys(names):
        leaders = leaders_of(client.topic(name))
        wanted = {
            partition: leader
            for partition, leader in leaders.items()
            if not only or partition.partition in only
        }
        missing = set(only) - {partition.partition for partition in wanted}
        if missing:
            raise InvalidRequestError(
                "consume", f"{name}-{min(missing)}", f"the topic has {len(leaders)} partitions"
            )
        reading.leaders.update(wanted)
    reading.positions = _start_positions(client, reading.leaders, start)
    if until_end:
        ends = list_offsets(client, dict.fromkeys(reading.leaders, LATEST), reading.leaders)
        reading.ends = ends
    while not reading.is_over():
        yield from _poll(client, reading)


def _read_as_member(
    client: Client, reading: Reading, names: tuple[str, ...], group: str, start: Start
) -> Batches:
    for name in names:
        client.topic(name)  # says at once which one does not exist
    with client.group_connection(group, wait_s=REBALANCE_S) as connection:
        member = Member(client, connection, group, names)
        try:
            _take_assignment(client, reading, member, start)
            committed_s = time.monotonic()
            while True:
                yield from _poll(client, reading)
                if time.monotonic() - committed_s >= COMMIT_INTERVAL_S:
                    _commit(member, reading)
                    committed_s = time.monotonic()
                if not member.keep():
                    if member.generation != NO_GENERATION:
                        _commit(member, reading)
                    _take_assignment(client, reading, member, start)
        finally:
            if not connection.closed:
                if member.generation != NO_GENERATION:
                    _commit(member, reading)
                member.leave()


def _take_assignment(client: Client, reading: Reading, member: Member, start: Start) -> None:
    assigned = member.join()
    reading.leaders.clear()
    reading.printed.clear()
    for name in sorted({partition.topic for partition in assigned}):
        leaders = leaders_of(client.topic(name))
        reading.leaders.update(
            {partition: leaders[partition] for partition in assigned if partition.topic == name}
        )
    known = committed_offsets(member.connection, member.group_id, assigned) if assigned else {}
    unknown = {
        partition: leader for partition, leader in reading.leaders.items() if partition not in known
    }
    reading.positions = known | _start_positions(client, unknown, start)


def _commit(member: Member, reading: Reading) -> None:
    if not reading.printed:
        return
    commit_offsets(
        member.connection,
        member.group_id,
        reading.printed,
        generation=member.generation,
        member_id=member.member_id,
    )
    reading.printed.clear()


def _start_positions(
    client: Client, leaders: dict[TopicPartition, int], start: Start
) -> dict[TopicPartition, int]:
    if not leaders:
        return {}
    ends = list_offsets(client, dict.fromkeys(leaders, LATEST), leaders)
    if start.offset is not None:
        firsts = list_offsets(client, dict.fromkeys(leaders, EARLIEST), leaders)
        if start.offset >= 0:
            for partition, end in ends.items():
                if not firsts[partition] <= start.offset <= end:
                    raise InvalidRequestError(
                        "consume",
                        str(partition),
                        f"offset {start.offset} is not in {firsts[partition]} to {end}",
                    )
            return dict.fromkeys(leaders, start.offset)
        return {
            partition: max(firsts[partition], end + start.offset) for partition, end in ends.items()
        }
    if start.timestamp == LATEST:
        return ends
    found = list_offsets(client, dict.fromkeys(leaders, start.timestamp), leaders)
    # No record is that young: what comes next will be.
    return {
        partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()
    }


def _poll(client: Client, reading: Reading) -> Batches:
    """One round of fetches. Yields at least once, so that its reader can look at the time."""
    if not reading.positions:
        time.sleep(WAIT_MS / 1000)
        yield []
        return
    for answer in fetch(
        client, reading.positions, reading.leaders, wait_ms=WAIT_MS, bytes_max=BYTES_MAX
    ):
        if answer.out_of_range:
            reading.positions[answer.partition] = _moved_position(client, reading, answer.partition)
            continue
        records = answer.records
        end = reading.ends.get(answer.partition)
        if end is not None:
            records = [record for record in records if record.offset < end]
        yield records
        reading.positions[answer.partition] = answer.next_offset


def _moved_position(client: Client, reading: Reading, partition: TopicPartition) -> int:
    """Where to go on when the position is not there any more: at the nearest record that is."""
    leaders = {partition: reading.leaders[partition]}
    first = list_offsets(client, {partition: EARLIEST}, leaders)[partition]
    end = list_offsets(client, {partition: LATEST}, leaders)[partition]
    position = reading.positions[partition]
    nearest = first if position < first else end
    click.echo(f"{partition}: offset {position} is gone, going on at {nearest}", err=True)
    return nearest
