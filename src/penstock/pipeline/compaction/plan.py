"""A plan chooses runs to join and partitions to clean by key. Pure, and without numpy: a small
server plans with what it has.

Runs below the target are joined with their neighbours when that makes each of them several times
as large, so a byte is copied at most once per such step, and once more to reach the target
(docs/compaction.md has the bound). Runs in a WAL are never touched, and nothing is joined over one.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.pipeline.api_messages import RunPage, TopicState
from penstock.pipeline.compaction.growth import choose_stretches
from penstock.pipeline.compaction.incremental import Place, Seen
from penstock.pipeline.compaction.items import CompactionSettings, Item
from penstock.pipeline.compaction.keyed_plan import keyed_item
from penstock.pipeline.compaction.listing import Listing, PartitionRuns, partitions_of
from penstock.pipeline.compaction.merge_plan import Tried, merging_of, small_stretches
from penstock.pipeline.compaction.pieces import Piece, fill, make_item
from penstock.pipeline.compaction.scattered import Rest, emptied, gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The chosen items, and what there is. Bytes and runs are those in objects."""

    items: list[Item]
    run_count: int
    size_bytes: int
    planned_runs: int
    planned_bytes: int
    seen: dict[Place, Seen] = field(default_factory=dict)
    """A view of each partition that was listed."""


def plan(
    pages: Iterable[RunPage],
    topics: Mapping[str, TopicState],
    settings: CompactionSettings,
    *,
    now_ms: int,
    whole: bool,
    merges: bool = False,
    tried: Tried = (),
) -> Plan:
    """Choose items.

    Args:
        pages: the pages of one listing, with the runs in WALs, at which joining stops.
        topics: topics by id; partitions of other topics are left alone.
        now_ms: journal time.
        whole: whether the pages list all runs: only then it is known how much of an object is
            live.
        merges: whether small batches may be merged (feature level 5).
        tried: runs that aren't rewritten for their small batches alone.

    Returns:
        Items in which no run appears twice; the same input gives the same items. Items by key
        don't have their partitions' producers yet: the job asks for them.
    """
    with _without_cycles():
        return _plan(
            pages, topics, settings, now_ms=now_ms, whole=whole, merges=merges, tried=tried
        )


def _plan(
    pages: Iterable[RunPage],
    topics: Mapping[str, TopicState],
    settings: CompactionSettings,
    *,
    now_ms: int,
    whole: bool,
    merges: bool,
    tried: Tried,
) -> Plan:
    listing = Listing()
    items: list[Item] = []
    pieces: list[Piece] = []
    rests: list[Rest] = []
    seen: dict[Place, Seen] = {}
    for topic_id, partition, runs in partitions_of(pages, listing):
        topic = topics.get(topic_id)
        if topic is None or partition >= len(topic.partitions) or runs.is_torn:
            # What was replaced while it was listed is looked at by the next plan.
            continue
        state = topic.partitions[partition]
        seen[topic_id, partition] = Seen(full_end=_full_end(runs, settings), is_quiet=False)
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
        if merges:
            stretches += small_stretches(topic, partition, runs, stretches, settings, tried)
        if not stretches and min(runs.objects, default=0) >= 0:
            seen[topic_id, partition].is_quiet = True
        # Else what is to be cleaned is joined first: its commit would be one entry of all its runs.
        key = bytes.fromhex(topic_id)
        pieces += [
            Piece(
                key,
                partition,
                ordinal,
                runs,
                *stretch,
                log_start=state.log_start,
                merging=merging_of(topic, runs, stretch, settings) if merges else None,
            )
            for ordinal, stretch in enumerate(stretches)
        ]
        if whole:
            rests.append(Rest(key, partition, runs, state.log_start, stretches))
    if whole:
        pieces += emptied(rests, listing, settings)
    items += fill(pieces, listing, settings)
    if whole:
        groups = gathered(rests, listing, settings, old_before_ms=now_ms - settings.old_ms)
        items += [make_item(group, listing, settings) for group in groups]
    return Plan(
        items=items,
        run_count=listing.run_count,
        size_bytes=listing.size_bytes,
        planned_runs=sum(item.run_count for item in items),
        planned_bytes=sum(item.size_bytes for item in items),
        seen=seen,
    )


def _full_end(runs: PartitionRuns, settings: CompactionSettings) -> int:
    """The end of the runs of full length with which a listing begins; -1: it begins with none."""
    end = -1
    for number, length, following in zip(runs.objects, runs.lengths, runs.ends, strict=True):
        if number < 0 or length < settings.run_bytes_target:
            break
        end = following
    return end


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
