"""Objects as a job's tasks reach them: presigned, through an agent, or by own credentials."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.pipeline.ambient import AmbientStore, open_ambient
from penstock.pipeline.client import ACCESS_SECONDS, PipelineClient, RefusedError
from penstock.pipeline.presigned import AccessOverError, ObjectThereError, PresignedCalls
from penstock.pipeline.transport import DeniedError
from penstock.system.backoff import Backoff
from penstock.system.waiting import pause

T = TypeVar("T")

Item = tuple[str, int, int] | tuple[str, int, int, str]
"""A range to read: key, start and end in bytes, and the object's origin if it has one."""

PUT_BYTES_MAX: Final = 5 << 30
"""The greatest size of one put in S3."""
AT_ONCE: Final = 8
"""Requests of one `get_views` under way."""
_GAP_BYTES: Final = 256 << 10
"""Bytes between two ranges that cost less than a request of their own."""
_STRETCH_BYTES: Final = 32 << 20
_COPIED_BYTES: Final = 4 << 20
"""Longest stretch that `read_into` reads, unless an item alone is longer."""
_OBJECT_EXISTS: Final = "object_exists"
_AGENT_BYTES: Final = 64 << 20
_URLS_MAX: Final = 20_000
_GOOD_SHARE: Final = 0.8
"""After this share of a URL's time another URL is asked for."""
_BACKOFF: Final = Backoff(first_s=0.1, most_s=5.0)


class ObjectAccess:
    """Reads and writes objects; usable from any thread. Pickled, it is its client's options.

    Raises (all methods):
        RetryableError: neither store nor agents answered within the deadline.
    """

    def __init__(self, client: PipelineClient, *, at_once: int = AT_ONCE) -> None:
        self._client = client
        self._at_once = at_once
        self._lock = threading.Lock()
        self._urls: dict[tuple[str, str], tuple[str, float]] = {}
        """(method, key) -> URL ("": through the agent), and until when it is good."""
        self._calls = PresignedCalls(timeout_s=client.options.timeout_s)
        self._ambient: AmbientStore | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._puts_conditionally = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectAccess, (self._client,)

    def __repr__(self) -> str:
        return f"ObjectAccess({self._client.options.objects})"

    def close(self) -> None:
        """Close all connections; no other call is under way."""
        with self._lock:
            threads, self._threads = self._threads, None
            self._urls.clear()
        if threads is not None:
            threads.shutdown()
        self._calls.close()

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> bytes:
        """Bytes [start, end) of an object.

        Args:
            origin: as `RunPage.object_origins` says: another cluster's store, by the agent alone.

        Raises:
            NotFoundError: it was replaced or deleted.
            CorruptDataError: it is shorter.
        """
        if start >= end:
            return b""
        way = self._client.options.objects
        if origin or way == "agent":
            return self._get_by_agent(key, start, end)
        if way == "ambient":
            store = self._ambient_store()
            return self._until_deadline(lambda: store.get_range(key, start, end))
        return self._until_deadline(lambda: self._get_presigned(key, start, end))

    def get_views(self, items: Sequence[Item]) -> list[memoryview]:
        """Read each item like `get_range`, several at once. Adjacent items share one request and
        its memory, without a copy."""
        stretches = _stretches(items)
        self._learn_urls_of(stretches)
        views: list[memoryview] = [memoryview(b"")] * len(items)

        def read(stretch: _Stretch) -> None:
            for index, view in self._read(stretch, items):
                views[index] = view

        if len(stretches) == 1:
            read(stretches[0])
        else:
            for _ in self._pool().map(read, stretches):
                pass
        return views

    def read_into(self, space: memoryview, items: Sequence[Item]) -> None:
        """Read like `get_views`, into the caller's memory, one item after the other.

        The memory of a request is freed as soon as it is copied. If it were kept, each request
        would need new memory, and clearing new memory costs more than copying.
        """
        starts: list[int] = []
        size_bytes = 0
        for _, start, end, *_ in items:
            starts.append(size_bytes)
            size_bytes += end - start
        assert len(space) == size_bytes, (len(space), size_bytes)
        stretches = _stretches(items, bytes_max=_COPIED_BYTES)
        self._learn_urls_of(stretches)

        def read(stretch: _Stretch) -> None:
            for index, view in self._read(stretch, items):
                space[starts[index] : starts[index] + len(view)] = view

        for _ in self._pool().map(read, stretches):
            pass

    def _read(self, stretch: "_Stretch", items: Sequence[Item]) -> Iterator[tuple[int, memoryview]]:
        """Yield each item's index and bytes."""
        origin = stretch.origin
        try:
            whole = self.get_range(stretch.key, stretch.start, stretch.end, origin=origin)
        except DeniedError:
            if len(stretch.items) == 1:
                raise
            # Between the items lie bytes of topics that this client may not read.
            for index in stretch.items:
                _, start, end = items[index][:3]
                alone = self.get_range(stretch.key, start, end, origin=origin)
                yield index, memoryview(alone)
            return
        data = memoryview(whole)
        for index in stretch.items:
            _, start, end = items[index][:3]
            yield index, data[start - stretch.start : end - stretch.start]

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store an object of an open job, durably, if there is none of that name.

        Raises:
            ConflictError: there is one; or, through an agent, the job is over.
            InvalidRequestError: larger than a store takes in one put.
        """
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        if size_bytes > PUT_BYTES_MAX:
            raise InvalidRequestError("put", key, f"{size_bytes} bytes, {PUT_BYTES_MAX} at most")
        way = self._client.options.objects
        if way == "ambient":
            store = self._ambient_store()
            if store.takes_puts:
                self._put_ambient(store, key, parts, size_bytes)
                return
        if way != "auto":
            self._put_by_agent(key, parts)
            return
        self._put_presigned(key, parts, size_bytes)

    # -- presigned -------------------------------------------------------------------------------

    def _get_presigned(self, key: str, start: int, end: int) -> bytes:
        for _ in range(2):
            url = self._url("GET", key)
            if not url:
                break
            try:
                return self._calls.get_range(url, key, start, end)
            except AccessOverError:
                self._forget_url("GET", key, url)
        # No URL, or the store refuses two: the agent knows whether the object is there.
        return self._get_by_agent(key, start, end)

    def _put_presigned(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        tries = refused = 0

        def put() -> None:
            nonlocal tries, refused
            tries += 1
            url = self._url("PUT", key) if refused < 2 else ""
            if not url:
                self._put_by_agent(key, parts)
                return
            try:
                known = self._calls.put(url, key, parts, if_absent=self._puts_conditionally)
            except AccessOverError as error:
                refused += 1
                self._forget_url("PUT", key, url)
                raise RetryableError("put", key, error.detail) from None
            except ObjectThereError:
                # After a try whose answer was lost it is ours: no other attempt has its name.
                if tries == 1 or self._size(key) != size_bytes:
                    raise ConflictError("put", key, "it is there already") from None
                return
            if not known:
                self._puts_conditionally = False
                raise RetryableError("put", key, "the store knows no conditional puts")

        self._until_deadline(put)

    def _size(self, key: str) -> int:
        url = self._url("GET", key)
        return self._calls.size(url, key) if url else -1

    def _url(self, method: str, key: str) -> str:
        with self._lock:
            known = self._urls.get((method, key))
        if known is not None and self._client.clock.monotonic_s() < known[1]:
            return known[0]
        self._learn_urls(method, [key], again=True)
        with self._lock:
            return self._urls.get((method, key), ("", 0.0))[0]

    def _learn_urls(self, method: str, keys: Sequence[str], *, again: bool = False) -> None:
        now_s = self._client.clock.monotonic_s()
        with self._lock:
            wanted = [
                key for key in keys if again or self._urls.get((method, key), ("", 0.0))[1] <= now_s
            ]
        if not wanted:
            return
        urls = self._client.accesses(method, wanted, seconds=ACCESS_SECONDS)
        good_s = now_s + _GOOD_SHARE * ACCESS_SECONDS
        with self._lock:
            if len(self._urls) + len(wanted) > _URLS_MAX:
                self._urls.clear()
            for key, url in zip(wanted, urls, strict=True):
                self._urls[method, key] = url, good_s

    def _learn_urls_of(self, stretches: "Sequence[_Stretch]") -> None:
        """Ask for what will be needed by few calls."""
        if self._client.options.objects == "auto":
            self._learn_urls(
                "GET", sorted({stretch.key for stretch in stretches if not stretch.origin})
            )

    def _forget_url(self, method: str, key: str, url: str) -> None:
        with self._lock:
            if self._urls.get((method, key), ("", 0.0))[0] == url:
                del self._urls[method, key]

    # -- other ways ------------------------------------------------------------------------------

    def _get_by_agent(self, key: str, start: int, end: int) -> bytes:
        if end - start <= _AGENT_BYTES:
            return self._client.get_object(key, start, end)
        return b"".join(
            self._client.get_object(key, at, min(at + _AGENT_BYTES, end))
            for at in range(start, end, _AGENT_BYTES)
        )

    def _put_by_agent(self, key: str, parts: Sequence[Buffer]) -> None:
        try:
            self._client.put_object(key, parts)
        except RefusedError as error:
            # Perhaps by an earlier try of this call, whose answer was lost.
            if error.reason != _OBJECT_EXISTS or not self._holds(key, parts):
                raise

    def _holds(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Whether an object is the concatenation of `parts`, as far as that goes."""
        position = 0
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                for at in range(0, len(view), _AGENT_BYTES):
                    piece = view[at : at + _AGENT_BYTES]
                    end = position + len(piece)
                    if self._client.get_object(key, position, end) != piece:
                        return False
                    position = end
        except (CorruptDataError, NotFoundError):
            return False
        return True

    def _put_ambient(
        self, store: AmbientStore, key: str, parts: Sequence[Buffer], size_bytes: int
    ) -> None:
        tries = 0

        def put() -> None:
            nonlocal tries
            tries += 1
            try:
                store.put(key, parts)
            except ConflictError:
                if tries == 1 or store.size(key) != size_bytes:
                    raise

        self._until_deadline(put)

    def _ambient_store(self) -> AmbientStore:
        with self._lock:
            store = self._ambient
        if store is None:
            store = open_ambient(self._client.info().objects_url)
            with self._lock:
                self._ambient = store
        return store

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix="objects")
            return self._threads

    def _until_deadline(self, call: Callable[[], T]) -> T:
        """Try again what fails retriably, after full-jitter back-off."""
        client = self._client
        until_s = client.clock.monotonic_s() + client.options.deadline_s
        failures = 0
        while True:
            try:
                return call()
            except RetryableError:
                failures += 1
                wait_s = _BACKOFF.jittered(failures, client.random)
                if client.clock.monotonic_s() + wait_s >= until_s:
                    raise
            pause(wait_s)


@dataclass(slots=True)
class _Stretch:
    """The range that one request reads, and the indexes of the items in it."""

    key: str
    origin: str
    start: int
    end: int
    items: list[int] = field(default_factory=list)


def _stretches(items: Sequence[Item], *, bytes_max: int = _STRETCH_BYTES) -> list[_Stretch]:
    """Ranges in few requests: those of one object that are near one another are joined."""

    def places() -> Iterator[tuple[str, str, int, int, int]]:
        for index, item in enumerate(items):
            key, start, end = item[:3]
            if start < end:
                yield (item[3] if len(item) == 4 else ""), key, start, end, index

    found: list[_Stretch] = []
    for origin, key, start, end, index in sorted(places()):
        last = found[-1] if found else None
        if (
            last is None
            or (last.origin, last.key) != (origin, key)
            or start - last.end > _GAP_BYTES
            or max(end, last.end) - last.start > bytes_max
        ):
            last = _Stretch(key, origin, start, end)
            found.append(last)
        last.end = max(last.end, end)
        last.items.append(index)
    return found
