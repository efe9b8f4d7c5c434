"""The part of a topic's log that a table lacks is cut into the items of its next commits."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.tables.plan import (
    RunExtent,
    cut_ranges,
    item_bytes,
    remaining_pieces,
    share_out,
)
from penstock.pipeline.tables.settings import TableSettings

_COMMIT_BYTES_MIN: Final = 2 << 30
"""The bytes of a commit where the settings don't say it; more where there are many executors."""
_GROWTH_FIRST: Final = 4.0
"""How many times larger records are decoded than stored, before any were read."""
_GROWTH_CHANGE: Final = 2
"""Pieces are cut again where records turn out to be so many times larger."""

Watch = Callable[[int, int], None]
"""(bytes done, of how many)"""


class Backlog:
    """Plans the items of one call's commits, by what earlier items of the call were like.

    Args:
        parallelism: the engine's.
        watch: called with the bytes of the log that were read, and about how many there are.
    """

    def __init__(
        self, client: PipelineClient, settings: TableSettings, *, parallelism: int, watch: Watch
    ) -> None:
        self._client = client
        self._settings = settings
        self._parallelism = parallelism
        self._watch = watch
        self._read_bytes = self._decoded_bytes = self._wanted_bytes = 0
        self._pieces: list[tuple[Range, int]] = []
        self._growth = _GROWTH_FIRST

    def plan(self, ranges: Sequence[Range]) -> list[list[Range]]:
        """Return the items of the next commit; none if nothing is wanted.

        The log's runs are listed once for a call's whole backlog, and again only where what is
        wanted is not what the plan has left.
        """
        if not ranges:
            return []
        commit_bytes = self._settings.commit_bytes or max(
            _COMMIT_BYTES_MIN, self._parallelism * self._settings.target_file_bytes
        )
        bytes_max = min(
            self._settings.target_file_bytes,
            max(1, int(self._settings.task_bytes / self._growth)),
        )

        def size_of(wanted_bytes: int) -> int:
            return item_bytes(
                wanted_bytes,
                parallelism=self._parallelism,
                commit_bytes=commit_bytes,
                bytes_max=bytes_max,
            )

        left = remaining_pieces(self._pieces, ranges)
        if left is None:
            runs = list(self._extents(ranges))
            size = size_of(sum(run.length_bytes for run in runs))
            left = cut_ranges(ranges, runs, bytes_max=size)
        self._pieces = left
        wanted_bytes = sum(size for _, size in left)
        self._wanted_bytes = self._read_bytes + wanted_bytes
        return share_out(left, item_bytes=size_of(wanted_bytes), commit_bytes=commit_bytes)[0]

    def note_read(self, count: int, decoded: int) -> None:
        """Count bytes of the log that were read, and what they were decoded to."""
        self._read_bytes += count
        self._decoded_bytes += decoded
        if decoded:
            growth = max(1.0, self._decoded_bytes / self._read_bytes)
            if growth > _GROWTH_CHANGE * self._growth:
                self._pieces = []
            self._growth = growth
        self._watch(self._read_bytes, max(self._read_bytes, self._wanted_bytes))

    def _extents(self, ranges: Sequence[Range]) -> Iterator[RunExtent]:
        for page in self._client.runs(list(ranges)):
            rows = page.rows
            for index in range(0, len(rows), 8):
                partition, base, end, _, _, length_bytes, _, _ = rows[index : index + 8]
                yield RunExtent(
                    partition=page.partitions[partition][1],
                    start=base,
                    end=end,
                    length_bytes=length_bytes,
                )
