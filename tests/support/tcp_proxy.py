"""A TCP proxy on the event loop that a test may cut, swallow answers in, or hang."""

import asyncio


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
        assert self._server is not None
        self._server.close()
        self.flow()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port
            )
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, server_writer}
        self._writers |= pair
        forward = asyncio.ensure_future(self._copy(reader, server_writer, answers=False))
        back = asyncio.ensure_future(self._copy(server_reader, writer, answers=True))
        self._tasks |= {forward, back}
        await asyncio.wait({forward, back}, return_when=asyncio.FIRST_COMPLETED)
        for one in pair:
            one.transport.abort()
        await asyncio.wait({forward, back})
        self._tasks -= {forward, back}
        self._writers -= pair

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                if answers and self.swallows:
                    return
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
