"""The notes of which lost batches were appended again, so that a repair that is cut can go on.

A note is an object of up to some hundred batches of one partition, named by the first one's lost
offset (docs/formats/archive.md). Repairs read lost batches per partition in the order of their
offsets, so the notes are read as they come up: a history of millions of batches takes no more
memory than the notes that reach over one offset.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from crc32c import crc32c
from typing_extensions import Buffer

from penstock.log.history.lost_records import LostBatch
from penstock.model.errors import ConflictError, CorruptDataError
from penstock.model.malformed import MALFORMED
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.replica.archive_format import lost_prefix

_APPENDED: Final = "appended/"
_CRC_DIGITS: Final = 8
_HINT: Final = "delete it, and the batches that it names are appended once more"
_REST: Final = re.compile(r"(\d{20})-[0-9a-f]{8}")
_Identity = tuple[str, int, int, int]
"""Topic, partition, lost offset, and CRC-32C as it was in the lost history."""


class AppendedNotes:
    """The notes of one lost history. Event loop only."""

    def __init__(self, store: ObjectStore, history: int) -> None:
        self._store = store
        self._prefix = f"{lost_prefix(history)}{_APPENDED}"
        self._partition: tuple[str, int] | None = None
        self._offset = 0
        self._keys: AsyncIterator[ObjectInfo] | None = None
        self._next: tuple[int, ObjectInfo] | None = None
        self._held: list[tuple[int, frozenset[_Identity]]] = []
        """The notes that begin at or before the offset: their last offset, and their batches."""

    async def holds(self, batch: LostBatch) -> bool:
        """Return whether an earlier repair, perhaps of another agent, has appended a batch.

        Raises:
            CorruptDataError: a note is damaged.
            PenstockError: the store's.
        """
        partition = (batch.topic, batch.partition)
        if partition != self._partition or batch.offset < self._offset:
            self._partition, self._held = partition, []
            self._keys = self._store.list(self._names(*partition))
            await self._advance()
        self._offset = batch.offset
        self._held = [one for one in self._held if one[0] >= batch.offset]
        while self._next is not None and self._next[0] <= batch.offset:
            info = self._next[1]
            body = await self._store.get_range(info.key, 0, info.size_bytes)
            batches = _decode(info.key, body)
            last = max((offset for _, _, offset, _ in batches), default=-1)
            if last >= batch.offset:
                self._held.append((last, batches))
            await self._advance()
        identity = _identity(batch)
        return any(identity in batches for _, batches in self._held)

    async def add(self, batches: Sequence[LostBatch]) -> None:
        """Note batches of one partition that were appended, ascending."""
        # What each agent can read of one partition has gaps, so that every batch is named.
        body = msgspec.json.encode([_identity(batch) for batch in batches])
        first = batches[0]
        rest = f"{first.offset:020d}-{crc32c(body):08x}"
        with contextlib.suppress(ConflictError):
            key = f"{self._names(first.topic, first.partition)}{rest}"
            await self._store.put(key, [body], if_absent=True)

    def _names(self, topic: str, partition: int) -> str:
        return f"{self._prefix}{topic}-{partition}-"

    async def _advance(self) -> None:
        """Go on to the next note of the partition."""
        assert self._partition is not None
        assert self._keys is not None
        prefix = self._names(*self._partition)
        self._next = None
        async for info in self._keys:
            # Those of a topic whose name begins like this one's are passed over.
            found = _REST.fullmatch(info.key.removeprefix(prefix))
            if found is not None:
                self._next = (int(found[1]), info)
                return


def _decode(key: str, body: Buffer) -> frozenset[_Identity]:
    try:
        if crc32c(body) != int(key[-_CRC_DIGITS:], 16):
            raise CorruptDataError("read note of a repair", key, "CRC-32C differs", _HINT)
        return frozenset(msgspec.json.decode(body, type=list[_Identity]))
    except MALFORMED as error:
        raise CorruptDataError("read note of a repair", key, str(error), _HINT) from error


def _identity(batch: LostBatch) -> _Identity:
    return batch.topic, batch.partition, batch.offset, batch.crc
