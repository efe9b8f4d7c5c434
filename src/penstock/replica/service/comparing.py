"""Compares this instance's tables with the other instances', now and then.

An entry asks for digests of the state at its own position; each instance answers by an entry of its
own, and each judges for itself, by the same rule, once the answers had time to come. The instance
that differs from the majority ends, and makes its database again at its next start. Where there is
no majority it is not known which are right: all of them refuse submits, and go on answering reads.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.replica.difference import (
    Difference,
    forget_difference,
    read_difference,
    write_difference,
)
from penstock.replica.digest_pins import DigestPins
from penstock.replica.dump import DIGEST_VERSION
from penstock.replica.pinned import digest_pinned
from penstock.replica.service import entries
from penstock.replica.service.entries import Digest, Outcome
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

ROUNDS_KEPT: Final = 8


class Verdict(Enum):
    """The answers to a round, as one instance judges them."""

    EQUAL = "equal"
    OTHERS_DIFFER = "others differ"
    DIFFERS = "this one differs"
    UNDECIDED = "there is no majority"


def judge(mine: Digest, answers: list[Digest]) -> tuple[Verdict, list[str]]:
    """Judge a round; name the tables that differ. Pure.

    Args:
        answers: of all instances, this one's too; those of other versions aren't compared.
    """
    alike = [
        each.tables
        for each in answers
        if (each.digest_version, each.version) == (mine.digest_version, mine.version)
    ]
    counts = Counter(tuple(sorted(tables.items())) for tables in alike)
    if len(counts) < 2:
        return Verdict.EQUAL, []
    (most, count), *_ = counts.most_common(1)
    own = tuple(sorted(mine.tables.items()))
    names = {
        name
        for tables in alike
        for name in tables.keys() | mine.tables.keys()
        if tables.get(name) != mine.tables.get(name)
    }
    if 2 * count <= len(alike):
        return Verdict.UNDECIDED, sorted(names)
    if most == own:
        return Verdict.OTHERS_DIFFER, sorted(names)
    right = dict(most)
    differing = {
        name
        for name in right.keys() | mine.tables.keys()
        if right.get(name) != mine.tables.get(name)
    }
    return Verdict.DIFFERS, sorted(differing)


class Comparing:
    """One instance's part. Event loop only.

    Args:
        path: of the database.
        version: of the machine.
        interval_s: between rounds.
        settle_s: how long the answers of others have time to come.
        submit: submits an item of the library's own.
        failed: is called when this instance is wrong.
    """

    def __init__(
        self,
        path: Path,
        instance: int,
        *,
        version: int,
        interval_s: float,
        settle_s: float,
        executor: Executor,
        clock: Clock,
        submit: Callable[[str, object], Awaitable[Outcome]],
        failed: Callable[[PenstockError], None],
    ) -> None:
        self._path = path
        self._instance = instance
        self._version = version
        self._interval_s = interval_s
        self._settle_s = settle_s
        self._executor = executor
        self._clock = clock
        self._submit = submit
        self._failed = failed
        self._rounds: dict[int, dict[int, Digest]] = {}
        self._settled: set[int] = set()
        """Rounds whose answers had their time."""
        self._working: set[asyncio.Task[None]] = set()
        self._asked_s = clock.monotonic_s()
        self._judged = asyncio.Event()
        self._hashing = asyncio.Lock()
        self._is_live = False
        self.verdict: Verdict | None = None
        """The last round's; None: there has been none since the start."""
        self.refusal: CorruptDataError | None = None
        """Why nothing may be submitted."""
        self.pins = DigestPins[list[Outcome]](path, _asks)

    async def run(self) -> None:
        """Ask for a round when one is due, until cancelled."""
        self._is_live = True
        # Not all instances at once: the first of them spares the others theirs.
        wanted_s = self._interval_s * (1 + self._instance % 97 / 1000)
        if read_difference(self._path) is not None:
            wanted_s = 0.0  # it was made again: is it right now?
        while True:
            left_s = self._asked_s + wanted_s - self._clock.monotonic_s()
            if left_s > 0:
                await wait(left_s)
                continue
            self._asked_s = self._clock.monotonic_s()
            wanted_s = self._interval_s * (1 + self._instance % 97 / 1000)
            try:
                await self._submit(entries.COMPARE, [])
            except PenstockError as error:
                heard(Cause.HOLD_STATE, error, logger, "replicas are compared later")

    async def compare(self, seconds: float) -> Verdict:
        """Ask for a round, and wait until it is judged. Raises: RetryableError."""
        self._judged.clear()
        await self._submit(entries.COMPARE, [])
        try:
            async with asyncio.timeout(self._settle_s + seconds):
                await self._judged.wait()
        except TimeoutError as error:
            raise RetryableError("compare", "replicas", "no answer in time", "try again") from error
        assert self.verdict is not None
        return self.verdict

    def follow(self, outcome: Outcome) -> None:
        """An item of the library's own was applied."""
        if outcome.client == entries.COMPARE:
            self._asked_s = self._clock.monotonic_s()
            if not self._is_live:
                # Asked before this instance was opened, and judged by the others long ago.
                pinned = self.pins.take(outcome.position)
                if pinned is not None:
                    pinned.close()
                return
            self._rounds[outcome.position] = {}
            while len(self._rounds) > ROUNDS_KEPT:
                self._settled.discard(min(self._rounds))
                del self._rounds[min(self._rounds)]
            task = background.start(
                background.COMPARE_TABLES, partial(self._answer, outcome.position)
            )
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        elif outcome.client == entries.DIGEST:
            found = entries.digest_in(outcome.value)
            answers = self._rounds.get(found.position)
            if answers is not None:
                answers[found.instance] = found
                if found.position in self._settled:
                    self._judge(found.position)

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._working):
            task.cancel()
        if self._working:
            await asyncio.wait(self._working)
        self.pins.close()

    # -- inside ----------------------------------------------------------------------------------

    async def _answer(self, position: int) -> None:
        """Hash the state of a position, say so, and judge what others say."""
        pinned = self.pins.take(position)
        if pinned is None:
            return  # it couldn't be held, which is counted
        loop = asyncio.get_running_loop()
        work = partial(digest_pinned, pinned, self._path.parent / "compared")
        try:
            async with self._hashing:
                tables = await loop.run_in_executor(self._executor, work)
            digest = Digest(self._instance, position, DIGEST_VERSION, self._version, tables)
            await self._submit(entries.DIGEST, digest)
        except PenstockError as error:
            heard(Cause.HOLD_STATE, error, logger, "this instance answers no round of digests")
            return
        await wait(self._settle_s)
        self._settled.add(position)
        self._judge(position)

    def _judge(self, position: int) -> None:
        answers = self._rounds.get(position, {})
        mine = answers.get(self._instance)
        if mine is None:
            return
        self.verdict, tables = judge(mine, list(answers.values()))
        self._judged.set()
        names = ", ".join(tables)
        match self.verdict:
            case Verdict.EQUAL:
                self.refusal = None
                if len(answers) > 1:
                    forget_difference(self._path)
            case Verdict.OTHERS_DIFFER:
                self.refusal = None
                forget_difference(self._path)
                logger.error("at position %d other instances differ in %s", position, names)
            case Verdict.DIFFERS:
                note = read_difference(self._path)
                count = 1 if note is None else note.count + 1
                write_difference(
                    self._path, Difference(count=count, position=position, tables=tables)
                )
                self._failed(
                    CorruptDataError(
                        "compare",
                        "replicas",
                        f"at position {position} this instance differs from most others in {names}",
                        "its next start keeps its database, and makes another; look for what"
                        " apply depends on besides tables and entry",
                    )
                )
            case Verdict.UNDECIDED:
                self.refusal = CorruptDataError(
                    "compare",
                    "replicas",
                    f"at position {position} instances differ in {names}, without a majority",
                    "nothing is submitted any more; add an instance, and it is seen who is right",
                )
                logger.error("%s", self.refusal)


def _asks(outcomes: list[Outcome]) -> bool:
    return any(outcome.client == entries.COMPARE for outcome in outcomes)
