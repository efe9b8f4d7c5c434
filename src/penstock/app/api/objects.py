"""These calls of the pipeline API give presigned URLs, and pass objects through this agent."""

import asyncio
import logging
import mmap
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from typing_extensions import Buffer

from penstock.app.api.calls import Call, message, read_message
from penstock.app.api.grants import Grants, need_job
from penstock.app.api.sources import ApiRefusedError, PipelineSources
from penstock.app.http.callers import Caller
from penstock.app.http.guard import caller_of
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.objects.keys import check_key
from penstock.objects.origins import ORIGINS_PREFIX
from penstock.pipeline import api_messages as api
from penstock.pipeline.api_messages import Accesses, AccessRequest
from penstock.ports.objects import ObjectStore, SignedMethod, sign_through
from penstock.segment.keys import SEGMENTS_PREFIX, parse_job_key
from penstock.state.answers import Refusal
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

ACCESS_SECONDS_MAX: Final = 3600
STALL_S: Final = 30.0
KEYS_MAX: Final = 10_000
_PIECE_BYTES: Final = 4 << 20
_MEMORY_BYTES: Final = 8 << 20
"""An object up to this size is gathered in memory, a longer one in a file: a conditional put needs
the whole object."""
_RANGE: Final = re.compile(r"bytes=(\d{1,15})-(\d{1,15})", re.ASCII)


def calls(sources: PipelineSources) -> Sequence[Call]:
    """See `pipeline_routes`."""
    objects = _Objects(sources)
    path = api.OBJECTS_PATH + "/{key:path}"
    return [
        (api.ACCESSES_PATH, "POST", "accesses", objects.accesses),
        (path, "GET", "get", objects.get),
        (path, "PUT", "put", objects.put),
    ]


class _Objects:
    def __init__(self, sources: PipelineSources) -> None:
        self._sources = sources
        self._grants = Grants(sources)
        self._putting_bytes = 0
        """Bytes of the objects that are being put through this agent now."""

    async def accesses(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.ask_nothing()
        wanted = await read_message(request, AccessRequest)
        if len(wanted.keys) > KEYS_MAX:
            raise InvalidRequestError(
                "sign", f"{len(wanted.keys)} keys", f"{KEYS_MAX} keys at most can be signed"
            )
        if not 1 <= wanted.seconds <= ACCESS_SECONDS_MAX:
            raise InvalidRequestError(
                "sign", f"{wanted.seconds} seconds", f"URLs last 1 to {ACCESS_SECONDS_MAX} seconds"
            )
        store = self._sources.store
        if wanted.method == "GET":
            for key in wanted.keys:
                _check_readable(key)
            urls = await self._read_urls(caller, wanted)
        elif wanted.method == "PUT":
            await self._check_writable(caller, wanted.keys)
            urls = await sign_or_none(store, "PUT", wanted.keys, wanted.seconds)
        else:
            raise InvalidRequestError("sign", repr(wanted.method), "the method must be GET or PUT")
        return message(Accesses(urls=list(urls)))

    async def get(self, request: Request) -> Response:
        key: str = request.path_params["key"]
        _check_readable(key)
        match = _RANGE.fullmatch(request.headers.get("range", ""))
        if match is None:
            raise InvalidRequestError("read", key, "a header `Range: bytes=A-B` is needed")
        start, end = int(match[1]), int(match[2]) + 1
        if start >= end:
            raise InvalidRequestError(
                "read", key, f"bytes {start} to {end - 1} are not a range that can be read"
            )
        caller = caller_of(request)
        await self._grants.need_range(caller, key, start, end)
        pieces = self._pieces(key, start, end)
        # The first piece is read before the answer begins, so that an error can be the answer.
        first = await anext(pieces)

        async def body() -> AsyncIterator[memoryview]:
            yield memoryview(first)
            async for piece in pieces:
                # A rule may have changed since: the rest is not sent then.
                await self._grants.need_range(caller, key, start, end)
                yield memoryview(piece)

        headers = {
            "content-length": str(end - start),
            "content-range": f"bytes {start}-{end - 1}/*",
        }
        return StreamingResponse(
            body(), 206, headers=headers, media_type="application/octet-stream"
        )

    async def put(self, request: Request) -> Response:
        key: str = request.path_params["key"]
        length = request.headers.get("content-length", "")
        if not re.fullmatch(r"\d{1,15}", length, re.ASCII):
            raise InvalidRequestError("put", key, "a header Content-Length is needed")
        size_bytes = int(length)
        most = self._sources.object_bytes_max
        if size_bytes > most:
            raise InvalidRequestError(
                "put",
                key,
                f"{size_bytes} bytes; pipeline_object_bytes_max is {most}",
                "write smaller objects",
            )
        await self._check_writable(caller_of(request), [key])
        if self._putting_bytes and self._putting_bytes + size_bytes > most:
            raise OverloadedError(
                "put", key, f"{self._putting_bytes} bytes of other objects are being put"
            )
        self._putting_bytes += size_bytes
        try:
            await self._store(request, key, size_bytes)
        finally:
            self._putting_bytes -= size_bytes
        return Response(status_code=204)

    async def _store(self, request: Request, key: str, size_bytes: int) -> None:
        if size_bytes <= _MEMORY_BYTES:
            gathered = bytearray()
            async for part in _parts_of(request, key):
                gathered += part
                _check_length(key, len(gathered), size_bytes)
            await self._put(key, gathered, size_bytes)
            return
        with self._scratch_file() as file:
            received = 0
            gathered = bytearray()
            async for part in _parts_of(request, key):
                received += len(part)
                _check_length(key, received, size_bytes)
                gathered += part
                if len(gathered) >= _PIECE_BYTES:
                    await self._in_pool(file.write, bytes(gathered))
                    gathered.clear()
            await self._in_pool(file.write, bytes(gathered))
            await self._in_pool(file.flush)
            if received != size_bytes:
                raise InvalidRequestError("put", key, f"{received} of {size_bytes} bytes came")
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole,
                memoryview(whole) as view,
            ):
                await self._put(key, view, size_bytes)

    async def _in_pool(self, work: Callable[..., object], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._sources.pool, work, *arguments)

    def _scratch_file(self) -> IO[bytes]:
        Path(self._sources.scratch).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._sources.scratch)

    async def _put(self, key: str, body: bytearray | memoryview, size_bytes: int) -> None:
        if len(body) != size_bytes:
            raise InvalidRequestError("put", key, f"{len(body)} of {size_bytes} bytes came")
        try:
            await self._sources.store.put(key, [body], if_absent=True)
        except ConflictError as error:
            raise ApiRefusedError(
                "put", key, str(error), reason=Refusal.OBJECT_EXISTS.name.lower()
            ) from error

    async def _pieces(self, key: str, start: int, end: int) -> AsyncIterator[Buffer]:
        """Yield the bytes [start, end) of an object, with a few MB in memory at a time."""
        store = self._sources.store
        for at in range(start, end, _PIECE_BYTES):
            try:
                yield await store.get_range(key, at, min(at + _PIECE_BYTES, end))
            except CorruptDataError:
                # The object is shorter than the range. The error gives its size, since the caller
                # may have asked for the wrong range.
                size_bytes = await store.size(key)
                raise CorruptDataError(
                    "read", key, f"bytes up to {end} of an object of {size_bytes}"
                ) from None

    async def _read_urls(self, caller: Caller, wanted: AccessRequest) -> Sequence[str]:
        """URLs of the objects that the caller may read whole; "" of others."""
        allowed = [key for key in wanted.keys if await self._grants.may_read_whole(caller, key)]
        urls = await sign_or_none(self._sources.store, "GET", allowed, wanted.seconds)
        by_key = dict(zip(allowed, urls, strict=True))
        return [by_key.get(key, "") for key in wanted.keys]

    async def _check_writable(self, caller: Caller, keys: Sequence[str]) -> None:
        """
        Raises:
            InvalidRequestError: a key does not belong to a job's objects.
            ApiRefusedError: the key's job is over.
            DeniedError: the key's job is not the caller's.
        """
        jobs: set[int] = set()
        for key in keys:
            parsed = parse_job_key(key)
            if parsed is None:
                raise InvalidRequestError("write", repr(key), "it is not the key of a job's object")
            jobs.add(parsed.job)
        for job in jobs:
            await need_job(self._sources, caller, job)


async def sign_or_none(
    store: ObjectStore, method: SignedMethod, keys: Sequence[str], seconds: int
) -> Sequence[str]:
    """Sign like `sign_through`, or give "" per key where the store's credentials can't sign URLs,
    as those of a cloud instance may not. Then objects go through the agents, which works but is
    slower."""
    try:
        return await sign_through(store, method, keys, seconds)
    except PenstockError as error:
        saying = "objects go through this agent, since the store's credentials can't sign URLs"
        heard(Cause.SIGN_URL, error, logger, saying)
        return [""] * len(keys)


async def _parts_of(request: Request, key: str) -> AsyncIterator[bytes]:
    """Yield a request's body, and give up when nothing comes for `STALL_S`: a body that stalls
    keeps room that other requests wait for."""
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise RetryableError("put", key, f"nothing came for {STALL_S:.0f} s") from error
        yield part


def _check_length(key: str, received: int, size_bytes: int) -> None:
    if received > size_bytes:
        raise InvalidRequestError("put", key, f"more than {size_bytes} bytes came")


def _check_readable(key: str) -> None:
    """Refuse keys of anything but segments: jobs don't need the other objects of the store."""
    check_key(key)
    if not key.startswith((SEGMENTS_PREFIX, ORIGINS_PREFIX)):
        raise InvalidRequestError("read", repr(key), "it is not the key of a segment")
