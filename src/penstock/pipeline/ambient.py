"""Objects read and written by an executor's own credentials: `objects = ambient`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.objects.opening import open_bucket
from penstock.objects.translate import translate_obstore_error

_FAILURES: Final = (BaseError, OSError)


class AmbientStore:
    """A cluster's store, opened with what this process's environment knows. Any thread.

    Args:
        url: of the store, as `Info.objects_url` tells.

    Raises:
        InvalidRequestError: the agents can't tell one, or no store has it.
    """

    def __init__(self, url: str) -> None:
        if not url:
            raise InvalidRequestError(
                "open object store",
                "objects = ambient",
                "the agents don't tell where their objects are",
                "use objects = auto",
            )
        parts = urlsplit(url)
        self.is_local = parts.scheme == "file"
        """Puts of files must be synced, which the agent does."""
        self._store: Any = (
            LocalStore(prefix=Path(unquote(parts.path))) if self.is_local else open_bucket(url)
        )

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises: NotFoundError, CorruptDataError, RetryableError."""
        try:
            data = bytes(obstore.get_range(self._store, key, start=start, end=end))
        except _FAILURES as error:
            raise translate_obstore_error("read", key, error) from error
        if len(data) != end - start:
            raise CorruptDataError("read", key, f"the object is shorter than {end} bytes")
        return data

    def size(self, key: str) -> int:
        """In bytes. Raises: NotFoundError, RetryableError."""
        try:
            return int(obstore.head(self._store, key)["size"])
        except _FAILURES as error:
            raise translate_obstore_error("look up", key, error) from error

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store an object if there is none. Raises: ConflictError, RetryableError."""
        try:
            obstore.put(self._store, key, b"".join(parts), mode="create", use_multipart=False)
        except _FAILURES as error:
            raise translate_obstore_error("put", key, error) from error
