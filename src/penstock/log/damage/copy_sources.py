"""Copies of a damaged run may lie in memory, in caches of peers, in objects that the state no
longer names but that are still kept, and in a backup or second bucket that an operator names.

Each source gives candidates; the caller proves whether one is the run (`log.damage.copies`). A
source that is away gives none, and logs a line. Nothing is written here.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.log.damage.copies import Piece, cover, joined
from penstock.log.fetch.blocks import BlockCache, BlockKey
from penstock.log.fetch.tail import TailCache
from penstock.log.fetch.whole_runs import whole_run_key
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError
from penstock.model.ids import PartitionKey, partition_of
from penstock.ports.objects import ObjectStore
from penstock.segment import FOOTER_BYTES, SEGMENTS_PREFIX, parse_footer, parse_index
from penstock.state.rows import StoredRun
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

INDEXES_MAX: Final = 10_000
"""Objects of which one search reads the index: two requests each."""
_INDEX_BYTES_MAX: Final = 64 << 20

Load = Callable[[], Awaitable[memoryview]]


class Candidate(NamedTuple):
    """Bytes that may be a run. `place`: for people. `is_raw`: as producers sent them.
    `same_place`: from the run's own object and position, in another store or a cache."""

    place: str
    load: Load
    is_raw: bool = False
    same_place: bool = False


class CopySource(Protocol):
    """One kind of place. Calls don't overlap."""

    async def find(self, runs: Sequence[StoredRun]) -> list[list[Candidate]]:
        """Candidates for each of some runs, the best first."""
        ...


class MemorySource:
    """The process's caches, and those of its zone's agents, by way of the store."""

    def __init__(
        self, *, tail: TailCache, blocks: BlockCache, block_bytes: int, store: ObjectStore
    ) -> None:
        self._tail = tail
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._store = store

    async def find(self, runs: Sequence[StoredRun]) -> list[list[Candidate]]:
        """See `CopySource`."""
        return [self._of(run) for run in runs]

    def _of(self, run: StoredRun) -> list[Candidate]:
        async def tail() -> memoryview:
            found = self._tail.read(
                run.partition_key, run.base_offset, run.length, end_offset=run.end_offset
            )
            return joined(found.views) if found is not None else memoryview(b"")

        async def block() -> memoryview:
            if run.generation or run.raw:
                return self._blocks.peek(whole_run_key(run)) or memoryview(b"")
            size = self._block_bytes
            first, last = run.position // size, (run.position + run.length - 1) // size
            parts = []
            for number in range(first, last + 1):
                part = self._blocks.peek(BlockKey(run.object_key, number))
                if part is None:
                    return memoryview(b"")
                parts.append(part)
            start = run.position - first * size
            return joined(parts)[start : start + run.length]

        async def peers() -> memoryview:
            end = run.position + run.length
            return memoryview(await self._store.get_range(run.object_key, run.position, end))

        found = [
            Candidate("this agent's tail cache", tail),
            Candidate("this agent's block cache", block, same_place=True),
        ]
        if run.object_key and not run.origin and not run.raw:
            found.append(Candidate("a peer's cache", peers, same_place=True))
        return found


class ObjectSource:
    """Objects of a store whose indexes name the offsets that are looked for.

    Args:
        keys: of the objects to look at, called once per search.
        place: the store, for people.
        same_keys: whether an object there under the run's own key is a copy of its object.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        keys: Callable[[], AsyncIterator[str]],
        topic_id_of: Callable[[PartitionKey], bytes | None],
        place: str,
        same_keys: bool,
    ) -> None:
        self._store = store
        self._keys = keys
        self._topic_id_of = topic_id_of
        self._place = place
        self._same_keys = same_keys

    async def find(self, runs: Sequence[StoredRun]) -> list[list[Candidate]]:
        """See `CopySource`."""
        pieces = await self._pieces(runs)
        found: list[list[Candidate]] = []
        for run, its_pieces in zip(runs, pieces, strict=True):
            mine: list[Candidate] = []
            if self._same_keys and run.object_key:
                same = Piece(
                    run.object_key, run.base_offset, run.end_offset, run.position, run.length
                )
                mine.append(
                    Candidate(
                        f"{self._place}/{run.object_key}",
                        self._load([same]),
                        is_raw=bool(run.raw),
                        same_place=True,
                    )
                )
            covering = cover(run, its_pieces)
            if covering:
                keys = ", ".join(dict.fromkeys(piece.key for piece in covering))
                mine.append(Candidate(f"{self._place}/{keys}", self._load(covering)))
            found.append(mine)
        return found

    def _load(self, pieces: Sequence[Piece]) -> Load:
        async def load() -> memoryview:
            parts = []
            for piece in pieces:
                end = piece.position + piece.length
                parts.append(
                    memoryview(await self._store.get_range(piece.key, piece.position, end))
                )
            return joined(parts)

        return load

    async def _pieces(self, runs: Sequence[StoredRun]) -> list[list[Piece]]:
        wanted: dict[tuple[bytes, int], list[int]] = {}
        for index, run in enumerate(runs):
            topic_id = self._topic_id_of(run.partition_key)
            if topic_id is not None:
                place = (bytes(topic_id), partition_of(run.partition_key))
                wanted.setdefault(place, []).append(index)
        pieces: list[list[Piece]] = [[] for _ in runs]
        looked = 0
        async for key in self._keys():
            looked += 1
            if looked > INDEXES_MAX:
                logger.warning(
                    "repair looked at the indexes of %d objects in %s, and not at the others",
                    INDEXES_MAX,
                    self._place,
                )
                break
            try:
                await self._look_at(key, wanted, runs, pieces)
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.REPAIR, error, logger, f"repair passes over {self._place}/{key}")
        return pieces

    async def _look_at(
        self,
        key: str,
        wanted: dict[tuple[bytes, int], list[int]],
        runs: Sequence[StoredRun],
        pieces: list[list[Piece]],
    ) -> None:
        size_bytes = await self._store.size(key)
        tail = bytes(
            await self._store.get_range(key, max(0, size_bytes - FOOTER_BYTES), size_bytes)
        )
        footer = parse_footer(tail, size_bytes=size_bytes, subject=key)
        # Offsets of raw objects count from each run's first record: their place is unknown.
        if not footer.offsets_final or footer.index_length > _INDEX_BYTES_MAX:
            return
        at = footer.index_position
        block = bytes(await self._store.get_range(key, at, at + footer.index_length))
        for row in parse_index(block, footer, subject=key):
            for index in wanted.get((row.topic_id, row.partition), ()):
                run = runs[index]
                if run.base_offset <= row.base_offset and row.end_offset <= run.end_offset:
                    pieces[index].append(
                        Piece(key, row.base_offset, row.end_offset, row.position, row.length)
                    )


async def segments_of(store: ObjectStore) -> AsyncIterator[str]:
    """The keys of all segments in a store, such as a backup."""
    async for info in store.list(f"{SEGMENTS_PREFIX}"):
        yield info.key


async def find_all(
    sources: Sequence[CopySource], runs: Sequence[StoredRun]
) -> list[list[Candidate]]:
    """The candidates of all sources for each run. A source that fails gives none."""
    found: list[list[Candidate]] = [[] for _ in runs]
    for source in sources:
        try:
            for mine, more in zip(found, await source.find(runs), strict=True):
                mine += more
        except PenstockError as error:
            heard(Cause.REPAIR, error, logger, "repair looks for copies elsewhere")
    return found
