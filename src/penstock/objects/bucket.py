"""Buckets (S3, GCS, Azure) and memory, through obstore."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import HTTPStore, LocalStore, MemoryStore, ObjectStore
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError
from penstock.objects.keys import check_key
from penstock.objects.translate import translate_obstore_error
from penstock.ports.objects import ObjectInfo, SignedMethod, Versioned

if TYPE_CHECKING:
    from obstore import ObjectMeta

MULTIPART_BYTES: Final = 64 << 20
"""A larger put goes in pieces; above any segment, below what a request's deadline allows."""

_PIECE_BYTES: Final = 16 << 20
_PIECES_AT_ONCE: Final = 3
_FAILURES = (BaseError, OSError)
"""obstore raises its own errors, and Python's where one fits (FileNotFoundError)."""


class BucketStore:
    """Implements `penstock.ports.objects.ObjectStore` over an obstore store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port. Up to `MULTIPART_BYTES` one request: it is atomic, can be conditional,
        and costs one round trip; joining the parts is one copy of at most a segment. More is a
        multipart upload, whose pieces are copied one by one: it appears when it is complete. What
        a cut one leaves behind costs until the bucket's own rule removes it (docs/operations)."""
        check_key(key)
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        try:
            if size_bytes > MULTIPART_BYTES and not if_absent:
                await obstore.put_async(
                    self._store,
                    key,
                    _pieces(parts),
                    use_multipart=True,
                    chunk_size=_PIECE_BYTES,
                    max_concurrency=_PIECES_AT_ONCE,
                )
                return
            await obstore.put_async(
                self._store,
                key,
                b"".join(parts),
                mode="create" if if_absent else "overwrite",
                use_multipart=False,
            )
        except _FAILURES as error:
            raise translate_obstore_error("put", key, error) from error

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        check_key(key)
        if start == end:
            return Versioned(b"", _version_of(await self._head(key)))
        try:
            # One request, as `get_range_async` makes it, whose answer names the ETag.
            answer = await obstore.get_async(self._store, key, options={"range": (start, end)})
            data = await answer.bytes_async()
        except _FAILURES as error:
            # Stores refuse a range that begins past the end, each in its own words.
            if await self.size(key) < end:
                raise _short(key, start, end) from error
            raise translate_obstore_error("read", key, error) from error
        if len(data) < end - start:
            raise _short(key, start, end)
        return Versioned(data, _version_of(answer.meta))

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`. Only buckets can; no request is made but for
        credentials that an instance is given."""
        for key in keys:
            check_key(key)
        if not keys or isinstance(self._store, HTTPStore | LocalStore | MemoryStore):
            return [""] * len(keys)
        try:
            signed: Sequence[str] = await obstore.sign_async(
                self._store, method, list(keys), timedelta(seconds=seconds)
            )
        except _FAILURES as error:
            raise translate_obstore_error("sign", keys[0], error) from error
        return signed

    async def size(self, key: str) -> int:
        """See the port."""
        check_key(key)
        return int((await self._head(key))["size"])

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        for key in keys:
            check_key(key)
        if not keys:
            return
        try:
            await obstore.delete_async(self._store, list(keys))
        except FileNotFoundError:
            # Some stores stop at the first that is not there; then one by one.
            for key in keys:
                await self._delete_one(key)
        except _FAILURES as error:
            raise translate_obstore_error("delete", keys[0], error) from error

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        # obstore's prefixes are whole parts of a path: the listing of the folder begins right
        # before the prefix (an offset is exclusive), and ends at the first key past it.
        folder = prefix.rpartition("/")[0]
        offset = max(after, "" if prefix.endswith("/") else prefix[:-1])
        try:
            async for page in obstore.list(self._store, folder or None, offset=offset or None):
                for meta in page:
                    if meta["path"] <= after:
                        continue
                    if not meta["path"].startswith(prefix):
                        if meta["path"] > prefix:
                            return
                    else:
                        yield ObjectInfo(
                            key=meta["path"],
                            size_bytes=meta["size"],
                            modified_ms=int(meta["last_modified"].timestamp() * 1000),
                        )
        except _FAILURES as error:
            raise translate_obstore_error("list", prefix, error) from error

    async def _head(self, key: str) -> "ObjectMeta":
        try:
            return await obstore.head_async(self._store, key)
        except _FAILURES as error:
            raise translate_obstore_error("look up", key, error) from error

    async def _delete_one(self, key: str) -> None:
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except _FAILURES as error:
            raise translate_obstore_error("delete", key, error) from error


def _pieces(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """The parts in copies of at most a piece, so that a mapped file is never in memory whole."""
    for part in parts:
        view = memoryview(part).cast("B")
        for at in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[at : at + _PIECE_BYTES])


def _version_of(meta: "ObjectMeta") -> str | None:
    tag = meta["e_tag"]
    return None if tag is None else tag.strip('"')


def _short(key: str, start: int, end: int) -> CorruptDataError:
    return CorruptDataError(
        "read", f"{key} at byte {start}", f"the object is shorter than {end} bytes"
    )
