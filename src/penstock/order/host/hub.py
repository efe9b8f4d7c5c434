"""The writer's end: takes entries of the other workers, and tells them what is applied."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from penstock.model.errors import PenstockError
from penstock.order.host.messages import (
    VERSION,
    AppliedChanges,
    AskFlush,
    AskHead,
    EntryApplied,
    EntryRefused,
    Flushed,
    HeadIs,
    Hello,
    RelayEntry,
    Welcome,
    decode_to_writer,
    encode,
)
from penstock.order.host.relaying import RelayProtocol
from penstock.order.host.streams import read_message, send
from penstock.order.port import AppliedEntry, Committer
from penstock.order.protocol import EntryRefusal
from penstock.system import background
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

BEHIND_BYTES_MAX: Final = 64 << 20


CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")


class WorkerHub(Generic[CommandT, AnswerT, ChangeT]):
    """Serves the workers of one data directory. Event loop only.

    Args:
        committer: the writer's own; orders what it is given, in the order of the calls.
        relaying: the functions that the messages take.
        position: of the last entry that was published.
        flush: brings the SQLite file up to all that is applied; gives its position.
        is_clock_doubted: whether nothing may go by age now.
    """

    def __init__(
        self,
        *,
        path: Path,
        cluster_id: str,
        committer: Committer[CommandT, AnswerT],
        relaying: RelayProtocol[CommandT, AnswerT, ChangeT],
        position: Callable[[], int],
        flush: Callable[[], Awaitable[int]],
        is_clock_doubted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path = path
        self._cluster_id = cluster_id
        self._committer = committer
        self._relaying = relaying
        self._pack_changes = relaying.pack_changes
        self._position = position
        self._flush = flush
        self._is_clock_doubted = is_clock_doubted
        self._server: asyncio.Server | None = None
        self._followers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = asyncio.Event()

    async def start(self) -> None:
        """Listen. A socket that a dead writer left is replaced: the directory's lock is ours."""
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        self.path.chmod(0o600)

    async def wait_alone(self, deadline_s: float) -> None:
        """Wait until no worker is connected, at most `deadline_s`: they drain through this one."""
        self._alone.set()
        if self._followers:
            self._alone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alone.wait(), deadline_s)

    async def close(self) -> None:
        """End all connections; idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for writer in list(self._followers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    def publish(self, entry: AppliedEntry[AnswerT, ChangeT], *, hidden_position: int = 0) -> None:
        """Send all workers an applied entry's changes. Call it before the answers are given out.

        Args:
            hidden_position: see `AppliedChanges`.
        """
        if not self._followers:
            return
        message = encode(
            AppliedChanges(
                entry.position,
                entry.time_ms,
                self._pack_changes(entry.outcome.changes),
                hidden_position,
                self._is_clock_doubted(),
            )
        )
        for writer in list(self._followers):
            if writer.transport.get_write_buffer_size() > BEHIND_BYTES_MAX:
                logger.warning("a worker is %d bytes behind: it begins again", BEHIND_BYTES_MAX)
                self._followers.discard(writer)
                writer.transport.abort()
            elif not send(writer, message):
                # It died: the others must hear of the entry all the same.
                self._followers.discard(writer)

    # -- one worker ------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._converse(reader, writer)
        except PenstockError as error:
            heard(Cause.SERVE_WORKER, error, logger, "a worker's connection ends")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._followers.discard(writer)
            writer.transport.abort()
            if not self._followers:
                self._alone.set()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await read_message(reader)
        hello = None if body is None else decode_to_writer(body)
        if not isinstance(hello, Hello) or hello.version != VERSION:
            return
        # From here on the worker hears of everything; the file that it reads is this old at most.
        position = self._position()
        self._followers.add(writer)
        await self._flush()
        send(writer, encode(Welcome(self._cluster_id, position)))
        while (body := await read_message(reader)) is not None:
            match decode_to_writer(body):
                case RelayEntry(token, entry):
                    self._start(partial(self._relay, writer, token, entry))
                case AskHead(token):
                    send(writer, encode(HeadIs(token, self._position())))
                case AskFlush(token):
                    self._start(partial(self._answer_flush, writer, token))
                case other:
                    logger.warning("a worker sent %r in the middle", other)
                    return

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            with contextlib.suppress(ConnectionError):
                await work()

        # Tasks begin in the order in which they are made, so entries are handed on in theirs.
        task = background.start(background.SERVE_WORKER, run)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, writer: asyncio.StreamWriter, token: int, body: bytes) -> None:
        relay = self._relaying.relay(body)
        try:
            (answer,) = await self._committer.commit([relay])
        except PenstockError as error:
            send(writer, encode(EntryRefused(token, str(error))))
            return
        found = self._relaying.relayed(answer)
        if isinstance(found, EntryRefusal):
            send(writer, encode(EntryRefused(token, f"{found.reason}: {found.detail}")))
            return
        answers = msgspec.Raw(self._relaying.encode_answers(found.answers))
        send(writer, encode(EntryApplied(token, self._position(), found.standing, answers)))

    async def _answer_flush(self, writer: asyncio.StreamWriter, token: int) -> None:
        try:
            position = await self._flush()
        except PenstockError as error:
            # No answer: the worker that asked takes the writer for away, and asks again.
            heard(Cause.SERVE_WORKER, error, logger, "the file can't be brought up to date")
            return
        send(writer, encode(Flushed(token, position)))
