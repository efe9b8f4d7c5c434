"""Objects read and written by an executor's own credentials: `objects = ambient`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.objects.keys import check_key
from penstock.objects.opening import open_bucket
from penstock.objects.translate import translate_obstore_error, translate_os_error

_FAILURES: Final = (BaseError, OSError)


class AmbientStore(Protocol):
    """A cluster's store, reached past the agents. Any thread."""

    @property
    def takes_puts(self) -> bool:
        """Whether `put` works; else the agents put."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises: NotFoundError, CorruptDataError, RetryableError."""
        ...

    def size(self, key: str) -> int:
        """In bytes. Raises: NotFoundError, RetryableError."""
        ...

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store an object if there is none. Raises: ConflictError, RetryableError."""
        ...


def open_ambient(url: str) -> AmbientStore:
    """Open a store with what this process's environment knows.

    Args:
        url: of the store, as `Info.objects_url` tells.

    Raises:
        InvalidRequestError: the agents can't tell one, or no store has it.
    """
    if not url:
        raise InvalidRequestError(
            "open object store",
            "objects = ambient",
            "the agents don't tell where their objects are",
            "use objects = auto",
        )
    parts = urlsplit(url)
    if parts.scheme == "file":
        return AmbientFiles(Path(unquote(parts.path)))
    return AmbientBucket(open_bucket(url))


class AmbientFiles:
    """A server's directory on the same machine, or a shared one. Puts have to be synced, and to
    leave nothing behind, which the agents see to."""

    takes_puts = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `AmbientStore`. Raises: InvalidRequestError: the directory isn't on this machine."""
        try:
            with self._path(key).open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), end - start, start)
        except FileNotFoundError as error:
            self._check_root()
            raise translate_os_error("read", key, error) from error
        except OSError as error:
            raise translate_os_error("read", key, error) from error
        if len(data) != end - start:
            raise CorruptDataError("read", key, f"the object is shorter than {end} bytes")
        return data

    def size(self, key: str) -> int:
        """See `AmbientStore`."""
        try:
            return self._path(key).stat().st_size
        except OSError as error:
            raise translate_os_error("look up", key, error) from error

    def put(self, key: str, parts: Sequence[Buffer]) -> None:  # noqa: ARG002 - the protocol's
        """See `AmbientStore`. Never."""
        raise InvalidRequestError("put", key, "files are put by the agents")

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise InvalidRequestError(
                "open object store",
                str(self._root),
                "this machine has no such directory",
                "use objects = auto",
            )


class AmbientBucket:
    """A bucket, through obstore."""

    takes_puts = True

    def __init__(self, store: Any) -> None:
        self._store = store

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """See `AmbientStore`."""
        try:
            data = bytes(obstore.get_range(self._store, key, start=start, end=end))
        except _FAILURES as error:
            # Stores refuse a range that begins past the end, each in its own words.
            if self.size(key) >= end:
                raise translate_obstore_error("read", key, error) from error
            data = b""
        if len(data) != end - start:
            raise CorruptDataError("read", key, f"the object is shorter than {end} bytes")
        return data

    def size(self, key: str) -> int:
        """See `AmbientStore`."""
        try:
            return int(obstore.head(self._store, key)["size"])
        except _FAILURES as error:
            raise translate_obstore_error("look up", key, error) from error

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `AmbientStore`."""
        try:
            obstore.put(self._store, key, b"".join(parts), mode="create", use_multipart=False)
        except _FAILURES as error:
            raise translate_obstore_error("put", key, error) from error
