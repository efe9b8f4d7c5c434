"""A worker's order: its entries go to the writer, what is applied comes from there.

The state itself is the writer's SQLite file, which this worker reads. Implements
`penstock.order.port.Order`, as `penstock.order.cluster_order.ClusterOrder` does in a
cluster.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from penstock.model.epochs import epoch_floor
from penstock.model.errors import (
    CorruptDataError,
    InDoubtError,
    PenstockError,
    RetryableError,
)
from penstock.order.entry_sender import EntrySender
from penstock.order.host.messages import (
    AppliedChanges,
    AskFlush,
    AskHead,
    EntryApplied,
    EntryRefused,
    Flushed,
    HeadIs,
    Hello,
    RelayEntry,
    ToWorker,
    ToWriter,
    Welcome,
    decode_to_worker,
    encode,
)
from penstock.order.host.relaying import RelayProtocol, SharedState
from penstock.order.host.streams import check_own, read_message, send
from penstock.order.outcome import Outcome, Standing
from penstock.order.port import OnApplied
from penstock.order.protocol import AgentIdentity, CommandProtocol, Levels
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.replica.applied import Applied
from penstock.system import background
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

CONNECT: Final = Backoff(first_s=0.02, most_s=0.2)
"""Between attempts to reach the writer: it is on this host, and back within a second mostly."""
SEND_AGAIN: Final = Backoff(first_s=0.02, most_s=0.5)
CONFIRM_PAUSE_S: Final = 0.5
COMMIT_TIMEOUT_S: Final = 30.0
CONFIRM_TIMEOUT_S: Final = 5.0
_TOKEN_BYTES: Final = 16
_AWAY: Final = "the worker that writes the journal is away"

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")
T = TypeVar("T")


class _MissedError(RetryableError):
    """An entry's changes didn't come."""


class HostOrder(Generic[CommandT, AnswerT, ChangeT]):
    """One worker's end of the order. Event loop only: `open`, then `start`, at last `close`.

    Args:
        state: the shared file, which is there once `open` has returned.
        levels: those of that state, as of the last `load_levels`.
        protocol: the functions of the commands and answers.
        relaying: the functions that the messages take.
    """

    def __init__(
        self,
        *,
        path: Path,
        state: SharedState,
        levels: Levels[CommandT, ChangeT],
        protocol: CommandProtocol[CommandT, AnswerT],
        relaying: RelayProtocol[CommandT, AnswerT, ChangeT],
        identity: AgentIdentity,
        clock: Clock,
        random: Random,
    ) -> None:
        self._path = path
        self._state = state
        self._levels = levels
        self._protocol = protocol
        self._relaying = relaying
        self._key_of = protocol.key_of
        self._unpack_changes = relaying.unpack_changes
        self._identity = identity
        self._clock = clock
        self._random = random
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[ToWorker]] = {}
        self._on_applied: OnApplied[AnswerT, ChangeT] = lambda _: None
        self._on_answered: OnApplied[AnswerT, ChangeT] = lambda _: None
        self._on_reset: Callable[[], int] = lambda: 0
        self._on_stopped: Callable[[PenstockError], None] = lambda _: None
        self._following: asyncio.Task[None] | None = None
        self._confirming: asyncio.Task[None] | None = None
        self._sender: EntrySender[CommandT, AnswerT] | None = None
        self.agent_id = identity.agent_id
        self.cluster_id = ""
        self.epoch = 0
        self.position = 0
        self.time_ms = 0
        self.is_clock_doubted = False
        """Whether nothing may go by age now: the writer knows more of its clock's past."""
        self._hidden_position = 0
        self.head_confirmed_s = clock.monotonic_s()
        self.answering_since_s: float | None = None

    async def open(self) -> None:
        """Connect, and wait until the file holds what the writer has applied."""
        await self._connect()

    async def start(
        self,
        *,
        on_applied: OnApplied[AnswerT, ChangeT],
        on_reset: Callable[[], int],
        on_stopped: Callable[[PenstockError], None],
        on_answered: OnApplied[AnswerT, ChangeT] = lambda _: None,
    ) -> None:
        """Follow, and open an epoch of this agent.

        Args:
            on_applied, on_answered: see `penstock.order.port`. What they get has no answers.
            on_reset: called after the writer was away: loads the view again from the file and
                gives its position. Called once here, too.
            on_stopped: called once when this agent's epoch is over.
        """
        self._on_applied, self._on_answered = on_applied, on_answered
        self._on_reset, self._on_stopped = on_reset, on_stopped
        self._reset()
        self._following = background.start(background.FOLLOW_JOURNAL, self._follow_or_end)
        self._confirming = background.start(background.CONFIRM_HEAD, self._confirm_now_and_then)
        await self._register()

    # -- the port --------------------------------------------------------------------------------

    def submit(self, commands: Sequence[CommandT]) -> asyncio.Future[list[AnswerT]]:
        """See `Order`."""
        assert self._sender is not None
        return self._sender.submit(commands).future

    async def commit(
        self, commands: Sequence[CommandT], *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> list[AnswerT]:
        """See `Committer`."""
        assert self._sender is not None
        call = self._sender.submit(commands)
        done, _ = await asyncio.wait([call.future], timeout=timeout_s)
        if done:
            return call.future.result()
        if self._sender.withdraw(call):
            raise RetryableError("commit", f"agent {self.agent_id}", _AWAY)
        raise InDoubtError("commit", f"agent {self.agent_id}", _AWAY)

    async def end_epoch(self, timeout_s: float) -> None:
        """See `EntrySender.end_epoch`."""
        if self._sender is not None:
            await self._sender.end_epoch(timeout_s)

    @property
    def shows_answers(self) -> bool:
        """See `Order`: whether the file holds them."""
        if self._hidden_position and self._state.position() >= self._hidden_position:
            self._hidden_position = 0
        return not self._hidden_position

    async def confirm_head(self) -> None:
        """See `penstock.order.port.Heads`."""
        began_s = self._clock.monotonic_s()
        await self._ask(AskHead, HeadIs)
        self.head_confirmed_s = max(self.head_confirmed_s, began_s)

    async def flush(self) -> int:
        """Wait until the file holds all that is applied; its position.

        Raises:
            RetryableError: the writer is away.
        """
        return (await self._ask(AskFlush, Flushed)).position

    async def close(self) -> None:
        """End; idempotent."""
        if self._sender is not None:
            self._sender.fail(RetryableError("commit", f"agent {self.agent_id}", "it was closed"))
            await self._sender.close()
        tasks = [task for task in (self._following, self._confirming) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._following = self._confirming = None
        self._disconnect()

    # -- the journal's end, as `EntrySender` wants it ----------------------------------------------

    async def append(self, body: bytes) -> int:
        """Hand an entry to the writer; its position, once it is applied and known here.

        Raises:
            RetryableError: unknown whether it was applied.
        """
        token, future = self._expect()
        self._send(RelayEntry(token, body), token)
        answer = await future
        if isinstance(answer, EntryRefused):
            raise RetryableError("append", "journal", answer.text)
        assert isinstance(answer, EntryApplied), answer
        assert self._sender is not None
        answers = self._relaying.decode_answers(answer.answers)
        outcome: Outcome[AnswerT, ChangeT] = Outcome(Standing(answer.standing), answers, [])
        entry = Applied(answer.position, self.time_ms, outcome, body)
        self._sender.settle(self._key_of(body).n, entry)
        return answer.position

    # -- inside ----------------------------------------------------------------------------------

    async def _register(self) -> None:
        floor = epoch_floor(self._clock.now_ms())
        self.epoch = self._state.next_epoch(self.agent_id, floor=floor)
        self._sender = EntrySender(
            self,
            agent=self.agent_id,
            epoch=self.epoch,
            clock=self._clock,
            protocol=self._protocol,
            levels=self._levels,
            position=lambda: self.position,
            appended=lambda: None,
            stopped=self._end,
            backoff=SEND_AGAIN,
        )
        token = self._random.token_bytes(_TOKEN_BYTES)
        await self.commit(self._protocol.opening(self._identity, "", token))

    def _reset(self) -> None:
        """Begin with what the file holds."""
        self.position = self._on_reset()
        self._state.load_levels()

    def _end(self, error: PenstockError) -> None:
        self._on_stopped(error)

    async def _confirm_now_and_then(self) -> None:
        """Know how old this worker's state is at most, whether or not anybody asks."""
        while True:
            try:
                await self.confirm_head()
            except RetryableError as error:
                heard(Cause.CONFIRM_HEAD, error, logger, "nothing tells how old this state is")
            await wait(CONFIRM_PAUSE_S)

    async def _connect(self) -> None:
        """Until it succeeds."""
        failures = 0
        while True:
            failures += 1
            try:
                check_own(self._path)
                reader, writer = await asyncio.open_unix_connection(str(self._path))
            except OSError as error:
                heard(Cause.REACH_WRITER, error, logger, "connecting again to worker 0")
                await wait(CONNECT.after(failures))
                continue
            send(writer, encode(Hello()))
            early: list[AppliedChanges] = []
            welcome = await self._read_welcome(reader, early)
            if welcome is None:
                writer.transport.abort()
                await wait(CONNECT.after(failures))
                continue
            self.cluster_id = welcome.cluster_id
            self._reader, self._writer = reader, writer
            self._early = early
            self.answering_since_s = self._clock.monotonic_s()
            return

    async def _read_welcome(
        self, reader: asyncio.StreamReader, early: list[AppliedChanges]
    ) -> Welcome | None:
        """Read the welcome; what is applied while the writer flushes its file comes first."""
        while (body := await read_message(reader)) is not None:
            message = decode_to_worker(body)
            if isinstance(message, Welcome):
                return message
            if isinstance(message, AppliedChanges):
                early.append(message)
        return None

    async def _follow_or_end(self) -> None:
        """Follow, or end: a worker that doesn't follow must not go on without what is new."""
        try:
            await self._follow()
        except PenstockError as error:
            self._on_stopped(error)
        except Exception as error:
            logger.exception("following the journal failed")
            self._on_stopped(CorruptDataError("follow", "journal", repr(error)))

    async def _follow(self) -> None:
        while True:
            assert self._reader is not None
            try:
                await self._follow_connection(self._reader)
                logger.warning("%s; connecting again", _AWAY)
            except _MissedError as error:
                # Nothing may be known but what is dense: it begins again.
                heard(Cause.REACH_WRITER, error, logger, "connecting again to worker 0")
            self._disconnect()
            await self._connect()
            self._reset()
            if self._sender is not None:
                self._sender.pump()

    async def _follow_connection(self, reader: asyncio.StreamReader) -> None:
        """Until it ends. Raises: _MissedError."""
        early, self._early = self._early, []
        for message in early:
            self._apply(message)
        while (body := await read_message(reader)) is not None:
            self._take(decode_to_worker(body))

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, AppliedChanges):
            self._apply(message)
        elif isinstance(message, EntryApplied | EntryRefused | HeadIs | Flushed):
            future = self._waiting.pop(message.token, None)
            if future is not None and not future.done():
                future.set_result(message)

    def _apply(self, message: AppliedChanges) -> None:
        self._hidden_position = max(self._hidden_position, message.hidden_position)
        if message.position <= self.position:
            return  # the view that was loaded from the file has it
        if message.position != self.position + 1:
            raise _MissedError(
                "follow", "journal", f"position {message.position} came after {self.position}"
            )
        self.position, self.time_ms = message.position, message.time_ms
        self.is_clock_doubted = message.is_clock_doubted
        changes = self._unpack_changes(message.changes)
        if not self._levels.is_highest:
            self._levels.follow(changes)
        outcome: Outcome[AnswerT, ChangeT] = Outcome(Standing.APPLIED, [], changes)
        applied = [Applied(message.position, message.time_ms, outcome)]
        self._on_applied(applied)
        # The answer, where it is this worker's entry, comes as the next message.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._on_answered, applied)

    def _disconnect(self) -> None:
        self.answering_since_s = None
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(RetryableError("ask", "journal", _AWAY))
                future.exception()

    def _expect(self) -> "tuple[int, asyncio.Future[ToWorker]]":
        token = next(self._tokens)
        future: asyncio.Future[ToWorker] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        return token, future

    def _send(self, message: ToWriter, token: int) -> None:
        if self._writer is None:
            self._waiting.pop(token, None)
            raise RetryableError("ask", "journal", _AWAY)
        if not send(self._writer, encode(message)):
            self._waiting.pop(token, None)
            raise RetryableError("ask", "journal", _AWAY)

    async def _ask(self, question: type[AskHead] | type[AskFlush], answer: type[T]) -> T:
        token, future = self._expect()
        self._send(question(token), token)
        try:
            found = await asyncio.wait_for(future, CONFIRM_TIMEOUT_S)
        except TimeoutError:
            raise RetryableError("ask", "journal", _AWAY) from None
        finally:
            self._waiting.pop(token, None)
        assert isinstance(found, answer), found
        return found
