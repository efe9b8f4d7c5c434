"""The objects that a restore copies before there is a cluster that could name them.

A restore that is killed while it copies leaves them behind, and nobody's journal knows of them. So
a note of their names lies beside them until the cluster is made: the next restore of the same
parent goes on in their place, and deletes those that it has no use for, as where it is of another
moment.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.log.backup import exists
from penstock.model.errors import InvalidRequestError
from penstock.ports.objects import ObjectStore
from penstock.segment.keys import SEGMENTS_PREFIX

NOTE: Final = "restore-in-progress.json"
_DELETED_AT_ONCE: Final = 500

Listed = Sequence[tuple[str, int]]
"""Keys with sizes in bytes."""


class _Note(msgspec.Struct, frozen=True):
    parent: str
    keys: frozenset[str]


class CopiedObjects:
    """Of one restore.

    Args:
        store: the new cluster's.
        parent: URL of the one that it is copied from, without a user.
    """

    def __init__(self, store: ObjectStore, *, parent: str) -> None:
        self._store = store
        self._parent = parent
        self._before: frozenset[str] = frozenset()
        self._named: frozenset[str] = frozenset()

    async def find(self) -> bool:
        """Whether a restore of the same parent began to copy here, and made no cluster.

        Raises:
            InvalidRequestError: there are others' segments beside.
        """
        if not await exists(self._store, NOTE):
            return False
        body = await self._store.get_range(NOTE, 0, await self._store.size(NOTE))
        try:
            note = msgspec.json.decode(body, type=_Note)
        except msgspec.MsgspecError:
            return False
        if note.parent != self._parent:
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

    def noting(self, take: Callable[[Listed], None]) -> Callable[[Listed], None]:
        """What takes objects, after a note of them; to be called in another thread than this."""
        loop = asyncio.get_running_loop()

        def taken(listed: Listed) -> None:
            self._named = frozenset(key for key, _ in listed)
            asyncio.run_coroutine_threadsafe(self._write_note(), loop).result()
            take(listed)

        return taken

    async def sweep(self) -> None:
        """Delete what the restore before has copied and this one has no use for."""
        others = sorted(self._before - self._named)
        for start in range(0, len(others), _DELETED_AT_ONCE):
            await self._store.delete(others[start : start + _DELETED_AT_ONCE])

    async def end(self) -> None:
        """After the cluster is there."""
        await self._store.delete([NOTE])

    async def _write_note(self) -> None:
        # With those of before: this restore may be killed, too, ere it has swept.
        note = _Note(parent=self._parent, keys=self._before | self._named)
        await self._store.put(NOTE, [msgspec.json.encode(note)])
