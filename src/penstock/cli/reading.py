"""Reading topics without a group: where to begin, and one round of fetches after another.

A round that fails by what may pass is tried again (`penstock.cli.client.patience`), with leaders
that are looked up again.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

import click

from penstock.cli.client.cluster import Client
from penstock.cli.client.fetching import FetchedRecord, fetch
from penstock.cli.client.offsets import EARLIEST, LATEST, TopicPartition, leaders_of, list_offsets
from penstock.cli.client.patience import Patience
from penstock.model.errors import InvalidRequestError, RetryableError

WAIT_MS: Final = 500
BYTES_MAX: Final = 16 << 20

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
    leaders_in_doubt: bool = False

    def is_over(self) -> bool:
        """Whether every partition with an end is at it."""
        return bool(self.ends) and all(
            self.positions[partition] >= end for partition, end in self.ends.items()
        )


def read_alone(
    client: Client,
    reading: Reading,
    names: tuple[str, ...],
    only: tuple[int, ...],
    start: Start,
    *,
    until_end: bool,
    patience: Patience,
) -> Batches:
    """Read partitions, all or `only` those of these numbers, from `start` on.

    Raises:
        RetryableError: at once before the first round, later at the end of patience.
        RefusedError: a topic or partition does not exist.
    """
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
    reading.positions = start_positions(client, reading.leaders, start)
    if until_end:
        ends = list_offsets(client, dict.fromkeys(reading.leaders, LATEST), reading.leaders)
        reading.ends = ends
    while not reading.is_over():
        try:
            yield from poll(client, reading)
            patience.succeeded()
        except RetryableError as error:
            patience.bear(error)


def start_positions(
    client: Client, leaders: dict[TopicPartition, int], start: Start
) -> dict[TopicPartition, int]:
    """The offset of each partition at which reading begins."""
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


def poll(client: Client, reading: Reading) -> Batches:
    """One round of fetches. Yields at least once, so that its reader can look at the time.

    Raises:
        RetryableError: the next round, from the positions reached, looks leaders up again.
    """
    if not reading.positions:
        time.sleep(WAIT_MS / 1000)
        yield []
        return
    try:
        if reading.leaders_in_doubt:
            _find_leaders(client, reading)
        for answer in fetch(
            client, reading.positions, reading.leaders, wait_ms=WAIT_MS, bytes_max=BYTES_MAX
        ):
            if answer.out_of_range:
                reading.positions[answer.partition] = _moved_position(
                    client, reading, answer.partition
                )
                continue
            records = answer.records
            end = reading.ends.get(answer.partition)
            if end is not None:
                records = [record for record in records if record.offset < end]
            yield records
            reading.positions[answer.partition] = answer.next_offset
    except RetryableError:
        reading.leaders_in_doubt = True
        raise


def _find_leaders(client: Client, reading: Reading) -> None:
    for name in {partition.topic for partition in reading.leaders}:
        found = leaders_of(client.topic(name))
        reading.leaders.update({key: found[key] for key in found.keys() & reading.leaders.keys()})
    reading.leaders_in_doubt = False


def _moved_position(client: Client, reading: Reading, partition: TopicPartition) -> int:
    """Where to go on when the position is not there any more: at the nearest record that is."""
    leaders = {partition: reading.leaders[partition]}
    first = list_offsets(client, {partition: EARLIEST}, leaders)[partition]
    end = list_offsets(client, {partition: LATEST}, leaders)[partition]
    position = reading.positions[partition]
    nearest = first if position < first else end
    click.echo(f"{partition}: offset {position} is gone, going on at {nearest}", err=True)
    return nearest
