"""Putting an object under a key that is given out once.

Nothing is ever written over: caches, readers and the journal know an object by its key alone. A put
whose answer was lost meets its own object when it is tried again, so what is there is compared
before it is taken for another writer's.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import Buffer

from penstock.model.errors import ConflictError, NotFoundError, RetryableError
from penstock.ports.objects import ObjectStore

_COMPARE_BYTES: Final = 8 << 20


async def put_once(store: ObjectStore, key: str, parts: Sequence[Buffer]) -> None:
    """Put an object if there is none; one of the same bytes counts as this one.

    Raises:
        ConflictError: there is one of other bytes, which stays.
        PenstockError: as the store's.
    """
    try:
        await store.put(key, parts, if_absent=True)
    except ConflictError as error:
        try:
            if await holds(store, key, parts):
                return
        except NotFoundError as gone:
            raise RetryableError("put", key, "it was there, and is gone") from gone
        raise ConflictError(
            "put",
            key,
            f"another object is there already, not these {size_of(parts)} bytes",
            "does another cluster, or another agent with this id, use the same prefix?",
        ) from error


async def holds(store: ObjectStore, key: str, parts: Sequence[Buffer]) -> bool:
    """Return whether an object is the concatenation of `parts`. Read in pieces of bounded size: one
    that fails may be tried again by itself.

    Raises:
        NotFoundError: there is none.
    """
    if await store.size(key) != size_of(parts):
        return False
    position = 0
    for piece in _pieces(parts):
        found = await store.get_range(key, position, position + len(piece))
        if bytes(found) != piece:
            return False
        position += len(piece)
    return True


def size_of(parts: Sequence[Buffer]) -> int:
    """Bytes of an object's parts."""
    return sum(memoryview(part).nbytes for part in parts)


def _pieces(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """The concatenation of `parts` in pieces: few, since each will be one request."""
    piece = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            taken = view[: _COMPARE_BYTES - len(piece)]
            piece += taken
            view = view[len(taken) :]
            if len(piece) == _COMPARE_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
