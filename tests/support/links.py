"""Links between processes that a test may cut: TCP forwarders."""

from __future__ import annotations

import asyncio
import contextlib

from support.listeners import close_listener
from support.loop_thread import LoopThread

CHUNK_BYTES = 64 << 10


class Link:
    """Forwards a port of loopback to host:port. While cut, connections are reset and new ones too;
    while frozen, nothing passes and nothing is closed, as when packets are dropped; while it is
    deaf, what is asked arrives and nothing is answered."""

    def __init__(self, links: Links, host: str, port: int) -> None:
        self._links = links
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self.port = 0

    def cut(self) -> None:
        """Reset all connections, and each new one."""
        self._links.call(self._cut())

    def freeze(self) -> None:
        """Let nothing through."""
        self._links.call(self._freeze())

    def deafen(self) -> None:
        """Let what is asked through, and no answer."""
        self._links.call(self._deafen())

    def heal(self) -> None:
        """Let everything through again."""
        self._links.call(self._heal())

    async def listen(self) -> None:
        """Take a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more. On the loop."""
        if self._server is not None:
            await close_listener(self._server)

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _freeze(self) -> None:
        self._flows.clear()

    async def _deafen(self) -> None:
        self._answers.clear()

    async def _heal(self) -> None:
        self._is_cut = False
        self._flows.set()
        self._answers.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            await self._flows.wait()
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(
                    self._pump(reader, up_writer, self._flows),
                    self._pump(up_reader, writer, self._flows, self._answers),
                )
        finally:
            self._writers -= {writer, up_writer}
            writer.transport.abort()
            up_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *passes: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                for gate in passes:
                    await gate.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()


class Links(LoopThread):
    """Owns the links. Use as a context."""

    def __init__(self) -> None:
        super().__init__("links")

    def open(self, host: str, port: int) -> Link:
        """A new link to host:port."""
        link = Link(self, host, port)
        self.listening(link)
        return link
