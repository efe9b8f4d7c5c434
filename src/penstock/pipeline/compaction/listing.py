"""Pages of runs, taken apart into partitions and objects. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import gt

from penstock.pipeline.api_messages import RUN_FIELDS, RunPage
from penstock.pipeline.compaction.items import InputObject

IN_WAL = -1
OBJECT_BYTES = 64
"""Bytes of an object besides its runs: header, footer and counts."""
RUN_BYTES = 104
"""Bytes of a run besides its batches: its row in the index, and a mark."""


@dataclass(slots=True)
class PartitionRuns:
    """The runs of one partition in offset order, a column each. `objects`: numbers of a `Listing`,
    IN_WAL for runs in WALs; `newest`: max timestamps in ms; `sums`: -1: not known;
    `batches`: how many."""

    bases: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    newest: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    @property
    def is_torn(self) -> bool:
        """Whether runs overlap: they were replaced between two pages, which are of two moments."""
        return any(map(gt, self.ends, islice(self.bases, 1, None)))


class Listing:
    """The objects of a listing, and what of them is live."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._objects: list[InputObject] = []
        self.sizes: list[int] = []
        """Bytes of each object."""
        self._live: list[int] = []
        """Bytes of each object that its live runs take, with what describes them: an object of
        many tiny runs is mostly index, and would be no smaller anywhere else."""
        self.run_counts: list[int] = []
        """Runs in each object."""
        self.run_count = 0
        self.size_bytes = 0

    def numbers_of(self, page: RunPage) -> list[int]:
        """The numbers of a page's objects; the last entry is IN_WAL's, at index -1."""
        numbers = []
        for index, key in enumerate(page.object_keys):
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._objects)
                self._objects.append(
                    InputObject(key, page.object_raw[index], page.object_origins[index])
                )
                self.sizes.append(page.object_bytes[index])
                self._live.append(OBJECT_BYTES)
                self.run_counts.append(0)
            numbers.append(number)
        numbers.append(IN_WAL)
        return numbers

    def add(self, runs: PartitionRuns) -> None:
        """Count a partition's runs."""
        live, counts = self._live, self.run_counts
        for number, length in zip(runs.objects, runs.lengths, strict=True):
            if number >= 0:
                live[number] += length + RUN_BYTES
                counts[number] += 1
                self.run_count += 1
                self.size_bytes += length

    def input_object(self, number: int) -> InputObject:
        """Return an object's entry for an item."""
        return self._objects[number]

    def small(self, bytes_max: int) -> frozenset[int]:
        """Objects that are shorter, of this cluster."""
        return frozenset(
            number
            for number, size in enumerate(self.sizes)
            if size < bytes_max and not self._objects[number].origin
        )

    def garbage(self, live_share_min: float) -> frozenset[int]:
        """Objects of which a smaller share is live. Those of other clusters aren't ours to free."""
        return frozenset(
            number
            for number, (live, size) in enumerate(zip(self._live, self.sizes, strict=True))
            if live < live_share_min * size and not self._objects[number].origin
        )


def partitions_of(
    pages: Iterable[RunPage], listing: Listing
) -> Iterator[tuple[str, int, PartitionRuns]]:
    """(topic id, partition, its runs) of a listing, whose pages may break within a partition."""
    place: tuple[str, int] | None = None
    runs = PartitionRuns()
    for page in pages:
        numbers = listing.numbers_of(page)
        rows = page.rows
        columns = [rows[column::RUN_FIELDS] for column in range(RUN_FIELDS)]
        # An agent of an older release says none.
        sums = page.sums or [-1] * len(columns[0])
        start = 0
        for index, group in groupby(columns[0]):
            end = start + sum(1 for _ in group)
            following = page.partitions[index]
            if place is not None and place != tuple(following):
                listing.add(runs)
                yield *place, runs
                runs = PartitionRuns()
            place = (following[0], following[1])
            runs.bases += columns[1][start:end]
            runs.ends += columns[2][start:end]
            runs.objects += [numbers[number] for number in columns[3][start:end]]
            runs.positions += columns[4][start:end]
            runs.lengths += columns[5][start:end]
            runs.newest += columns[6][start:end]
            runs.batches += columns[7][start:end]
            runs.sums += sums[start:end]
            start = end
    if place is not None:
        listing.add(runs)
        yield *place, runs
