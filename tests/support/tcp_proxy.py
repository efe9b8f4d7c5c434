"""A TCP proxy on the event loop that a test may cut, swallow answers in, or hang."""

import asyncio
import contextlib

from support.listeners import close_listener


class TcpProxy:
    """Forwards connections to a port of loopback."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.swallows = False
        """Answers are swallowed, and their connection is cut."""
        self.refuses = False
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def url(self, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def cut(self) -> None:
        """Cut all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hang(self) -> None:
        """Forward nothing more in either direction, and close nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    async def stop(self) -> None:
        """Close everything: a transport that outlives the loop fails some later test."""
        assert self._server is not None
        await close_listener(self._server)
        self.flow()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks)
        # The loop closes an aborted transport's socket in its next turn.
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        opened = [writer]
        try:
            if not self.refuses:
                server_reader, server_writer = await asyncio.open_connection(
                    "127.0.0.1", self._target_port
                )
                opened.append(server_writer)
                self._writers |= {*opened}
                await self._forward(reader, writer, server_reader, server_writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in opened:
                one.transport.abort()
            self._writers -= {*opened}
            self._tasks.remove(task)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        """Copy both ways until one side ends."""
        ways = [
            asyncio.ensure_future(self._copy(reader, server_writer, answers=False)),
            asyncio.ensure_future(self._copy(server_reader, writer, answers=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                if answers and self.swallows:
                    return
                writer.write(data)
                await writer.drain()
