"""Compares this agent's state with the other agents', now and then; docs/formats/journal.md.

The shell around `penstock.state.digest_plan`: asks for a round when one is due, answers the last
one, and does what the verdict says. One call of `run_once` at a time, on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.model.errors import CorruptDataError, PenstockError, RetryableError
from penstock.placement.rendezvous import owner_of
from penstock.ports.clock import Clock
from penstock.replica.difference import (
    Difference,
    forget_difference,
    read_difference,
    write_difference,
)
from penstock.replica.digest_pins import DigestPins
from penstock.replica.dump import DIGEST_VERSION
from penstock.replica.pinned import PinnedState, digest_pinned
from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand, AskDigest, ReportDigest
from penstock.state.digest_plan import Judged, Verdict, is_settled, judge, left_split
from penstock.state.order_types import WriteStop
from penstock.state.read.view import StateView
from penstock.state.schema import FORMAT_VERSION, INTEGRITY_LEVEL
from penstock.state.state_digest import StateDigest

logger = logging.getLogger(__name__)

_PROPOSER: Final = b"digest"
_ANSWER_S: Final = 60.0
"""How long an open round is left to those that have yet to answer, after this agent has, before it
asks for another. What it wants to know of a closed one it asks no more often, either, unless the
interval is shorter."""
_LATE_S: Final = 600.0
"""After which it is said who hasn't answered a round."""
_OVERDUE: Final = 2
"""Intervals after which any agent asks: that whose turn it is may be restarted all the time."""


class DigestedOrder(Protocol):
    """These members of `penstock.order.cluster_order.ClusterOrder` are used."""

    digest_pins: DigestPins[Any]
    write_stop: WriteStop

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.port.Committer`."""
        ...


@dataclass(slots=True)
class DigestCounts:
    """These counts begin at the start of the process."""

    equal: int = 0
    """Rounds in which this agent was of the majority, or alone."""
    failed: int = 0
    """States of this agent that could not be hashed."""
    others_differed: int = 0
    """Rounds in which others differed from the majority."""


class DigestKeeper:
    """One agent's part in the rounds."""

    def __init__(
        self,
        *,
        me: int,
        epoch: int,
        order: DigestedOrder,
        view: StateView,
        replica: Path,
        scratch: Path,
        clock: Clock,
        executor: Executor | None,
        interval_ms: int,
        on_fatal: Callable[[BaseException], None],
        hash_pinned: Callable[[PinnedState, Path], dict[str, bytes]] = digest_pinned,
    ) -> None:
        """
        Args:
            epoch: the one that this agent has opened.
            replica: the path of its database.
            scratch: a folder for the copy that is hashed.
            interval_ms: between rounds; 0: this agent asks for none of its own.
            on_fatal: called once, when this agent's state is wrong: the process must end.
        """
        self._me = me
        self._epoch = epoch
        self._order = order
        self._view = view
        self._replica = replica
        self._scratch = scratch
        self._clock = clock
        self._executor = executor
        self._interval_s = interval_ms / 1000
        self._on_fatal = on_fatal
        self._hash = hash_pinned
        self._round_position = view.digests.position
        self._round_s = clock.monotonic_s()
        self._asked_s = float("-inf")
        self._answered_s = float("-inf")
        self._answer: ReportDigest | None = None
        """The last round's, until it is in the journal: the state of then can't be had again."""
        self._is_late_told = False
        self._is_over = False
        self._judged_position = 0
        self._note = read_difference(replica)
        self.judged = Judged(Verdict.NOT_ASKED)
        self.equal_position = 0
        """Up to here this agent's state is known to be the majority's; 0: since its start nothing
        was compared."""
        self.counts = DigestCounts()
        split = left_split(view.digests)
        self._wants_round = (
            split is not None
            or self._note is not None
            or (len(_live(view)) > 1 and not is_settled(view.digests))
        )
        self._is_split_from_before = split is not None
        if split is not None:
            self._stop_writing(split)

    async def run_once(self) -> None:
        """Do what is due.

        Raises:
            PenstockError: to be tried again.
        """
        if self._is_over or self._view.feature_level < INTEGRITY_LEVEL:
            return
        now_s = self._clock.monotonic_s()
        if self._view.digests.position != self._round_position:
            self._round_position = self._view.digests.position
            self._round_s = now_s
            self._is_late_told = False
        await self._hash_state()
        await self._report()
        now_s = self._clock.monotonic_s()
        self._judge(now_s)
        if not self._is_over and self._is_due(now_s):
            self._asked_s = now_s
            await self._order.commit([AskDigest(seen_position=self._view.digests.position)])

    def ask(self) -> None:
        """Ask for a round soon: something says that a state is wrong."""
        self._wants_round = True

    def status(self) -> dict[str, object]:
        """Return what /v1/status says of the comparisons."""
        return {
            "position": self._view.digests.position,
            "verdict": self.judged.verdict.name.lower(),
            "equal_position": self.equal_position,
            "tables": list(self.judged.tables),
            "agents": list(self.judged.agents),
            "missing": list(self.judged.missing),
        }

    def gauges(self) -> dict[str, float]:
        """Return the values of their gauges by name, for /metrics."""
        return {
            "penstock_digest_position": self.equal_position,
            "penstock_digest_split": float(self._order.write_stop.error is not None),
            "penstock_digests_equal_total": self.counts.equal,
            "penstock_digests_differed_total": self.counts.others_differed,
            "penstock_digests_failed_total": self.counts.failed
            + self._order.digest_pins.failure_count,
        }

    # -- asking ----------------------------------------------------------------------------------

    def _is_due(self, now_s: float) -> bool:
        if now_s < self._asked_s + min(_ANSWER_S, self._interval_s or _ANSWER_S):
            return False
        if self.judged.verdict is Verdict.WAITING and now_s < self._answered_s + _ANSWER_S:
            return False
        if self._wants_round:
            return True
        if not self._interval_s:
            return False
        is_mine = owner_of(_PROPOSER, list(_live(self._view)) or [self._me]) == self._me
        after_s = self._interval_s if is_mine else _OVERDUE * self._interval_s
        return now_s >= self._round_s + after_s

    # -- answering -------------------------------------------------------------------------------

    async def _hash_state(self) -> None:
        found = self._view.digests
        position = found.position
        pinned = self._order.digest_pins.take(position)
        if pinned is None:
            return
        if found.epochs.get(self._me) != self._epoch:
            pinned.close()
            return
        level = self._view.feature_level
        try:
            tables = await asyncio.get_running_loop().run_in_executor(
                self._executor, partial(self._hash, pinned, self._scratch)
            )
        except CorruptDataError as error:
            # Worse than a difference: SQLite itself can't read the state.
            self.counts.failed += 1
            self._end(position, ["unreadable"], str(error))
            return
        except PenstockError:
            self.counts.failed += 1
            raise
        digest = StateDigest(
            digest_version=DIGEST_VERSION,
            feature_level=level,
            format_version=FORMAT_VERSION,
            tables=sorted(tables.items()),
        )
        self._answer = ReportDigest(position=position, digest=digest)

    async def _report(self) -> None:
        answer = self._answer
        if answer is None:
            return
        if answer.position == self._view.digests.position:
            self._answered_s = self._clock.monotonic_s()
            await self._order.commit([answer])
        self._answer = None

    # -- judging ---------------------------------------------------------------------------------

    def _judge(self, now_s: float) -> None:
        found = self._view.digests
        judged = self.judged = judge(found, me=self._me, live=_live(self._view))
        match judged.verdict:
            case Verdict.NOT_ASKED:
                pass
            case Verdict.WAITING:
                self._tell_late(judged, now_s)
            case Verdict.MINORITY:
                self._end(
                    found.position,
                    list(judged.tables),
                    f"its state of position {found.position} differs from that of the majority of"
                    f" the live agents in {', '.join(judged.tables)}",
                )
            case Verdict.SPLIT:
                self._stop_writing(judged)
            case Verdict.ALONE | Verdict.EQUAL | Verdict.MAJORITY:
                self._go_on(judged)

    def _go_on(self, judged: Judged) -> None:
        position = self._view.digests.position
        if judged.verdict is Verdict.ALONE and self._order.write_stop.error is not None:
            if not self._is_split_from_before:
                # The agent that it differs from is gone. Which of the two is right is for the
                # operator who restarts this one to say.
                return
            logger.warning("no other agent is left to compare the state with: writes go on")
        if judged.verdict is not Verdict.MAJORITY or self._judged_position == position:
            pass
        else:
            self.counts.others_differed += 1
            logger.error(
                "agents %s differ from the majority at position %d in %s: they bootstrap",
                ", ".join(map(str, judged.agents)),
                position,
                ", ".join(judged.tables),
            )
        if self._order.write_stop.error is not None:
            self._order.write_stop.error = None
            logger.warning("the state of position %d is the majority's: writes go on", position)
        if self._judged_position != position:
            self._judged_position = position
            self.counts.equal += 1
            self._wants_round = self._is_split_from_before = False
            if judged.verdict is not Verdict.ALONE:
                self.equal_position = position
            if self._note is not None and judged.verdict is not Verdict.ALONE:
                self._note = None
                forget_difference(self._replica)
                logger.warning(
                    "the replica that was made in place of the one that differed is equal to the"
                    " others' at position %d",
                    position,
                )

    def _stop_writing(self, judged: Judged) -> None:
        if self._order.write_stop.error is not None:
            return
        position = self._view.digests.position
        error = RetryableError(
            "commit",
            f"agent {self._me}",
            f"the states of agents {', '.join(map(str, judged.agents))} differ at position"
            f" {position} in {', '.join(judged.tables)}, and none of them has a majority",
            "find out which is wrong, stop that agent, remove its replica, and start it again",
        )
        self._order.write_stop.error = error
        logger.error("writes stop: %s", error)

    def _end(self, position: int, tables: list[str], detail: str) -> None:
        """Write the note and end: the state of this agent is wrong."""
        self._is_over = True
        count = 1 + (self._note.count if self._note is not None else 0)
        error = CorruptDataError(
            "compare state",
            f"agent {self._me}",
            detail,
            "the next start sets the replica aside and makes another"
            if count == 1
            else "the replica was made again since the last difference: look at this host's memory"
            " and software",
        )
        logger.error("%s", error)
        write_difference(self._replica, Difference(count=count, position=position, tables=tables))
        self._on_fatal(error)

    def _tell_late(self, judged: Judged, now_s: float) -> None:
        if self._is_late_told or now_s < self._round_s + _LATE_S:
            return
        self._is_late_told = True
        logger.warning(
            "agents %s have not answered for %d s what their state of position %d hashes to",
            ", ".join(map(str, judged.missing)),
            now_s - self._round_s,
            self._view.digests.position,
        )


def _live(view: StateView) -> dict[int, int]:
    """Epochs of the live agents by id."""
    return {agent.agent_id: agent.epoch for agent in view.agents() if agent.live}
