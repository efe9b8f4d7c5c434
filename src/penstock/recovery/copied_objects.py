"""A restore notes the objects that it copies before there is a cluster that could name them.

A restore that is killed while it copies leaves objects that no journal knows. So a note with their
names lies in the same store until the cluster is made. The next restore of the same parent uses
these objects, and deletes the ones that it doesn't need, for example since it is of another moment.

Two restores may run at once, for example since an operator thinks that the first has died. Each
attempt has an id. The last attempt owns the note, and the first attempt to make a journal owns the
journal. Only an attempt that owns both deletes objects, since objects that another attempt has
copied may be all that its cluster has.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from typing_extensions import Buffer

from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError
from penstock.model.malformed import MALFORMED
from penstock.ports.objects import ObjectStore
from penstock.recovery.due_runs import DueOf
from penstock.recovery.point_in_time import TakeObjects
from penstock.recovery.restore import COPY_NOTE
from penstock.segment.keys import SEGMENTS_PREFIX, parse_object_key

NOTE: Final = COPY_NOTE
_DELETED_AT_ONCE: Final = 500

Listed = Sequence[tuple[str, int]]
"""Keys of objects with their sizes in bytes."""


class _Note(msgspec.Struct, frozen=True):
    parent: str
    keys: frozenset[str]
    attempt: str = ""


class CopiedObjects:
    """Keeps the note of the objects that one restore copies.

    Args:
        store: the new cluster's store.
        parent: the URL of the parent's store, without a user.
        attempt: an id that no other restore has, such as the new cluster's id.
    """

    def __init__(self, store: ObjectStore, *, parent: str, attempt: str) -> None:
        self._store = store
        self._parent = parent
        self._attempt = attempt
        self._has_found_note = False
        self._before: frozenset[str] = frozenset()
        self._named: frozenset[str] = frozenset()

    async def find(self) -> bool:
        """Whether a restore of the same parent began to copy here, and made no cluster.

        Raises:
            InvalidRequestError: the store also holds segments that no restore has noted.
        """
        found = await self._read()
        self._has_found_note = found is not None
        note = _decode(found)
        if note is None or note.parent != self._parent:
            return False
        self._before = note.keys
        async for info in self._store.list(SEGMENTS_PREFIX):
            if info.key not in note.keys:
                raise InvalidRequestError(
                    "restore",
                    info.key,
                    "it is there already, and no restore has put it there",
                    "give the new cluster a prefix without a cluster",
                )
        return True

    def noting(self, take: TakeObjects) -> TakeObjects:
        """Wrap `take` so that it notes the objects first; it is called in another thread."""
        loop = asyncio.get_running_loop()

        def taken(listed: Listed, due: DueOf) -> None:
            self._named = frozenset(key for key, _ in listed)
            asyncio.run_coroutine_threadsafe(self._write_note(), loop).result()
            take(listed, due)

        return taken

    async def end(self, *, next_epoch: int | None = None) -> None:
        """Delete unneeded objects of the restore before, then the note, once this restore has made
        the cluster. Do nothing if the note is another restore's.

        Args:
            next_epoch: the lowest epoch of agents that may run by now. Names that such agents give
                their objects are not deleted; agents delete objects copied under these names as
                orphans. None: no agent runs.
        """
        note = _decode(await self._read())
        if note is None or note.attempt != self._attempt:
            return
        others = sorted(
            key
            for key in self._before - self._named
            if next_epoch is None
            or (written := parse_object_key(key)) is None
            or written.epoch < next_epoch
        )
        for start in range(0, len(others), _DELETED_AT_ONCE):
            await self._store.delete(others[start : start + _DELETED_AT_ONCE])
        await self._store.delete([NOTE])

    async def _read(self) -> Buffer | None:
        """The note's bytes; None: there is none."""
        try:
            return await self._store.get_range(NOTE, 0, await self._store.size(NOTE))
        except NotFoundError:
            return None

    async def _write_note(self) -> None:
        # The names of the restore before stay in the note, since this restore may be killed, too,
        # before it has deleted them.
        note = _Note(parent=self._parent, keys=self._before | self._named, attempt=self._attempt)
        try:
            await self._store.put(
                NOTE, [msgspec.json.encode(note)], if_absent=not self._has_found_note
            )
        except ConflictError as error:
            raise ConflictError(
                "restore", NOTE, "another restore has begun here just now", "wait for its end"
            ) from error


def _decode(body: Buffer | None) -> _Note | None:
    """Read a note. None: there is none, or the bytes are not one."""
    try:
        return None if body is None else msgspec.json.decode(body, type=_Note)
    except MALFORMED:
        return None
