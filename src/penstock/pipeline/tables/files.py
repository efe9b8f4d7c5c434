"""Files of a warehouse by their URLs, through obstore: a local directory, S3 and its like.

Synchronous, for drivers and executors. Credentials are those of the process's environment; the
endpoint and region come along, since a catalog's properties may name them.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from penstock.model.errors import InvalidRequestError, NotFoundError, RetryableError
from penstock.objects.opening import StoreOptions, store_config
from penstock.system.files import make_folder, settle

_S3_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_RETRIES: Final = {"max_retries": 8}
_READ_BYTES: Final = 256 << 10


class FilesOptions(msgspec.Struct, frozen=True):
    """The place of a warehouse's store. It goes to executors as it is, so it never holds a
    secret."""

    endpoint: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """One file of a listing."""

    url: str
    size_bytes: int
    modified_ms: int


def files_options(properties: Mapping[str, str]) -> FilesOptions:
    """Read a catalog's or table's properties about the store."""
    return FilesOptions(
        endpoint=properties.get("s3.endpoint", ""), region=properties.get("s3.region", "")
    )


def is_local(url: str) -> bool:
    """Whether a URL or path is of this machine's file system."""
    return split_url(url)[0] == "file"


def warehouse_url(location: str) -> str:
    """A location as given by a person, as a URL without a slash at its end."""
    scheme, host, path = split_url(location)
    if scheme == "file":
        path = str(Path(f"/{path}" if "://" in location else location).absolute())
        return f"file://{path}"
    return f"{scheme}://{host}/{path}".rstrip("/")


def split_url(url: str) -> tuple[str, str, str]:
    """Scheme, host or bucket, and path without a slash before it.

    Nothing is unquoted, and a path may hold `#`, `?` and `%`: so PyIceberg and Iceberg's other
    libraries read these URLs, which are none by the letter.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "file", "", url.removeprefix("file:").lstrip("/")
    host, _, path = rest.partition("/")
    return scheme, host, path


class _RangeFile(io.RawIOBase):
    """A file by reads of its ranges; obstore's own lacks what pyarrow asks of one."""

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        self._read = read
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        end = min(self._position + len(view), self._size_bytes)
        if end <= self._position:
            return 0
        data = self._read(self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def _get_range(store: ObjectStore, key: str, start: int, end: int) -> Any:
    return obstore.get_range(store, key, start=start, end=end)


class TableFiles:
    """Files by URL. Usable from any thread.

    Raises (all methods):
        RetryableError: the store doesn't answer.
        NotFoundError: no such file.
    """

    def __init__(self, options: FilesOptions) -> None:
        self._options = options
        self._stores: dict[str, ObjectStore] = {}

    def put_file(self, url: str, path: Path) -> None:
        """Upload a file of this machine; whole or not at all. Durable when it returns."""
        self._put(url, path)

    def put(self, url: str, body: bytes) -> None:
        """Upload bytes, as `put_file`."""
        self._put(url, body)

    def get(self, url: str) -> bytes:
        """A whole file."""
        store, key = self._find(url)
        return bytes(self._do("read", url, obstore.get, store, key).bytes())

    def open(self, url: str) -> BinaryIO:
        """A file to read parts of; the caller closes it."""
        store, key = self._find(url)
        size_bytes = self._do("read", url, obstore.head, store, key)["size"]

        def read(start: int, end: int) -> bytes:
            return bytes(self._do("read", url, _get_range, store, key, start, end))

        # Parquet reads a footer, then whole column chunks: the buffer only serves small steps.
        return io.BufferedReader(_RangeFile(read, size_bytes), buffer_size=_READ_BYTES)

    def delete(self, urls: list[str]) -> None:
        """Delete files; those that are not there are no error."""
        for url in urls:
            store, key = self._find(url)
            try:
                self._do("delete", url, obstore.delete, store, key)
            except NotFoundError:
                continue

    def list(self, url: str) -> Iterator[ListedFile]:
        """All files below a URL."""
        store, key = self._find(url.rstrip("/"))
        root = url.rstrip("/")[: -len(key)] if key else f"{url.rstrip('/')}/"
        try:
            for page in obstore.list(store, key):
                for meta in page:
                    yield ListedFile(
                        url=root + meta["path"],
                        size_bytes=meta["size"],
                        modified_ms=int(meta["last_modified"].timestamp() * 1000),
                    )
        except (FileNotFoundError, obstore.exceptions.NotFoundError):
            return
        except (BaseError, OSError) as error:
            raise RetryableError("list table files", url, str(error)) from error

    def _put(self, url: str, body: Path | bytes) -> None:
        store, key = self._find(url)
        if not isinstance(store, LocalStore):
            self._do("write", url, obstore.put, store, key, body)
            return
        path = Path("/", key)
        self._do("write", url, make_folder, path.parent)
        self._do("write", url, obstore.put, store, key, body)
        self._do("write", url, settle, path)

    def _find(self, url: str) -> tuple[ObjectStore, str]:
        scheme, host, key = split_url(url)
        root = f"{scheme}://{host}"
        store = self._stores.get(root)
        if store is None:
            store = self._stores[root] = self._open(scheme, root)
        return store, key

    def _open(self, scheme: str, root: str) -> ObjectStore:
        if scheme == "file":
            return LocalStore("/")
        scheme = _S3_SCHEMES.get(scheme, scheme)
        options = StoreOptions(
            endpoint=self._options.endpoint,
            region=self._options.region,
            request_timeout_s=60.0,
        )
        config = store_config(scheme, options, shown=root)
        try:
            return from_url(
                f"{scheme}://{split_url(root)[1]}", **{**config, "retry_config": _RETRIES}
            )
        except (BaseError, ValueError):
            # Neither its text nor its chain: they may repeat credentials.
            raise InvalidRequestError(
                "open warehouse",
                root,
                "no object store has such a URL",
                "use a path, or an s3://, gs:// or az:// URL",
            ) from None

    def _do(self, verb: str, url: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (FileNotFoundError, obstore.exceptions.NotFoundError) as error:
            raise NotFoundError(f"{verb} table file", url, "there is no such file") from error
        except (BaseError, OSError) as error:
            raise RetryableError(f"{verb} table file", url, str(error)) from error
