"""Sends a long reply in pieces, each made once the peer has taken those before it.

So a reply of many megabytes holds what it is made of and one piece, however slowly it is read.
"""

import asyncio
from collections.abc import Callable

from penstock.kafka.replies import PiecedReply
from penstock.system.turns import Turns


class PieceSender:
    """Sends the replies of one connection in pieces, one reply at a time.

    Args:
        left: called when all of it has left.
        failed: called when it can't be made; the connection must be aborted.
    """

    __slots__ = (
        "_drained",
        "_failed",
        "_left",
        "_reply",
        "_task",
        "_transport",
        "_turns",
        "unmade",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        turns: Turns,
        *,
        left: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._transport = transport
        self._turns = turns
        self._left = left
        self._failed = failed
        self._reply: PiecedReply | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.unmade = 0
        """Bytes of the reply that aren't made yet."""

    @property
    def is_busy(self) -> bool:
        """Whether a reply is on its way."""
        return self._reply is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of what the reply is made of."""
        return 0 if self._reply is None else self._reply.held_bytes

    def send(self, reply: PiecedReply) -> None:
        """Send after what the transport has already."""
        assert self._reply is None
        self._reply = reply
        self.unmade = reply.byte_count
        self._task = asyncio.get_running_loop().create_task(self._send(reply))
        self._task.add_done_callback(self._ended)

    def resume(self) -> None:
        """The transport's write buffer is empty again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def clear(self) -> None:
        """Forget the reply: the connection is gone."""
        self._reply = None
        self.unmade = 0
        if self._task is not None:
            self._task.cancel()

    async def _send(self, reply: PiecedReply) -> None:
        transport, turns = self._transport, self._turns
        await self._wait_until_taken()
        for piece, items in reply.pieces:
            byte_count = len(piece)  # type: ignore[arg-type]
            assert byte_count <= self.unmade, "the reply is longer than its header says"
            self.unmade -= byte_count
            transport.write(memoryview(piece))
            if turns.spend(items, byte_count):
                await turns.wait()
            await self._wait_until_taken()
        assert not self.unmade, "the reply is shorter than its header says"

    async def _wait_until_taken(self) -> None:
        while self._transport.get_write_buffer_size():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
            self._drained = None

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if self._reply is None or task.cancelled():
            return
        self._reply = None
        error = task.exception()
        if error is None:
            self._left()
        else:
            self._failed(error)
