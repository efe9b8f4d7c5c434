"""The decision log: what was asked and answered, as lines of JSON in a file.

A call costs a place in a queue. A thread writes what the queue has, and opens the file for
each write, so that whatever rotates it may rename it. What finds the queue full is counted, and
left out: an answer never waits for the log.
"""

import asyncio
import json
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.authz.service.call import Answer, Call
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 10_000
LINES_MAX: Final = 1_000
"""Lines of one write."""
ANSWER_BYTES_MAX: Final = 64 << 10
"""The log has the size alone of a longer answer."""
REDACTED: Final = "[redacted]"
_PARTS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """The file of decisions, their share, and the fields that are left out.

    Args:
        share: of the decisions that are logged, from 0 to 1, drawn by lot.
        redacted: fields of requests whose values are left out; "answer" is the answer's.
    """

    path: Path
    share: float = 1.0
    redacted: frozenset[str] = frozenset()


class Decision(msgspec.Struct, frozen=True):
    """One question and its answer."""

    time_ms: int
    environment: str
    key: str
    call: Call
    answer: Answer
    token: str
    policy_version: int
    microseconds: int


class DecisionLog:
    """One process's. Event loop only, but for its thread.

    Raises (by `open`):
        OSError: the file can't be written.
    """

    def __init__(self, settings: DecisionSettings, *, clock: Clock, random: Random) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self._bound = round(settings.share * _PARTS)
        self._queue: queue.SimpleQueue[Decision | None] = queue.SimpleQueue()
        self.logged_count = 0
        """Lines that are in the file."""
        self.dropped_count = 0
        """Decisions that found the queue full, or could not be written."""
        with settings.path.open("ab"):
            pass
        self._thread = threading.Thread(target=self._run, name="authz-decisions", daemon=True)
        self._thread.start()

    def follow(
        self,
        found: "Answer | Awaitable[Answer]",
        call: Call,
        environment: str,
        key: str,
        state: "Callable[[], tuple[str, int]]",
        since_s: float,
    ) -> "Answer | Awaitable[Answer]":
        """Log a call once it is answered; return what it is answered by.

        Args:
            state: gives the token and the policy's version of the answer.
            since_s: monotonic time at which it came.
        """
        if isinstance(found, Answer):
            self._note(found, call, environment, key, state, since_s)
            return found
        # Asked already, by a thread or a wait: what is left is to take its answer.
        task: asyncio.Future[Answer] = asyncio.ensure_future(found)

        def done(ended: "asyncio.Future[Answer]") -> None:
            if not ended.cancelled() and ended.exception() is None:
                self._note(ended.result(), call, environment, key, state, since_s)

        task.add_done_callback(done)
        return task

    def close(self) -> None:
        """Write what waits, and end. Blocking."""
        self._queue.put(None)
        self._thread.join()

    # -- inside ----------------------------------------------------------------------------------

    def _note(
        self,
        answer: Answer,
        call: Call,
        environment: str,
        key: str,
        state: "Callable[[], tuple[str, int]]",
        since_s: float,
    ) -> None:
        # What is refused decides nothing.
        if answer.status != 200 or (
            self._bound < _PARTS and self._random.below(_PARTS) >= self._bound
        ):
            return
        if self._queue.qsize() >= QUEUE_MAX:
            self.dropped_count += 1
            return
        token, version = state()
        microseconds = round((self._clock.monotonic_s() - since_s) * 1_000_000)
        now_ms = self._clock.now_ms()
        self._queue.put(
            Decision(now_ms, environment, key, call, answer, token, version, microseconds)
        )

    def _run(self) -> None:
        while True:
            decisions = [self._queue.get()]
            while len(decisions) < LINES_MAX and decisions[-1] is not None:
                try:
                    decisions.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            is_last = decisions[-1] is None
            found = [each for each in decisions if each is not None]
            try:
                with self._settings.path.open("ab") as file:
                    file.write(b"".join(line(each, self._settings.redacted) for each in found))
                self.logged_count += len(found)
            except OSError as error:
                self.dropped_count += len(found)
                heard(Cause.AUTHZ_DECISIONS, error, logger, f"{len(found)} decisions aren't logged")
            if is_last:
                return


def line(decision: Decision, redacted: frozenset[str]) -> bytes:
    """Give a decision's line. Pure."""
    request: dict[str, Any] = msgspec.json.decode(decision.call.body)
    for name in redacted & request.keys():
        request[name] = REDACTED
    answer: Any = REDACTED
    if "answer" not in redacted:
        size = len(decision.answer.body)
        answer = {"bytes": size}
        if size <= ANSWER_BYTES_MAX:
            answer = msgspec.json.decode(decision.answer.body)
    content = {
        "time_ms": decision.time_ms,
        "environment": decision.environment,
        "key": decision.key,
        "call": decision.call.path.rpartition("/")[2],
        "request_id": decision.call.headers.get("x-request-id"),
        "request": request,
        "answer": answer,
        "token": decision.token,
        "policy_version": decision.policy_version,
        "microseconds": decision.microseconds,
    }
    # Each character that isn't ASCII is escaped, so that no reader takes one for a line's end.
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


async def close(log: DecisionLog) -> None:
    """Close a log from the event loop."""
    await asyncio.get_running_loop().run_in_executor(None, log.close)
