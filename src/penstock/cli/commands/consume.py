"""`penstock consume`."""

import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

import click

from penstock.cli.client.cluster import Client
from penstock.cli.client.fetching import FetchedRecord, fetch
from penstock.cli.client.groups import commit_offsets, committed_offsets
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
    """Partitions being read. `ends` holds where to stop, where that was asked for."""

    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
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
        if group is None:
            batches = _read_alone(client, topics, partitions, start, until_end=until_end)
        else:
            batches = _read_as_member(client, topics, group, start)
        try:
            _print(batches, show, max_messages=max_messages, idle_s=idle_s)
        except KeyboardInterrupt:
            # Ctrl-C is how one ends this command, so it is no failure; what was printed is
            # committed by the generator's end.
            pass
        finally:
            batches.close()


def _print(
    batches: Batches,
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
            for record in records:
                output.write(show(record))
                count += 1
                if count == max_messages:
                    break
            output.flush()
            progress.update(count, count)
            if count == max_messages:
                return
            if records:
                arrived_s = time.monotonic()
            elif idle_s is not None and time.monotonic() - arrived_s >= idle_s:
                return


def _read_alone(
    client: Client,
    names: tuple[str, ...],
    only: tuple[int, ...],
    start: Start,
    *,
    until_end: bool,
) -> Batches:
    reading = Reading()
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
        yield from _poll(client, reading, start)


def _read_as_member(client: Client, names: tuple[str, ...], group: str, start: Start) -> Batches:
    for name in names:
        client.topic(name)  # says at once which one does not exist
    with client.group_connection(group, wait_s=REBALANCE_S) as connection:
        member = Member(client, connection, group, names)
        reading = _take_assignment(client, member, start)
        committed = dict(reading.positions)
        committed_s = time.monotonic()
        try:
            while True:
                for records in _poll(client, reading, start):
                    # Handed over before they count as read, so that an end in between reads
                    # them again rather than never.
                    yield records
                    for record in records:
                        reading.positions[record.partition] = record.offset + 1
                if time.monotonic() - committed_s >= COMMIT_INTERVAL_S:
                    _commit(member, reading, committed)
                    committed_s = time.monotonic()
                if not member.keep():
                    if member.member_id:
                        _commit(member, reading, committed)
                    reading = _take_assignment(client, member, start)
                    committed = dict(reading.positions)
        finally:
            if member.member_id and not connection.closed:
                _commit(member, reading, committed)
                member.leave()


def _take_assignment(client: Client, member: Member, start: Start) -> Reading:
    assigned = member.join()
    reading = Reading()
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
    return reading


def _commit(member: Member, reading: Reading, committed: dict[TopicPartition, int]) -> None:
    changed = {
        partition: offset
        for partition, offset in reading.positions.items()
        if committed.get(partition) != offset
    }
    if not changed:
        return
    commit_offsets(
        member.connection,
        member.group_id,
        changed,
        generation=member.generation,
        member_id=member.member_id,
    )
    committed.update(changed)


def _start_positions(
    client: Client, leaders: dict[TopicPartition, int], start: Start
) -> dict[TopicPartition, int]:
    if not leaders:
        return {}
    if start.offset is not None and start.offset >= 0:
        return dict.fromkeys(leaders, start.offset)
    ends = list_offsets(client, dict.fromkeys(leaders, LATEST), leaders)
    if start.offset is not None:
        firsts = list_offsets(client, dict.fromkeys(leaders, EARLIEST), leaders)
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


def _poll(client: Client, reading: Reading, start: Start) -> Batches:
    """One round of fetches. Yields at least once, so that its reader can look at the time."""
    if not reading.positions:
        time.sleep(WAIT_MS / 1000)
        yield []
        return
    for answer in fetch(
        client, reading.positions, reading.leaders, wait_ms=WAIT_MS, bytes_max=BYTES_MAX
    ):
        if answer.out_of_range:
            reading.positions[answer.partition] = _moved_position(
                client, reading, answer.partition, start
            )
            continue
        records = answer.records
        end = reading.ends.get(answer.partition)
        if end is not None:
            records = [record for record in records if record.offset < end]
        yield records
        reading.positions[answer.partition] = answer.next_offset


def _moved_position(
    client: Client, reading: Reading, partition: TopicPartition, start: Start
) -> int:
    """Where to go on when the position is not there (any more): at the nearest record that is."""
    leaders = {partition: reading.leaders[partition]}
    first = list_offsets(client, {partition: EARLIEST}, leaders)[partition]
    end = list_offsets(client, {partition: LATEST}, leaders)[partition]
    position = reading.positions[partition]
    if start.offset is not None and position == start.offset:
        raise InvalidRequestError(
            "consume", str(partition), f"offset {position} is not in {first} to {end}"
        )
    click.echo(f"{partition}: offset {position} is gone, going on at {first}", err=True)
    return first if position < first else end
