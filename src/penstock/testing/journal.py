"""A journal in memory that many agents share and that a seed makes fail.

`SimulatedJournal` is the server; `connect` gives one agent's end, which implements
`penstock.ports.journal.Journal`. Time passes by the event loop's timers and stamps come from an
injected clock, so that under a virtual loop a seed decides everything. What it may do, as real
ones do: delay, fail before an append or after it (the reply is lost), carry an append out twice,
show rows out of order, leave gaps, go away, crash (gaps at the end), and come back older.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final

from penstock.ports.clock import Clock
from penstock.ports.journal import JournalRow
from penstock.ports.random import Random
from penstock.replica.beginning import RESTORED_POSITION, Beginning, encode_beginning
from penstock.testing.journal_connection import SimulatedConnection

TRIM_ROWS_MAX: Final = 1_000
_CRASH_GAP_MAX: Final = 33
"""PostgreSQL logs a sequence 32 values ahead: after a crash it goes on behind them."""


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

    def connect(self) -> SimulatedConnection:
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

    def forget(self, connection: SimulatedConnection) -> None:
        """A connection was closed."""
        if connection in self._connections:
            self._connections.remove(connection)

    def _show(self, row: JournalRow) -> None:
        self._rows[row.position] = row
        self._head = max(self._head, row.position)
        for connection in self._connections:
            connection.notice(self._head)
