"""Runs that are moved not for their own sake, but for that of the objects in which they lie. Pure.

Objects of which little is live are emptied. Old small ones are gathered in larger ones: a cluster
that is mostly idle, or a topic whose many partitions are cleaned one by one, would leave an object
for each moment, or for each partition, for ever. Both need to know of all runs that there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from penstock.pipeline.compaction.growth import Stretch
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.listing import Listing, PartitionRuns
from penstock.pipeline.compaction.pieces import GARBAGE, SCATTERED, Piece


@dataclass(frozen=True, slots=True)
class Rest:
    """A partition, and what of its runs is being joined already."""

    topic_id: bytes
    partition: int
    runs: PartitionRuns
    log_start: int
    stretches: list[Stretch]

    def taken(self) -> frozenset[int]:
        """Indexes of the runs that are being joined."""
        return frozenset(chain.from_iterable(range(one.start, one.end) for one in self.stretches))

    def piece(self, index: int, reason: str, *, ordinal: int = 0) -> Piece:
        """One run alone."""
        return Piece(
            self.topic_id,
            self.partition,
            ordinal,
            self.runs,
            index,
            index + 1,
            self.runs.lengths[index],
            reason,
            self.log_start,
        )


def emptied(
    rests: Sequence[Rest], listing: Listing, settings: CompactionSettings
) -> Iterator[Piece]:
    """The runs that keep objects from being deleted of which little is live."""
    garbage = listing.garbage(settings.live_share_min)
    if not garbage:
        return
    for rest in rests:
        ordinal = len(rest.stretches)
        taken = rest.taken()
        for index, number in enumerate(rest.runs.objects):
            # A longer run would not fit into an executor's memory, and its object waits.
            fits = rest.runs.lengths[index] <= settings.object_bytes_target
            if number in garbage and index not in taken and fits:
                yield rest.piece(index, GARBAGE, ordinal=ordinal)
                ordinal += 1


def gathered(
    rests: Sequence[Rest], listing: Listing, settings: CompactionSettings, *, old_before_ms: int
) -> Iterator[list[Piece]]:
    """The runs of old small objects, in groups of an object each. A group is at least `growth`
    times as long as the longest object in it, so that no byte is moved often.

    Args:
        rests: of all partitions whose runs may be moved.
    """
    small = listing.small(settings.small_object_bytes) - listing.garbage(settings.live_share_min)
    if len(small) < settings.growth:
        return
    members: dict[int, list[tuple[Rest, int]]] = {number: [] for number in small}
    for rest in rests:
        taken = rest.taken() if not small.isdisjoint(rest.runs.objects) else ()
        for index, number in enumerate(rest.runs.objects):
            if number in small and index not in taken and rest.runs.newest[index] < old_before_ms:
                members[number].append((rest, index))
    # Whatever stays in an object keeps it, so that nothing would be gained.
    whole = [number for number in small if len(members[number]) == listing.run_counts[number]]
    group: list[Piece] = []
    places: set[tuple[bytes, int]] = set()
    total = longest = 0
    for number in sorted(whole, key=lambda number: (listing.sizes[number], number)):
        runs = members[number]
        if any((rest.topic_id, rest.partition) in places for rest, _ in runs):
            continue  # an object holds one run per partition; its turn comes with the next plan
        size = max(listing.sizes[number], settings.small_bytes)
        if group and (
            total + size > settings.object_bytes_target
            or len(group) + len(runs) > settings.item_partitions_max
        ):
            if total >= settings.growth * longest:
                yield _sorted(group)
            group, places, total, longest = [], set(), 0, 0
        group += [rest.piece(index, SCATTERED) for rest, index in runs]
        places.update((rest.topic_id, rest.partition) for rest, _ in runs)
        total, longest = total + size, max(longest, size)
    if group and total >= settings.growth * longest:
        yield _sorted(group)


def _sorted(pieces: list[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: (piece.topic_id, piece.partition))
