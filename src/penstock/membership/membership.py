"""Membership in the cluster: this agent's beats, others' silence, fences, the feature level.

There is no leader: every agent measures the others and proposes, and apply decides (see "Agents"
in docs/cluster.md). All by a timer of the event loop and the injected clock, so that a process
that was stopped finds out by the clock and accuses no other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.membership.silence import SilenceDetector, Standing
from penstock.model.errors import ConflictError, FencedError, PenstockError
from penstock.ports.clock import Clock
from penstock.state.answers import Refused
from penstock.state.commands import (
    AnyCommand,
    DrainAgent,
    Fence,
    Heartbeat,
    RemoveAgent,
    SetFeatureLevel,
)
from penstock.state.order_types import Order
from penstock.state.rows import AgentStatus
from penstock.state.schema import CLUSTER_LEVEL
from penstock.system import background
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from penstock.state.read.view import StateView
    from penstock.state.rows import Agent

logger = logging.getLogger(__name__)

TICKS_PER_BEAT: Final = 4
BEATS_MAX: Final = 6
"""Beats that are not answered yet; an order sends no more than 8 entries that are not."""
QUIET_BEATS: Final = 1.5
"""Beats' time without a word, after which clients are shown other agents."""
CUT_OFF_SHARE: Final = 2 / 3
"""Share of the timeout after which a silent agent is given up that has said itself that the
journal is away from it. What it sent and got no answer to is in doubt until then, and its
clients wait."""
FENCE_AGAIN_S: Final = 1.0
END_S: Final = 2.0
"""How long an agent that ends waits until the end of its epoch is in the journal."""
LEVEL_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSettings:
    """Times in milliseconds."""

    heartbeat_ms: int = 500
    """An agent without anything to say beats this often."""
    agent_timeout_ms: int = 1_500
    """Silence after which a fence is proposed."""
    rejoin_ms: int = 3_000
    """The most time that others are given to reconnect after the journal was away: as long as it
    was away, since their pauses double, and no longer than this."""
    others_first_ms: int = 3_000
    """How long an agent leaves a feature level to the one whose turn it is to propose it."""


class Membership:
    """One agent among the others. Event loop only."""

    def __init__(
        self,
        *,
        me: int,
        epoch: int,
        order: Order,
        view: "StateView",
        clock: Clock,
        on_fenced: Callable[[FencedError], None],
        is_alone: Callable[[int, int], bool] = lambda *_: False,
        settings: MembershipSettings | None = None,
    ) -> None:
        """
        Args:
            me: this agent's id; `epoch`: the one that it has opened.
            on_fenced: called once, when that is over: the process must end.
            is_alone: whether another agent, in an epoch, says that the journal is away from it
                alone.
        """
        self._me = me
        self._epoch = epoch
        self._order = order
        self._view = view
        self._clock = clock
        self._on_fenced = on_fenced
        self._is_alone = is_alone
        self._settings = settings or MembershipSettings()
        self._heartbeat_s = self._settings.heartbeat_ms / 1000
        timeout_s = self._settings.agent_timeout_ms / 1000
        # What hides an agent for less than this leaves it time for a beat before it is accused.
        spare_s = max(timeout_s - 1.5 * self._heartbeat_s, self._heartbeat_s / 2)
        self._silence = SilenceDetector(
            timeout_s,
            away_s=min(self._heartbeat_s, spare_s),
            rejoin_s=self._settings.rejoin_ms / 1000,
        )
        self.quiet: frozenset[int] = frozenset()
        """Agents that have missed a beat, or say that they are alone. Clients are better sent
        elsewhere meanwhile, which costs nothing where it was wrong; nothing else may depend on
        it."""
        self._position = -1
        self._answered_s = 0.0
        self._own_position = -1
        self._own_s = 0.0
        self._proposed: dict[tuple[int, int], float] = {}
        self._level_s: float | None = None
        self._is_fenced = False
        self._owned: Callable[[], int] | None = None
        self._left = asyncio.Event()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._beats: set[asyncio.Task[None]] = set()
        self._beat_s = float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to beat and to listen."""
        self._loop = asyncio.get_running_loop()
        self._own_s = self._answered_s = self._clock.monotonic_s()
        self._tick()

    async def close(self) -> None:
        """Say and hear nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    # -- what operators ask for ------------------------------------------------------------------

    async def drain(self, agent: int, *, draining: bool = True) -> None:
        """Give an agent no new clients and no shards, or take that back.

        Raises:
            ConflictError: there is no such agent, or its epoch is over.
            RetryableError: the journal does not answer.
        """
        await self._ask("drain agent", agent, DrainAgent(agent=agent, draining=draining))

    async def remove(self, agent: int) -> None:
        """Forget a fenced agent.

        Raises:
            ConflictError: it is not fenced, or runs are named in its WAL.
            RetryableError: the journal does not answer.
        """
        await self._ask("remove agent", agent, RemoveAgent(agent=agent))

    async def leave(self, owned: Callable[[], int], *, deadline_s: float) -> None:
        """Hand over what this agent leads and coordinates, while it still serves; for the end of a
        process.

        Nothing depends on it but the clients' time: what isn't handed over is claimed by others
        once this agent's epoch is over.

        Args:
            owned: how many shards of groups are left.
        """
        others = any(
            agent.agent_id != self._me and agent.status is AgentStatus.LIVE
            for agent in self._view.agents()
        )
        if not others or self._is_fenced:
            return
        self._owned = owned
        try:
            async with asyncio.timeout(deadline_s):
                await self.drain(self._me)
                if owned():
                    await self._left.wait()
        except (PenstockError, TimeoutError) as error:
            detail = str(error) or f"not in {deadline_s:g} s"
            saying = f"{owned()} shards of groups were not handed over"
            heard(Cause.HAND_OVER, detail, logger, saying, logging.INFO)

    async def end(self, end_epoch: Callable[[float], Awaitable[None]]) -> None:
        """Say and hear nothing any more, and end this epoch, so that the others neither wait for
        this agent's silence nor warn of it.

        Args:
            end_epoch: of the order, which takes nothing after it.
        """
        await self.close()
        if self._is_fenced:
            return
        try:
            await end_epoch(END_S)
        except PenstockError as error:
            heard(Cause.END_EPOCH, error, logger, "the others will find this agent silent")

    def silent_s(self, agent: int) -> float:
        """Return for how long this agent has heard nothing from another, in seconds."""
        if agent == self._me:
            return 0.0
        return self._silence.silent_s(agent, self._clock.monotonic_s())

    async def _ask(self, operation: str, agent: int, command: AnyCommand) -> None:
        (answer,) = await self._order.commit([command])
        if isinstance(answer, Refused):
            raise ConflictError(operation, str(agent), f"{answer.reason.name}: {answer.detail}")

    # -- the timer -------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        assert self._loop is not None
        self._timer = self._loop.call_later(self._heartbeat_s / TICKS_PER_BEAT, self._tick)
        now_s = self._clock.monotonic_s()
        self._look(now_s)
        if self._is_over():
            self._left.set()
            return
        if self._owned is not None and not self._owned():
            self._left.set()
        if self._view.feature_level >= CLUSTER_LEVEL:
            self._beat_when_due(now_s)
            self._note_quiet(now_s)
            self._fence_silent(now_s)
        self._raise_level(now_s)

    def _look(self, now_s: float) -> None:
        view = self._view
        if self._order.position != self._position:
            # Rows that were applied are an answer, too: under load heads are read seldom.
            self._position = self._order.position
            self._answered_s = now_s
        own_position = view.last_position(self._me)
        if own_position != self._own_position:
            self._own_position = own_position
            self._own_s = now_s
        answered_s = max(self._answered_s, self._order.head_confirmed_s)
        if view.feature_level >= CLUSTER_LEVEL:
            # A journal that can be read and takes no entries keeps everybody silent. What shows
            # that it takes them are this agent's own.
            answered_s = min(answered_s, self._own_s + self._heartbeat_s)
        self._silence.look(
            (
                Standing(agent.agent_id, agent.epoch, view.last_position(agent.agent_id))
                for agent in view.agents()
                if agent.live and agent.agent_id != self._me
            ),
            now_s,
            answered_s=answered_s,
        )

    def _is_over(self) -> bool:
        """Whether this epoch is over; says so once, when it finds it."""
        if self._is_fenced:
            return True
        agent = self._view.agent(self._me)
        if agent is not None and agent.live and agent.epoch == self._epoch:
            return False
        self._is_fenced = True
        detail = (
            "it was ended by another agent"
            if agent is None or not agent.live
            else (f"epoch {agent.epoch} was opened")
        )
        error = FencedError("serve", f"agent {self._me} epoch {self._epoch}", detail)
        # Said there, once: the process ends.
        self._on_fenced(error)
        return True

    def _beat_when_due(self, now_s: float) -> None:
        # A tick early rather than a tick late. On time also when the last one isn't applied here
        # yet: an agent whose replica lags lives.
        due_s = max(self._own_s, self._beat_s) + self._heartbeat_s * (1 - 1 / TICKS_PER_BEAT)
        if now_s >= due_s and len(self._beats) < BEATS_MAX:
            self._beat_s = now_s
            beat = self._propose("beat", Heartbeat())
            self._beats.add(beat)
            beat.add_done_callback(self._beats.discard)

    def _note_quiet(self, now_s: float) -> None:
        quiet = self._silence.suspects(now_s, longer_than_s=QUIET_BEATS * self._heartbeat_s)
        self.quiet = frozenset(standing.agent for standing in quiet) | {
            agent.agent_id
            for agent in self._view.agents()
            if agent.live and self._is_alone(agent.agent_id, agent.epoch)
        }

    def _fence_silent(self, now_s: float) -> None:
        for agent, epoch, position in self._too_silent(now_s):
            again_s = self._proposed.get((agent, epoch), float("-inf")) + FENCE_AGAIN_S
            if now_s < again_s:
                continue
            self._proposed[agent, epoch] = now_s
            logger.warning(
                "agent %d has been silent for %.1f s%s: proposing to fence its epoch %d",
                agent,
                self._silence.silent_s(agent, now_s),
                ", and says that the journal is away from it alone"
                if self._is_alone(agent, epoch)
                else "",
                epoch,
            )
            command = Fence(agent=agent, epoch=epoch, seen_position=position)
            self._propose(f"fence agent {agent}", command)

    def _too_silent(self, now_s: float) -> list[Standing]:
        suspects = self._silence.suspects(now_s)
        sooner = self._silence.suspects(
            now_s, longer_than_s=self._settings.agent_timeout_ms / 1000 * CUT_OFF_SHARE
        )
        return [one for one in sooner if one in suspects or self._is_alone(one.agent, one.epoch)]

    def _raise_level(self, now_s: float) -> None:
        live = [agent for agent in self._view.agents() if agent.live]
        level = min((agent.level_max for agent in live), default=0)
        if level <= self._view.feature_level:
            self._level_s = None
            return
        if self._level_s is None:
            first = self._proposes_first(live)
            self._level_s = now_s if first else now_s + self._settings.others_first_ms / 1000
        if now_s >= self._level_s:
            self._level_s = now_s + LEVEL_AGAIN_S
            what = f"raise the feature level {self._view.feature_level} -> {level}"
            self._propose(what, SetFeatureLevel(level=level))

    def _proposes_first(self, live: "list[Agent]") -> bool:
        return self._me == min(agent.agent_id for agent in live)

    # -- work under way --------------------------------------------------------------------------

    def _propose(self, what: str, command: AnyCommand) -> "asyncio.Task[None]":
        task = background.start(background.MEMBERSHIP, partial(self._commit, what, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit(self, what: str, command: AnyCommand) -> None:
        try:
            (answer,) = await self._order.commit([command])
        except PenstockError as error:
            # The next tick sees what became of it, and proposes again where it must.
            heard(Cause.MEMBERSHIP, error, logger, f"could not {what}", logging.INFO)
            return
        if isinstance(answer, Refused):
            logger.info("refused to %s: %s %s", what, answer.reason.name, answer.detail)
        elif not isinstance(command, Heartbeat):
            logger.info("agent %d did: %s", self._me, what)
