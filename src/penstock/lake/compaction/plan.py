"""Which runs to join and which partitions to clean by key. Pure, and without numpy: a small server
plans with what it has.

Runs below the target are joined with their neighbours when that makes each of them several times
as large, so a byte is copied at most once per such step, and once more to reach the target
(docs/compaction.md has the bound). Runs in a WAL are never touched, and nothing is joined over one.
"""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from penstock.lake.compaction.growth import Stretch, choose_stretches
from penstock.lake.compaction.items import (
    MIB,
    CompactionSettings,
    Item,
    ItemPartition,
    JoinItem,
)
from penstock.lake.compaction.keyed_plan import keyed_item
from penstock.lake.compaction.listing import Listing, PartitionRuns, partitions_of
from penstock.lake.door import RunPage, TopicState

_GARBAGE: Final = "garbage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, and what there is. Bytes and runs are those in objects."""

    items: list[Item]
    run_count: int
    size_bytes: int
    planned_runs: int
    planned_bytes: int


@dataclass(slots=True)
class _Piece:
    """One output run: adjacent runs of one partition."""

    topic_id: bytes
    partition: int
    ordinal: int
    """Which piece of its partition: an object holds one run per partition at most."""
    runs: PartitionRuns
    start: int
    end: int
    size_bytes: int
    reason: str
    log_start: int


@dataclass(slots=True)
class _Open:
    """An item that is being filled."""

    pieces: list[_Piece] = field(default_factory=list)
    size_bytes: int = 0
    run_count: int = 0


def plan(
    pages: Iterable[RunPage],
    topics: Mapping[str, TopicState],
    settings: CompactionSettings,
    *,
    now_ms: int,
    whole: bool,
) -> Plan:
    """Choose items.

    Args:
        pages: of one listing with the runs in WALs, which are where joining stops.
        topics: by topic id; partitions of others are left alone.
        now_ms: journal time.
        whole: whether the pages list all runs that there are: only then is known how much of an
            object is live.

    Returns:
        Items in which no run appears twice, the same ones for the same input. Those by key don't
        know their partitions' producers yet: whoever runs them asks.
    """
    with _without_cycles():
        return _plan(pages, topics, settings, now_ms=now_ms, whole=whole)


def _plan(
    pages: Iterable[RunPage],
    topics: Mapping[str, TopicState],
    settings: CompactionSettings,
    *,
    now_ms: int,
    whole: bool,
) -> Plan:
    listing = Listing()
    items: list[Item] = []
    pieces: list[_Piece] = []
    rests: list[tuple[bytes, int, PartitionRuns, int, list[Stretch]]] = []
    for topic_id, partition, runs in partitions_of(pages, listing):
        topic = topics.get(topic_id)
        if topic is None or partition >= len(topic.partitions):
            continue
        state = topic.partitions[partition]
        keyed = keyed_item(topic, partition, runs, listing, settings, now_ms=now_ms)
        if keyed is not None and keyed.run_count <= settings.item_runs_max:
            items.append(keyed)
            continue
        stretches = choose_stretches(
            runs, settings, old_before_ms=now_ms - settings.old_ms, clean_end=state.clean_end
        )
        if keyed is not None and not stretches:
            items.append(keyed)
            continue
        # Else what is to be cleaned is joined first: its commit would be one entry of all its runs.
        key = bytes.fromhex(topic_id)
        pieces += [
            _Piece(key, partition, ordinal, runs, *stretch, log_start=state.log_start)
            for ordinal, stretch in enumerate(stretches)
        ]
        if whole:
            rests.append((key, partition, runs, state.log_start, stretches))
    if whole:
        pieces += _garbage(rests, listing, settings)
    items += _fill(pieces, listing, settings)
    return Plan(
        items=items,
        run_count=listing.run_count,
        size_bytes=listing.size_bytes,
        planned_runs=sum(item.run_count for item in items),
        planned_bytes=sum(item.size_bytes for item in items),
    )


@contextmanager
def _without_cycles() -> Iterator[None]:
    """Without the collector of cycles: there are none in a plan, and looking for them again and
    again in some million values takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _garbage(
    rests: Sequence[tuple[bytes, int, PartitionRuns, int, list[Stretch]]],
    listing: Listing,
    settings: CompactionSettings,
) -> Iterator[_Piece]:
    """The runs that keep objects from being deleted of which little is live."""
    garbage = listing.garbage(settings.live_share_min)
    if not garbage:
        return
    for topic_id, partition, runs, log_start, stretches in rests:
        ordinal = len(stretches)
        taken = {index for stretch in stretches for index in range(stretch.start, stretch.end)}
        for index, number in enumerate(runs.objects):
            # A longer run would not fit into an executor's memory, and its object waits.
            fits = runs.lengths[index] <= settings.object_bytes_target
            if number in garbage and index not in taken and fits:
                yield _Piece(
                    topic_id,
                    partition,
                    ordinal,
                    runs,
                    index,
                    index + 1,
                    runs.lengths[index],
                    _GARBAGE,
                    log_start,
                )
                ordinal += 1


def _fill(
    pieces: list[_Piece], listing: Listing, settings: CompactionSettings
) -> Iterator[JoinItem]:
    """Pack pieces into objects. Neighbours in (topic id, partition) go together, since that is how
    they lie in their input objects too, where one read then has them all."""
    pieces.sort(key=lambda piece: (piece.ordinal, piece.topic_id, piece.partition))
    for _, round_ in groupby(pieces, key=lambda piece: piece.ordinal):
        filled = _Open()
        for piece in round_:
            run_count = piece.end - piece.start
            if filled.pieces and (
                filled.size_bytes + piece.size_bytes > settings.object_bytes_target
                or filled.run_count + run_count > settings.item_runs_max
                or len(filled.pieces) >= settings.item_partitions_max
            ):
                yield _item(filled.pieces, listing, settings)
                filled = _Open()
            filled.pieces.append(piece)
            filled.size_bytes += piece.size_bytes
            filled.run_count += run_count
        yield _item(filled.pieces, listing, settings)


def _item(pieces: Sequence[_Piece], listing: Listing, settings: CompactionSettings) -> JoinItem:
    numbers: dict[int, int] = {}
    partitions = []
    for piece in pieces:
        runs, start, end = piece.runs, piece.start, piece.end
        inputs = [0] * (5 * (end - start))
        inputs[0::5] = runs.bases[start:end]
        inputs[1::5] = runs.ends[start:end]
        inputs[2::5] = [
            numbers.setdefault(number, len(numbers)) for number in runs.objects[start:end]
        ]
        inputs[3::5] = runs.positions[start:end]
        inputs[4::5] = runs.lengths[start:end]
        partitions.append(
            ItemPartition(
                topic_id=piece.topic_id.hex(),
                partition=piece.partition,
                inputs=inputs,
                log_start=piece.log_start,
            )
        )
    return JoinItem(
        objects=[listing.input_object(number) for number in numbers],
        partitions=partitions,
        reason=_reason(pieces, settings),
    )


def _reason(pieces: Sequence[_Piece], settings: CompactionSettings) -> str:
    counts = Counter(piece.reason for piece in pieces)
    meanings = {
        "target": f"reach {settings.run_bytes_target / MIB:g} MiB",
        "growth": f"grow {settings.growth}-fold",
        "old": f"are old and grow {settings.old_growth}-fold",
        _GARBAGE: f"lie in objects of which less than {settings.live_share_min:.0%} is live",
    }
    return ", ".join(
        f"{counts[name]} {meaning}" for name, meaning in meanings.items() if counts[name]
    )
