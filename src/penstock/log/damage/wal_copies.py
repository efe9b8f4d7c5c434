"""Copies in WAL files that are not used again yet.

A run that was moved to an object still lies in its WAL until the file is recycled. The entry that
moved it (`StoreSegment`) names the bytes it came from, and lies in the same WAL a little later, so
that the WAL alone leads from an object's run to the copy. Whether the bytes are the run is proven
by its sum.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from crc32c import crc32c

from penstock.log.damage.copies import joined
from penstock.log.damage.copy_sources import Candidate
from penstock.model.errors import CorruptDataError
from penstock.ports.device import Device
from penstock.state.commands import AnyCommand, MovedRun, Relay, StoreSegment
from penstock.state.entries import decode_entry
from penstock.state.rows import GENERATION_BITS, GENERATION_MASK, StoredRun
from penstock.wal import WalReader
from penstock.wal.frames import whole_frames

_SOURCE_FIELDS: Final = 4
_Source = tuple[int, int, int, int]
"""Base offset, WAL place, byte position, length."""


class WalSource:
    """See `penstock.log.damage.copy_sources.CopySource`.

    Args:
        device: the data directory, whose WAL carries entries.
        reader_of: of a WAL, by its key; None: it is not here.
    """

    def __init__(
        self, device: Device, *, reader_of: Callable[[int], WalReader | None], pool: Executor
    ) -> None:
        self._device = device
        self._reader_of = reader_of
        self._pool = pool

    async def find(self, runs: Sequence[StoredRun]) -> list[list[Candidate]]:
        """See `CopySource`."""
        loop = asyncio.get_running_loop()
        moves = await loop.run_in_executor(self._pool, partial(self._moves, runs))
        return [self._candidates(sources) for sources in moves]

    def _candidates(self, sources: Sequence[_Source]) -> list[Candidate]:
        if not sources:
            return []

        async def load() -> memoryview:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, partial(self._read, sources))

        place = sources[0][1]
        name = f"WAL {place >> GENERATION_BITS} generation {place & GENERATION_MASK}"
        return [Candidate(name, load, is_raw=True)]

    def _moves(self, runs: Sequence[StoredRun]) -> list[list[_Source]]:
        """Return for each run where it came from; blocking."""
        wanted: dict[tuple[str, int], list[int]] = {}
        for index, run in enumerate(runs):
            if run.object_key:
                wanted.setdefault((run.object_key, run.partition_key), []).append(index)
        found: list[list[_Source]] = [[] for _ in runs]
        for command in _stores(self._device):
            for moved in command.runs:
                for index in wanted.get((command.object_key, moved.partition_key), ()):
                    found[index] = _sources_of(moved, runs[index])
        return found

    def _read(self, sources: Sequence[_Source]) -> memoryview:
        parts = []
        for _, place, position, length in sources:
            reader = self._reader_of(place >> GENERATION_BITS)
            if reader is None:
                return memoryview(b"")
            parts.append(reader.read(place & GENERATION_MASK, position, length))
        return joined(parts)


def _stores(device: Device) -> Iterator[StoreSegment]:
    """The moves whose entries lie in WAL files. What isn't whole is passed over."""
    for header, payload in whole_frames(device):
        if not header.entry_length or crc32c(payload) != header.payload_crc:
            continue
        body = bytes(payload[header.length - header.entry_length :])
        try:
            entry = decode_entry(body, position=header.position)
        except CorruptDataError:
            continue
        yield from _stores_among(entry.commands)


def _stores_among(commands: Iterable[AnyCommand]) -> Iterator[StoreSegment]:
    for command in commands:
        if isinstance(command, StoreSegment):
            yield command
        elif isinstance(command, Relay):
            yield from _stores_among(command.commands)


def _sources_of(moved: MovedRun, run: StoredRun) -> list[_Source]:
    """Return the sources of a move that make up a run, since a move may have made several runs."""
    flat = moved.runs
    sources = [
        (flat[at], flat[at + 1], flat[at + 2], flat[at + 3])
        for at in range(0, len(flat), _SOURCE_FIELDS)
    ]
    mine = [one for one in sources if run.base_offset <= one[0] < run.end_offset]
    return mine if sum(one[3] for one in mine) == run.length else []
