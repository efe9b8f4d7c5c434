"""Taps between Kafka clients and agents, that write down what coordinators tell members.

An agent advertises its tap's address, so that all that clients ask it passes here. Bytes pass as
they come, unchanged; requests and answers about generations are read in passing. All taps are on
one event loop in a thread of their own, which puts what passes in one order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire.header import parse_fixed, parse_rest
from penstock.kafka.wire.schema import decode_response
from support.group_history import GroupHistory, Kind, Told
from support.listeners import close_listener
from support.loop_thread import LoopThread
from support.parsing import decode_request

_API = {
    Kind.JOIN: "join_group",
    Kind.SYNC: "sync_group",
    Kind.HEARTBEAT: "heartbeat",
    Kind.COMMIT: "offset_commit",
}
_KIND_BY_KEY = {BY_MODULE[name].key: kind for kind, name in _API.items()}
_SIZE = struct.Struct(">i")
CHUNK_BYTES = 64 << 10


class _Asked(NamedTuple):
    kind: Kind
    version: int
    request: Any
    at: int


@dataclass
class _Frames:
    """Kafka's frames out of a stream's bytes."""

    _data: bytearray = field(default_factory=bytearray)

    def of(self, data: bytes) -> Iterator[memoryview]:
        """Those that are whole now."""
        self._data += data
        while len(self._data) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            yield memoryview(bytes(self._data[_SIZE.size : end]))
            del self._data[:end]


class GroupTap:
    """One agent's. `port` is what it advertises; it listens at `agent_port`, by and by."""

    def __init__(self, taps: GroupTaps) -> None:
        self._taps = taps
        self._server: asyncio.Server | None = None
        self.port = 0
        self.agent_port = 0

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Take a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more. On the loop."""
        if self._server is not None:
            await close_listener(self._server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.agent_port)
        except OSError:
            writer.transport.abort()
            return
        asked: dict[int, _Asked] = {}
        ways = [
            asyncio.ensure_future(self._requests(reader, up_writer, asked)),
            asyncio.ensure_future(self._answers(up_reader, writer, asked)),
        ]
        try:
            # Either side's end is the other's.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            up_writer.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, _Asked]
    ) -> None:
        frames = _Frames()
        while data := await reader.read(CHUNK_BYTES):
            for frame in frames.of(data):
                key, version, correlation_id = parse_fixed(frame)
                kind = _KIND_BY_KEY.get(key)
                if kind is not None:
                    api = BY_MODULE[_API[kind]]
                    _, start = parse_rest(frame, flexible=version >= api.flexible_from)
                    request = decode_request(_API[kind], version, frame[start:])
                    asked[correlation_id] = _Asked(kind, version, request, self._taps.place())
            writer.write(data)
            await writer.drain()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, _Asked]
    ) -> None:
        frames = _Frames()
        while data := await reader.read(CHUNK_BYTES):
            for frame in frames.of(data):
                one = asked.pop(_SIZE.unpack_from(frame)[0], None)
                if one is not None:
                    api = BY_MODULE[_API[one.kind]]
                    start = _SIZE.size + (one.version >= api.flexible_from)
                    answer = decode_response(_API[one.kind], one.version, frame[start:])
                    self._taps.note(self.address, one, answer)
            writer.write(data)
            await writer.drain()


class GroupTaps(LoopThread):
    """Owns the taps and the history. Use as a context."""

    def __init__(self) -> None:
        super().__init__("taps")
        self.history = GroupHistory()
        self._places = itertools.count()

    def open(self) -> GroupTap:
        """A new tap."""
        tap = GroupTap(self)
        self.listening(tap)
        return tap

    def place(self) -> int:
        """The next place in the order of everything."""
        return next(self._places)

    def note(self, agent: str, asked: _Asked, answer: Any) -> None:
        """Keep an answer. On the loop."""
        request = asked.request
        error = _error(asked.kind, answer)
        generation = getattr(request, "generation_id", -1)
        if asked.kind is Kind.COMMIT:
            generation = request.generation_id_or_member_epoch
        if error:
            self.history.refused.append((asked.kind, request.group_id, generation, error))
            return
        if asked.kind is Kind.JOIN:
            generation = answer.generation_id
        if generation < 0:
            return  # of a group without members
        partitions = _partitions(answer.assignment) if asked.kind is Kind.SYNC else frozenset()
        self.history.answers.append(
            Told(
                kind=asked.kind,
                agent=agent,
                group=request.group_id,
                member=answer.member_id if asked.kind is Kind.JOIN else request.member_id,
                generation=generation,
                asked=asked.at,
                told=self.place(),
                partitions=partitions,
            )
        )


def _error(kind: Kind, answer: Any) -> str:
    """The name of an answer's error; empty: none."""
    codes = [answer.error_code] if kind is not Kind.COMMIT else []
    if kind is Kind.COMMIT:
        codes = [place.error_code for topic in answer.topics for place in topic.partitions]
    return next((code.name for code in codes if code.value), "")


def _partitions(assignment: bytes) -> frozenset[tuple[str, int]]:
    """Topics and partitions of a consumer's assignment (its ConsumerProtocolAssignment)."""
    found = set()
    at = 2
    (topics,) = _SIZE.unpack_from(assignment, at) if assignment else (0,)
    at += 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, at)
        topic = assignment[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = _SIZE.unpack_from(assignment, at)
        for number in struct.unpack_from(f">{count}i", assignment, at + 4):
            found.add((topic, number))
        at += 4 + 4 * count
    return frozenset(found)
