"""Objects that a restored cluster inherited: read where its parent keeps them, never written.

A restore gives each inherited object the key `origins/<d>/<its key>`, where d is a digest of the
parent's URL: the key says which store has the object, and no key of the new cluster can be the
same. docs/formats/archive.md.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from typing_extensions import Buffer

from penstock.model.errors import InvalidRequestError
from penstock.ports.objects import (
    ObjectInfo,
    ObjectStore,
    SignedMethod,
    Versioned,
    get_versioned,
    sign_through,
)

ORIGINS_PREFIX: Final = "origins/"
_DIGEST_CHARACTERS: Final = 16


def origin_digest(url: str) -> str:
    """Return the digest by which keys name an origin: 16 hexadecimal digits."""
    return sha256(url.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def inherited_key(url: str, key: str) -> str:
    """The key in a restored cluster of an object of the store at `url`."""
    return f"{ORIGINS_PREFIX}{origin_digest(url)}/{key}"


def open_origins(
    store: ObjectStore, urls: Iterable[str], open_one: Callable[[str], ObjectStore]
) -> ObjectStore:
    """The store with those of its origins; itself when there are none.

    Args:
        urls: all origins that the state names.
    """
    origins = {origin_digest(url): open_one(url) for url in urls}
    return OriginStore(store, origins) if origins else store


class OriginStore:
    """Decorates a store: keys of inherited objects are read in their origin's.

    Args:
        origins: stores by digest of their URL. A key of another digest is the store's own: a
            backup of a restored cluster holds copies under such keys.
    """

    def __init__(self, store: ObjectStore, origins: Mapping[str, ObjectStore]) -> None:
        self._store = store
        self._origins = dict(origins)

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        self._refuse("put", [key])
        await self._store.put(key, parts, if_absent=if_absent)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        store, key = self._find(key)
        return await get_versioned(store, key, start, end)

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`. Own objects alone: another cluster's are
        read with what this server's environment knows of its store."""
        own = [key for key in keys if self._find(key)[0] is self._store]
        signed = dict(zip(own, await sign_through(self._store, method, own, seconds), strict=True))
        return [signed.get(key, "") for key in keys]

    async def size(self, key: str) -> int:
        """See the port."""
        store, key = self._find(key)
        return await store.size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port.

        Raises:
            InvalidRequestError: a key of an origin; nothing was deleted.
        """
        self._refuse("delete", keys)
        await self._store.delete(keys)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port. Own objects alone."""
        return self._store.list(prefix, after=after)

    def _find(self, key: str) -> tuple[ObjectStore, str]:
        if key.startswith(ORIGINS_PREFIX):
            digest, _, rest = key.removeprefix(ORIGINS_PREFIX).partition("/")
            origin = self._origins.get(digest)
            if origin is not None:
                return origin, rest
        return self._store, key

    def _refuse(self, operation: str, keys: Sequence[str]) -> None:
        for key in keys:
            if self._find(key)[0] is not self._store:
                raise InvalidRequestError(
                    operation, key, "it is inherited from another cluster, which alone may"
                )
