"""`penstock repair --from-table` fills lost offsets with records of a topic's table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.client.http import JsonObject
from penstock.cli.damaged_runs import DamagedRuns, Run

if TYPE_CHECKING:
    from penstock.pipeline.tables.settings import CatalogSettings

_PIECE_OFFSETS: Final = 10_000
"""One journal entry fills at most this many offsets of a loss that was accepted."""
_BATCHES_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Lost offsets of a partition: the `ranges` of a damaged run [start, end); or all of its
    offsets where `is_accepted`, since their loss was accepted."""

    partition: str
    partition_key: int
    topic_id: str
    number: int
    server: str
    start: int
    end: int
    ranges: list[tuple[int, int]]
    is_accepted: bool

    @property
    def offsets(self) -> int:
        """The number of lost offsets."""
        return sum(end - start for start, end in self.ranges)


def lost_of(damaged: DamagedRuns, runs: list[Run], topic: str) -> list[Lost]:
    """List a topic's lost offsets: damaged runs without a copy, and losses that were accepted."""
    found = [
        _lost(run, run["server"], [(start, end) for start, end in run["lost"]], is_accepted=False)
        for run in runs
        if run["state"] == "damaged" and not run["copy"]
    ]
    for one in damaged.lost():
        for start in range(one["start"], one["end"], _PIECE_OFFSETS):
            end = min(one["end"], start + _PIECE_OFFSETS)
            piece = one | {"start": start, "end": end}
            found.append(_lost(piece, "", [(start, end)], is_accepted=True))
    return [one for one in found if one.partition.rpartition("-")[0] == topic]


def print_plan(lost: list[Lost], table: str) -> None:
    """Print what would be filled, and what a table can't give back."""
    from penstock.pipeline.tables.records_again import NOT_RECOVERED

    for one in lost:
        kind = "loss accepted" if one.is_accepted else "damaged"
        for start, end in one.ranges:
            click.echo(f"{one.partition} offsets {start} to {end - 1} ({kind}): from {table}")
    click.echo(f"a table does not have: {NOT_RECOVERED}")


def fill(
    damaged: DamagedRuns,
    lost: list[Lost],
    settings: "CatalogSettings",
    table: str,
    *,
    accept_loss: bool,
    on_done: Callable[[int, int], None],
) -> Iterator[JsonObject]:
    """Fill lost offsets piece by piece, and yield the result of each piece.

    Raises:
        PenstockError: table, catalog or server refused; pieces that were filled before stay.
    """
    from penstock.pipeline.tables.records_again import batches_of

    total = sum(one.offsets for one in lost)
    done = 0
    for one in lost:
        batches = batches_of(
            settings,
            table,
            topic_id=one.topic_id,
            partition=one.number,
            ranges=one.ranges,
            bytes_max=_BATCHES_BYTES_MAX,
        )
        described = {"partition": one.partition, "start": one.start, "end": one.end}
        if batches:
            answer = damaged.rebuild(
                one.server,
                one.partition_key,
                one.start,
                one.end,
                batches,
                accept_loss=accept_loss,
            )
            yield described | answer
        else:
            # The table has no record of this range: the run stays damaged, unless --accept-loss
            # gives its records up.
            yield described | {"filled": [], "lost": one.ranges}
        done += one.offsets
        on_done(done, total)


def _lost(
    row: JsonObject, server: str, ranges: list[tuple[int, int]], *, is_accepted: bool
) -> Lost:
    return Lost(
        partition=row["partition"],
        partition_key=row["partition_key"],
        topic_id=row["topic_id"],
        number=row["number"],
        server=server,
        start=row["start"],
        end=row["end"],
        ranges=ranges,
        is_accepted=is_accepted,
    )
