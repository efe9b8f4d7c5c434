"""Work of the server itself, which no caller waits for: tasks of the event loop, and periodic jobs.

All of it begins here, or reports here: a failure is counted, has a log line and a place in
`/v1/status`, and work that the server can't do without takes it out of readiness. What a caller
awaits is not background work: the caller has the error.

A coroutine is wrapped, and no callback is added: a task takes as many turns of the loop as it
would alone, so that a simulated run stays the one of its seed.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.model.errors import PenstockError
from penstock.system.heard import say_seldom, text_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind of background work; its name is a label of metrics.

    `lasts`: it goes on as long as the server, so that an end is a failure too.
    `matters`: a server that can't do it isn't ready.
    """

    name: str
    lasts: bool = False
    matters: bool = False


UPLOADER: Final = Work(name="uploader", lasts=True, matters=True)
RELEASE: Final = Work(name="release of WAL files")
FLUSH: Final = Work(name="flush", matters=True)
OPEN_WAL: Final = Work(name="open WAL", matters=True)
CLAIM_WAL: Final = Work(name="claim WAL again", matters=True)
TAKEOVER: Final = Work(name="takeover of a WAL")
DAMAGED_FRAMES: Final = Work(name="look at damaged WAL frames")
NOTED_RANGES: Final = Work(name="read noted ranges")
CATCH_UP: Final = Work(name="bring the database up to date")
FOLLOW_JOURNAL: Final = Work(name="follow the journal", lasts=True, matters=True)
CONFIRM_HEAD: Final = Work(name="confirm the journal's head", lasts=True, matters=True)
APPEND_ENTRY: Final = Work(name="append to the journal")
JOURNAL_CONNECTION: Final = Work(name="connect to the journal")
JOURNAL_HINTS: Final = Work(name="listen for hints of the journal")
MEMBERSHIP: Final = Work(name="membership")
CUT_OFF: Final = Work(name="ask others whether the journal is away")
CLAIM_SHARDS: Final = Work(name="claim shards of groups", matters=True)
GROUP_JOURNAL: Final = Work(name="journal of groups", matters=True)
CONFIRM_ANSWER: Final = Work(name="confirm an answer")
SERVE_WORKER: Final = Work(name="answer a worker")
HTTP: Final = Work(name="HTTP port", matters=True)
WATCH_POLICY: Final = Work(name="watch a policy's file", lasts=True)
SERVICE_SNAPSHOTS: Final = Work(name="take snapshots of a service", lasts=True)
COMPARE_TABLES: Final = Work(name="compare the tables of a service's instances")
COMPACTION: Final = Work(name="compaction")

KINDS: Final = (
    UPLOADER,
    RELEASE,
    FLUSH,
    OPEN_WAL,
    CLAIM_WAL,
    TAKEOVER,
    DAMAGED_FRAMES,
    NOTED_RANGES,
    CATCH_UP,
    FOLLOW_JOURNAL,
    CONFIRM_HEAD,
    APPEND_ENTRY,
    JOURNAL_CONNECTION,
    JOURNAL_HINTS,
    MEMBERSHIP,
    CUT_OFF,
    CLAIM_SHARDS,
    GROUP_JOURNAL,
    CONFIRM_ANSWER,
    COMPACTION,
    SERVE_WORKER,
    HTTP,
    WATCH_POLICY,
    SERVICE_SNAPSHOTS,
    COMPARE_TABLES,
)


class _Record:
    """The failures of one kind of work."""

    __slots__ = ("failure_count", "is_failing", "last_error", "takes_readiness", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.failure_count = 0
        self.last_error = ""
        self.is_failing = False
        """The newest run of it failed."""
        self.takes_readiness = False
        """It was a bug, and not what goes on around the program; or the end of what should last."""


class Background:
    """Counts and logs the failures of one event loop's background work. Event loop only."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {work.name: 0 for work in KINDS}
        """Failures by name, each from the start."""
        self._records: dict[str, _Record] = {}

    def expect(self, work: Work) -> None:
        """There is such work: its failures are counted from 0."""
        self.counts.setdefault(work.name, 0)

    def failed(
        self, work: Work, error: BaseException | str, then: str = "", *, is_over: bool = False
    ) -> None:
        """One run of it failed.

        Args:
            then: how it goes on, for the log line.
            is_over: it doesn't go on, though it should last.
        """
        self.expect(work)
        self.counts[work.name] += 1
        record = self._records.setdefault(work.name, _Record(work))
        record.failure_count += 1
        record.last_error = text_of(error)
        record.is_failing = True
        record.takes_readiness = is_over or not isinstance(error, PenstockError)
        level = logging.ERROR if record.takes_readiness else logging.WARNING
        kind = f"background {work.name} {type(error).__name__}"
        say_seldom(kind, error, logger, f"{work.name} failed{then}", level)

    def succeeded(self, work: Work) -> None:
        """One run of it did not fail."""
        if self._records:
            record = self._records.get(work.name)
            if record is not None:
                record.is_failing = False

    def status(self) -> Mapping[str, object]:
        """Return what has failed since the start, by name, for /v1/status."""
        return {
            name: {
                "failures": record.failure_count,
                "failing": record.is_failing,
                "last_error": record.last_error,
            }
            for name, record in sorted(self._records.items())
        }

    def not_ready(self) -> str:
        """Work that matters and that ended, or whose last run met a bug; "": none.

        What fails by the world around (a store that is away) is tried again, and says so in
        `status`: readiness that followed it would take all agents out at once.
        """
        for record in self._records.values():
            if record.is_failing and record.work.matters and record.takes_readiness:
                return f"{record.work.name} failed: {record.last_error}"
        return ""


_BY_LOOP: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Background]" = (
    weakref.WeakKeyDictionary()
)


def of_loop() -> Background:
    """The running loop's: a server has a loop of its own."""
    loop = asyncio.get_running_loop()
    found = _BY_LOOP.get(loop)
    if found is None:
        found = _BY_LOOP[loop] = Background()
    return found


def start(work: Work, run: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
    """Begin a task that no caller waits for; its owner cancels it at the end.

    Args:
        run: a function, so that a task that is cancelled before its first step leaves no coroutine
            that was never awaited.
    """
    return asyncio.get_running_loop().create_task(_watched(work, run), name=work.name)


async def _watched(work: Work, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        result = await run()
    except Exception as error:
        of_loop().failed(work, error, ", and has ended" * work.lasts, is_over=work.lasts)
        raise
    background = of_loop()
    if work.lasts:
        background.failed(work, "it ended by itself", is_over=True)
    else:
        background.succeeded(work)
    return result
