"""The objects that a restore copies before there is a cluster that could name them.

A restore that is killed while it copies leaves them behind, and nobody's journal knows of them. So
a note of their names lies beside them until the cluster is made: the next restore of the same
parent goes on in their place, and deletes those that it has no use for, as where it is of another
moment.

Two restores may run at once, as where somebody thinks that the first has died. Each attempt has an
id, and the note is the last one's; the new journal is the first's that makes it. Only who has both
deletes anything: what another has copied may be all that its cluster has.
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
"""Keys with sizes in bytes."""


class _Note(msgspec.Struct, frozen=True):
    parent: str
    keys: frozenset[str]
    attempt: str = ""


class CopiedObjects:
    """The objects that one restore copies.

    Args:
        store: the new cluster's.
        parent: URL of the one that it is copied from, without a user.
        attempt: what no other restore has, as the id of the new cluster.
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
            InvalidRequestError: there are others' segments beside.
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
        """Once the new cluster is this restore's: delete what the restore before has copied and
        this one has no use for, then the note. Of another's note: nothing.

        Args:
            next_epoch: the lowest of the agents that may run by now. The names of their objects
                are not deleted; what was copied under one they find as an orphan. None: nobody
                runs.
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
        # With those of before: this restore may be killed, too, ere it has swept.
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
