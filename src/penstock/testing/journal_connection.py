"""One agent's end of a simulated journal. See `penstock.testing.journal`."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.ports.journal import JournalHead, JournalRow

if TYPE_CHECKING:
    from penstock.testing.journal import SimulatedJournal

T = TypeVar("T")

_TICK_S: Final = 1e-6


class _Append:
    """One append on its way."""

    __slots__ = ("body", "generation", "reply", "server_life")

    def __init__(
        self, body: bytes, *, generation: int, server_life: int, reply: "asyncio.Future[int]"
    ) -> None:
        self.body = body
        self.generation = generation
        self.server_life = server_life
        self.reply = reply


class SimulatedConnection:
    """Implements `penstock.ports.journal.Journal`. Appends are carried out one by one, whatever
    becomes of the callers; after a failure all that were waiting fail, and the next one is on a
    new connection."""

    def __init__(self, server: "SimulatedJournal") -> None:
        """Use `SimulatedJournal.connect`."""
        self._server = server
        self._generation = 0
        self._queue: deque[_Append] = deque()
        self._busy = False
        self._unanswered: list[_Append] = []
        self._asked: set[asyncio.Future[Any]] = set()
        self._waits: dict[asyncio.Future[None], int] = {}
        self._arrival_s = 0.0
        self._reply_s = 0.0
        self._closed = False
        self._reads_broken = False
        self.cut = False
        """True: this agent alone can't reach the journal."""

    # -- the port --------------------------------------------------------------------------------

    async def append(self, body: bytes) -> int:
        """See `Journal`."""
        self._check("append")
        loop = asyncio.get_running_loop()
        request = _Append(
            body,
            generation=self._generation,
            server_life=self._server.life,
            reply=loop.create_future(),
        )
        self._unanswered.append(request)
        self._arrival_s = self._in_order(self._arrival_s)
        self._server.at(self._arrival_s, self._arrive, request)
        return await request.reply

    async def read(self, after: int, limit: int) -> list[JournalRow]:
        """See `Journal`."""

        async def work() -> list[JournalRow]:
            if after + 1 < self._server.first:
                raise NotFoundError(
                    "read journal",
                    f"position {after + 1}",
                    f"rows below {self._server.first} have been trimmed",
                    "bootstrap from a snapshot",
                )
            return self._server.visible(after, limit)

        return await self._ask("read", work)

    async def row(self, position: int) -> JournalRow | None:
        """See `Journal`."""

        async def work() -> JournalRow | None:
            return self._server.row(position)

        return await self._ask("read row", work)

    async def head(self) -> JournalHead:
        """See `Journal`."""

        async def work() -> JournalHead:
            server = self._server
            return JournalHead(server.head, server.first, server.clock.now_ms())

        return await self._ask("read head", work)

    async def seal(self, positions: Sequence[int]) -> None:
        """See `Journal`."""

        async def work() -> None:
            for position in positions:
                holder = self._server.holder(position)
                if holder is not None:
                    await asyncio.wait([holder])
                self._check("seal")
                self._server.show_seal(position)

        await self._ask("seal", work)

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `Journal`."""
        if timeout_s <= 0 or (self._server.head > after and not self._hint_lost()):
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waits[woken] = after
        timer = loop.call_later(timeout_s, _settle, woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._waits.pop(woken, None)

    def share_among(self, readers: int) -> None:
        """See `Journal`. Reading costs nothing here."""

    async def trim(self, up_to: int) -> int:
        """See `Journal`."""

        async def work() -> int:
            return self._server.trim(up_to)

        return await self._ask("trim", work)

    async def close(self) -> None:
        """See `Journal`."""
        if not self._closed:
            self._closed = True
            self.break_off("it is closed")
            self._server.forget(self)

    # -- what the server does to it ------------------------------------------------------------

    def break_off(self, detail: str) -> None:
        """Lose all connections: all that is under way fails, and reads fail once more, so that
        the follower looks whether it is still the same journal."""
        self._break_appends(detail)
        self._reads_broken = True
        for reply in self._asked:
            _fail(reply, _lost("read", detail))
        self._asked.clear()
        for woken in list(self._waits):
            _settle(woken)

    def _break_appends(self, detail: str) -> None:
        """Lose the connection of appends. One that has begun may still be committed."""
        self._generation += 1
        self._queue.clear()
        self._busy = False
        unanswered, self._unanswered = self._unanswered, []
        for request in unanswered:
            _fail(request.reply, _lost("append", detail))

    def notice(self, head: int) -> None:
        """There are rows up to `head`."""
        for woken, after in list(self._waits.items()):
            if head > after and not self._hint_lost():
                _settle(woken)

    # -- inside ----------------------------------------------------------------------------------

    def _arrive(self, request: _Append) -> None:
        if request.generation != self._generation:
            return
        if self.cut or self._server.chance(self._server.faults.lost_request_permille):
            self._break_appends("the request was lost")
            return
        self._queue.append(request)
        if not self._busy:
            self._begin_next()

    def _begin_next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            self._begin(self._queue.popleft(), doubled=False)

    def _begin(self, request: _Append, *, doubled: bool) -> None:
        """Take a position and commit after a while."""
        server, faults = self._server, self._server.faults
        position, _ = server.take_position()
        # As in a database, the stamp is that of the insert, not of the commit.
        row = JournalRow(position, server.clock.now_ms(), request.body)
        duration = faults.slow_ms if server.chance(faults.slow_permille) else faults.commit_ms
        when_s = asyncio.get_running_loop().time() + server.seconds(duration)
        server.at(when_s, self._commit, request, row, doubled)

    def _commit(self, request: _Append, row: JournalRow, doubled: bool) -> None:  # noqa: FBT001
        server, faults = self._server, self._server.faults
        if request.generation != self._generation:
            # No caller waits for it any more. It may be committed all the same, also after it was
            # sent again over a new connection; a server that went away has rolled it back.
            lives = request.server_life == server.life and server.chance(500)
            server.end_transaction(row.position, row if lives else None)
            return
        if server.chance(faults.gap_permille):
            server.end_transaction(row.position, None)
            self._break_appends("the append was rolled back")
            return
        if not server.end_transaction(row.position, row):
            # Sealed while it was on its way: it takes a new position.
            self._begin(request, doubled=doubled)
            return
        if not doubled and server.chance(faults.doubled_permille):
            self._begin(request, doubled=True)
            return
        if server.chance(faults.lost_reply_permille):
            self._break_appends("the reply was lost")
            return
        self._reply_s = self._in_order(self._reply_s)
        server.at(self._reply_s, self._answer, request, row.position)
        self._begin_next()

    def _answer(self, request: _Append, position: int) -> None:
        if self.cut:
            self._break_appends("the reply was lost")
        if request.generation != self._generation:
            return
        self._unanswered.remove(request)
        if not request.reply.done():
            request.reply.set_result(position)

    async def _ask(self, operation: str, work: Callable[[], Awaitable[T]]) -> T:
        """One call and its reply. It is carried out whatever becomes of the caller."""
        self._check(operation)
        if self._reads_broken and operation.startswith("read"):
            self._reads_broken = False
            raise _lost(operation, "the connection was lost")
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.add(reply)
        self._server.serve(self._serve(operation, work, reply))
        try:
            return await reply
        finally:
            self._asked.discard(reply)

    async def _serve(
        self, operation: str, work: Callable[[], Awaitable[T]], reply: "asyncio.Future[T]"
    ) -> None:
        try:
            await self._server.travel()
            self._check(operation)
            if self._server.chance(self._server.faults.lost_read_permille):
                raise _lost(operation, "the message was lost")
            result = await work()
            await self._server.travel()
            self._check(operation)
        except PenstockError as error:
            _fail(reply, error)
        else:
            if not reply.done():
                reply.set_result(result)

    def _in_order(self, before_s: float) -> float:
        """Return when a message sent now arrives: after the one that arrives at `before_s`."""
        now_s = asyncio.get_running_loop().time()
        # Timers of one time may swap.
        return max(before_s + _TICK_S, now_s + self._server.seconds(self._server.faults.delay_ms))

    def _hint_lost(self) -> bool:
        return self._server.chance(self._server.faults.lost_hint_permille)

    def _check(self, operation: str) -> None:
        if self._closed:
            raise _lost(operation, "the connection is closed")
        if self._server.away or self.cut:
            raise _lost(operation, "the journal is away")


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: "asyncio.Future[Any]", error: PenstockError) -> None:
    if not future.done():
        future.set_exception(error)
        # The event loop's handler needn't hear of a caller that has gone away.
        future.exception()


def _lost(operation: str, detail: str) -> RetryableError:
    return RetryableError(operation, "journal", detail)
