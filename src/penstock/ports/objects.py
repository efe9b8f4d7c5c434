"""An object store as a port: immutable values by key.

Keys are `/`-separated, without a leading slash. A put that returned is durable: it survives
process death and power loss. Calls may overlap. Errors: `NotFoundError`, `ConflictError`
(an if-absent put lost), `StorageFullError`, `RetryableError`, `CorruptDataError`.
Behaviour is added by decorators of this same port.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One listed object: its key, size in bytes and modification time in ms since the epoch."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """A bucket, or a prefix of one, or a local directory."""

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Store the concatenation of `parts` under `key`, durably, then return.

        Raises:
            ConflictError: `if_absent` and the key exists.
            StorageFullError: no space; nothing is visible under the key.
        """
        ...

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """Bytes [start, end) of an object; exactly that many.

        Raises:
            NotFoundError: no such key.
            CorruptDataError: the object is shorter than `end`.
        """
        ...

    async def size(self, key: str) -> int:
        """The object's size in bytes. Raises: NotFoundError."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete; keys that do not exist are ignored."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order."""
        ...
