"""An object store as a port: immutable values by key.

Keys are `/`-separated, without a leading slash. A put that returned is durable: it survives
process death and power loss. Calls may overlap. Errors: `NotFoundError`, `ConflictError`
(an if-absent put lost), `StorageFullError`, `RetryableError`, `CorruptDataError`.
Behaviour is added by decorators of this same port.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from typing_extensions import Buffer

SignedMethod = Literal["GET", "PUT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One listed object: its key, size in bytes and modification time in ms since the epoch."""

    key: str
    size_bytes: int
    modified_ms: int


class Versioned(NamedTuple):
    """Bytes of an object, and of which version of it they are.

    `version`: another value once the object's bytes are others: the ETag of a bucket; inode, size
    and times of a local file. Two reads that gave the same version have read the same bytes. None:
    the store says none, and nothing can be compared.
    """

    data: Buffer
    version: str | None


class ObjectStore(Protocol):
    """A bucket, or a prefix of one, or a local directory."""

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Store the concatenation of `parts` under `key`, durably, then return.

        Segments, and whatever else a journal names, are put `if_absent`, by
        `penstock.objects.once.put_once`: a key means the same bytes for ever.

        Args:
            if_absent: write nothing over. The store decides, in one step: of two puts at once one
                succeeds. A caller whose earlier try got no answer may meet its own object.

        Raises:
            ConflictError: `if_absent` and the key exists, with whatever bytes; they stay.
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

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """All objects whose key starts with `prefix` and sorts past `after`, in key order.

        A caller that stops early pays for the pages that were read, not for the rest.
        """
        ...


@runtime_checkable
class SigningStore(Protocol):
    """A store that can presign URLs of its objects, besides what `ObjectStore` does."""

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """Return URLs that allow anybody who has them one kind of request for `seconds`.

        Returns:
            Per key a URL; "" for an object that can't be reached so.

        Raises:
            RetryableError: the store's credentials can't be had now.
        """
        ...


async def sign_through(
    store: ObjectStore, method: SignedMethod, keys: Sequence[str], seconds: int
) -> Sequence[str]:
    """Call `SigningStore.sign`; a store that can't sign gives "" for each key. For decorators."""
    if isinstance(store, SigningStore):
        return await store.sign(method, keys, seconds)
    return [""] * len(keys)


@runtime_checkable
class VersionedStore(Protocol):
    """A store that names the version of the bytes that it reads, on top of `ObjectStore`."""

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """Do as `get_range`, and return the version too, at no further request."""
        ...


async def get_versioned(store: ObjectStore, key: str, start: int, end: int) -> Versioned:
    """Call `VersionedStore.get_versioned`; a store without versions answers with None for one."""
    if isinstance(store, VersionedStore):
        return await store.get_versioned(key, start, end)
    return Versioned(await store.get_range(key, start, end), None)


@runtime_checkable
class CachingStore(Protocol):
    """A store whose bytes may come from a cache or a peer, besides what `ObjectStore` does."""

    async def get_directly(self, key: str, start: int, end: int) -> Versioned:
        """Do as `get_versioned`, but read from the bucket itself, past every cache and peer: for
        bytes that came from one of them and were damaged."""
        ...


async def get_directly(store: ObjectStore, key: str, start: int, end: int) -> Versioned:
    """Call `CachingStore.get_directly`; a store without caches just reads."""
    if isinstance(store, CachingStore):
        return await store.get_directly(key, start, end)
    return await get_versioned(store, key, start, end)


@runtime_checkable
class RegionFile(Protocol):
    """An object that is a file of this machine. It stays readable until the last holder drops
    it, also when the object is deleted meanwhile. Its bytes can be sent without being read."""

    def can_send(self) -> bool:
        """Whether the other methods work on this system and file."""
        ...

    def peek(self, position: int, buffer: memoryview) -> int:
        """Read into `buffer` what is in memory from `position` on, without waiting for a disk;
        the bytes read, 0 when it isn't there."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Read `length` bytes from `position`; fewer at the end of the file. May wait."""
        ...

    def warm(self, start: int, end: int) -> bool:
        """Bring bytes into memory; false when the file ends before `end`. Blocking."""
        ...

    def identity(self) -> str:
        """Return a value that changes whenever the file was changed: what was known of its bytes is
        void then. It is the `version` of what a store reads of the file."""
        ...

    def send(self, descriptor: int, position: int, length: int) -> int:
        """Send bytes to a socket that doesn't block; how many it took, 0 at the file's end.

        Raises:
            BlockingIOError: it takes none now.
        """
        ...


@runtime_checkable
class FileStore(Protocol):
    """A store that keeps objects as local files, besides what `ObjectStore` does."""

    def open_file(self, key: str) -> RegionFile | None:
        """The object's file if it is open already. Never waits."""
        ...

    def may_open(self) -> bool:
        """Whether one more file may be opened and held: there are few descriptors."""
        ...

    async def warm(self, key: str, start: int, end: int) -> bool:
        """Open the object's file and bring a stretch of it into memory.

        Returns:
            Whether the file can be sent from; if not, nothing was done.

        Raises:
            NotFoundError: no such key.
            CorruptDataError: the object is shorter than `end`.
        """
        ...
