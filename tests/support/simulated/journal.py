"""A journal in memory that many agents share and that a seed makes fail.

`SimulatedJournal` is the server; `connect` gives one agent's end, which implements
`penstock.ports.journal.Journal`. Time passes by the event loop's timers and stamps come from an
injected clock, so that under a virtual loop a seed decides everything. What it may do, as real
ones do: delay, fail before an append or after it (the reply is lost), carry an append out twice,
show rows out of order, leave gaps, go away, crash (gaps at the end), and come back older.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.ports.journal import JournalHead, JournalRow
from penstock.ports.random import Random
from penstock.replica.beginning import RESTORED_POSITION, Beginning, encode_beginning

T = TypeVar("T")

TRIM_ROWS_MAX: Final = 1_000
_CRASH_GAP_MAX: Final = 33
"""PostgreSQL logs a sequence 32 values ahead: after a crash it goes on behind them."""
_TICK_S: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFaults:
    """Probabilities of faults, in thousandths of calls, and how long calls take.

    The default is a journal that answers at the loop's next turn and never fails.
    """

    delay_ms: tuple[int, int] = (0, 0)
    """One way, between an agent and the journal; each message takes its own, in order."""
    commit_ms: tuple[int, int] = (0, 0)
    """From taking a position to the row's being visible: rows of several agents swap by it."""
    slow_permille: int = 0
    """Appends that take `slow_ms` to commit, so that their gap is sealed or waited for."""
    slow_ms: tuple[int, int] = (100, 2_000)
    lost_request_permille: int = 0
    """Appends that never arrive; the connection is lost."""
    lost_reply_permille: int = 0
    """Appends that are carried out, but the connection is lost before the reply."""
    gap_permille: int = 0
    """Appends that take a position and roll back; the connection is lost."""
    doubled_permille: int = 0
    """Appends that are carried out twice."""
    lost_read_permille: int = 0
    """Reads, heads and seals that fail."""
    lost_hint_permille: int = 0
    """Waits that don't notice rows."""


class SimulatedJournal:
    """The server. One event loop."""

    def __init__(
        self,
        *,
        random: Random,
        clock: Clock,
        faults: JournalFaults | None = None,
        cluster_id: str = "simulated-cluster-0001",
    ) -> None:
        self.cluster_id = cluster_id
        self.faults = faults or JournalFaults()
        self.random = random
        self.clock = clock
        self.away = False
        self.first = 1
        """Rows below were trimmed."""
        self.life = 0
        """Grows when it goes away, which rolls back what is open."""
        self._rows: dict[int, JournalRow] = {}
        self._head = 0
        self._next = 1
        self._held: dict[int, asyncio.Future[None]] = {}
        """Positions that open transactions have taken."""
        self._connections: list[SimulatedConnection] = []
        # What the server does belongs to it: a paused or killed agent stops nothing of it.
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, beginning: Beginning) -> None:
        """Be the journal of a restored cluster, before there is any row."""
        assert not self._rows
        body = encode_beginning(beginning)
        self._show(JournalRow(RESTORED_POSITION, self.clock.now_ms(), body))
        self.first = RESTORED_POSITION + 1

    def connect(self) -> "SimulatedConnection":
        """One agent's end; it reconnects by itself."""
        connection = SimulatedConnection(self)
        self._connections.append(connection)
        return connection

    def rows(self) -> list[JournalRow]:
        """All that is visible, by position."""
        return [self._rows[position] for position in sorted(self._rows)]

    @property
    def head(self) -> int:
        """The greatest visible position."""
        return self._head

    # -- faults --------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Refuse everything from now on. Open transactions roll back and leave gaps."""
        self.away = True
        self.life += 1
        for connection in self._connections:
            connection.break_off("the journal went away")

    def come_back(self) -> None:
        """Serve again."""
        self.away = False

    def crash(self) -> None:
        """Break all connections, and leave a gap such as a database's sequence does."""
        was_away = self.away
        self.go_away()
        self._next += self.random.below(_CRASH_GAP_MAX)
        self.away = was_away

    def come_back_older(self, position: int) -> None:
        """Serve again as of `position`: what was appended past it is lost (which must not be)."""
        self.go_away()
        for lost in [found for found in self._rows if found > position]:
            del self._rows[lost]
        self._head = max(self._rows, default=0)
        self._next = position + 1
        self.away = False

    def chance(self, permille: int) -> bool:
        """Whether it happens this time."""
        return permille > 0 and self.random.below(1000) < permille

    def seconds(self, between_ms: tuple[int, int]) -> float:
        """A duration out of a range."""
        low, high = between_ms
        return (low if low == high else low + self.random.below(high - low + 1)) / 1000

    # -- what connections ask of it --------------------------------------------------------------

    def at(self, when_s: float, work: Callable[..., None], *args: Any) -> None:
        """Do something on the server's side, at a time of the loop."""
        asyncio.get_running_loop().call_at(when_s, work, *args, context=self._context)

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the server's side, to its end."""
        task = asyncio.get_running_loop().create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=self._context)

    async def travel(self) -> None:
        """One message's way."""
        delay_s = self.seconds(self.faults.delay_ms)
        if delay_s:
            arrived = asyncio.get_running_loop().create_future()
            self.at(asyncio.get_running_loop().time() + delay_s, arrived.set_result, None)
            await arrived

    def take_position(self) -> tuple[int, asyncio.Future[None]]:
        """The next position for a transaction; the future is set when that has ended."""
        position = self._next
        self._next += 1
        ended = asyncio.get_running_loop().create_future()
        self._held[position] = ended
        return position, ended

    def end_transaction(self, position: int, row: JournalRow | None) -> bool:
        """Commit a row at its position, or roll back (None).

        Returns:
            False if the position was sealed meanwhile: the row needs another one.
        """
        ended = self._held.pop(position, None)
        if ended is not None and not ended.done():
            ended.set_result(None)
        if row is None:
            return True
        if position in self._rows or position < self.first:
            return False
        self._show(row)
        return True

    def holder(self, position: int) -> asyncio.Future[None] | None:
        """Return the future that a seal of this position waits for."""
        return self._held.get(position)

    def show_seal(self, position: int) -> None:
        """Fill a gap, unless it is filled or trimmed."""
        if position not in self._rows and position >= self.first:
            self._show(JournalRow(position, self.clock.now_ms(), b""))

    def visible(self, after: int, limit: int) -> list[JournalRow]:
        """Rows past a position."""
        rows: list[JournalRow] = []
        for position in range(max(after, self.first - 1) + 1, self._head + 1):
            row = self._rows.get(position)
            if row is not None:
                rows.append(row)
                if len(rows) == limit:
                    break
        return rows

    def row(self, position: int) -> JournalRow | None:
        """The row at a position."""
        return self._rows.get(position)

    def trim(self, up_to: int) -> int:
        """Delete rows, a bounded number of them, never the last."""
        doomed = sorted(found for found in self._rows if found <= min(up_to, self._head - 1))
        doomed = doomed[:TRIM_ROWS_MAX]
        for position in doomed:
            del self._rows[position]
            self.first = position + 1
        return len(doomed)

    def forget(self, connection: "SimulatedConnection") -> None:
        """A connection was closed."""
        if connection in self._connections:
            self._connections.remove(connection)

    def _show(self, row: JournalRow) -> None:
        self._rows[row.position] = row
        self._head = max(self._head, row.position)
        for connection in self._connections:
            connection.notice(self._head)


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

    def __init__(self, server: SimulatedJournal) -> None:
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

    @property
    def cluster_id(self) -> str:
        """The id that the journal's first user gave it."""
        return self._server.cluster_id

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

    def _commit(self, request: _Append, row: JournalRow, doubled: bool) -> None:
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
