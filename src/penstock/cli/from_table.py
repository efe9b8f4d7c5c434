"""`penstock repair --from-table`: what is lost that a topic's table may have, and filling it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.client.http import JsonObject
from penstock.cli.damaged_runs import DamagedRuns, Run

if TYPE_CHECKING:
    from penstock.pipeline.tables.settings import CatalogSettings

_PIECE_OFFSETS: Final = 10_000
"""Of a loss that was accepted so many offsets are filled by one entry."""
_BATCHES_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Lost offsets of a partition: `ranges` of a damaged run [start, end), or `is_accepted`: all of
    them, by a loss that was accepted."""

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
        """How many are lost."""
        return sum(end - start for start, end in self.ranges)


def lost_of(damaged: DamagedRuns, runs: list[Run], topic: str) -> list[Lost]:
    """What is lost of a topic: damaged runs without a copy, and losses that were accepted."""
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
    """Say what would be done, and what can't be."""
    from penstock.pipeline.tables.records_again import NOT_RECOVERED

    for one in lost:
        kind = "loss accepted" if one.is_accepted else "damaged"
        for start, end in one.ranges:
            click.echo(f"{one.partition} offsets {start} to {end - 1} ({kind}): from {table}")
    click.echo(f"not recovered by a table: {NOT_RECOVERED}")


def fill(
    damaged: DamagedRuns,
    lost: list[Lost],
    settings: "CatalogSettings",
    table: str,
    *,
    accept_loss: bool,
    on_done: Callable[[int, int], None],
) -> Iterator[JsonObject]:
    """Fill what is lost, piece by piece; what came of each.

    Raises:
        PenstockError: table, catalog or server refused; what was filled before stays so.
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
            # Nothing to put in the place of it: what is damaged stays, or --accept-loss alone does.
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
