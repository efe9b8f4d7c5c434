"""Decides what an agent does while the journal is away from it and not from others.

An agent can't tell by itself whether the journal is away from all, when nothing is gained by
sending clients elsewhere and everything goes on by itself, or from it alone. So once it has read
no head for `ask_after_s` it asks others (`penstock.peers.standing`). While one of them has read a
head of late this agent is cut off alone, and after `cut_off_s`

1. what it was never going to be able to send is let go: it was not applied and won't be, and
   clients send it to another agent at once;
2. a Fetch that finds nothing new sends its client to others, who know what was stored meanwhile;
3. what was sent and not answered waits until another agent has applied the end of this epoch.
   Nothing of the epoch is applied after that, so a client that sends it again elsewhere finds it
   there, by its sequences, or stores it, and no late copy ever comes after it.

Where there is no other agent to ask, what waits is answered at its own deadlines.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.errors import ElsewhereError, InDoubtError, PenstockError, RetryableError
from penstock.peers.standing import Asked, Standing, ask_standing
from penstock.peers.zone import Calls
from penstock.ports.clock import Clock
from penstock.state.rows import AgentStatus
from penstock.system import background
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from penstock.state.read.view import StateView

logger = logging.getLogger(__name__)

TICK_S: Final = 0.1
ASKED_MAX: Final = 3
"""Agents that are asked at once; the next ones in the next round."""
WORD_S: Final = 1.0
"""How long another agent's answer that it reaches the journal counts, or its question, which says
that it does not."""
LATER_S: Final = 0.3
"""The head that another agent has read must be later than the last one read here by this: where
the journal has just gone away from all, their heads are as old as this agent's."""
SAID_FOR_S: Final = 0.3
"""For how long another agent must have asked before its word is taken that it is alone. After the
journal was away from all, some reach it that much later than others, and later: what counts as
their silence then is in `penstock.membership.silence`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOffSettings:
    """Times in seconds, since the last reading of the journal's head."""

    ask_after_s: float = 0.4
    cut_off_s: float = 0.75
    """Also: how old the head may be that another agent has read, for it to reach the journal."""


class _Word(NamedTuple):
    """An answer, and when it was asked for."""

    at_s: float
    standing: Standing


class _Asker(NamedTuple):
    """Another agent, and when it began to ask and asked last while this agent read heads."""

    epoch: int
    first_s: float
    last_s: float

    def goes_on(self, epoch: int, now_s: float) -> bool:
        """Whether it asks still, and in this epoch."""
        return self.epoch == epoch and now_s - self.last_s <= WORD_S


class CutOff:
    """Follows whether one epoch of an agent is cut off. Event loop only.

    Args:
        head_confirmed_s: when the head was last read, by the clock.
        let_go: called with why, again and again while this agent is cut off alone: what was never
            sent fails. With None: it is not any more.
        give_up: called with why, likewise, once this epoch is known to be over: what was sent is
            answered.
    """

    def __init__(
        self,
        *,
        me: int,
        epoch: int,
        head_confirmed_s: Callable[[], float],
        view: "StateView",
        calls: Calls,
        clock: Clock,
        let_go: Callable[[RetryableError | None], None],
        give_up: Callable[[RetryableError], None],
        settings: CutOffSettings | None = None,
    ) -> None:
        self._me = me
        self._epoch = epoch
        self._head_confirmed_s = head_confirmed_s
        self._view = view
        self._calls = calls
        self._clock = clock
        self._let_go = let_go
        self._give_up = give_up
        self._settings = settings or CutOffSettings()
        self._words: dict[int, _Word] = {}
        self._askers: dict[int, _Asker] = {}
        self._asking: asyncio.Task[None] | None = None
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_alone = False
        self._over_s: float | None = None
        """When another agent said that this epoch is over; None: none has."""

    def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    async def close(self) -> None:
        """Look no more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    @property
    def is_alone(self) -> bool:
        """Whether the journal is away from this agent and was there for others a moment ago."""
        return self._is_alone

    def standing_of(self, asked: Asked) -> Standing:
        """Tell another agent what is known here of its epoch, and keep in mind that it asked."""
        now_s = self._clock.monotonic_s()
        age_s = max(0.0, now_s - self._head_confirmed_s())
        # It has read no head for `ask_after_s`. Where this agent has read none for nearly as long
        # the journal may be away from all.
        if age_s <= LATER_S and self._view.agent(asked.agent) is not None:
            before = self._askers.get(asked.agent)
            goes_on = before is not None and before.goes_on(asked.epoch, now_s)
            first_s = before.first_s if before is not None and goes_on else now_s
            self._askers[asked.agent] = _Asker(asked.epoch, first_s, now_s)
        return Standing(int(1000 * min(age_s, 1e9)), _is_over(self._view, asked))

    def says_it_is_alone(self, agent: int, epoch: int) -> bool:
        """Whether another agent, in this epoch, has gone on asking while this one read heads: the
        journal is away from that one alone, by its own word."""
        asker = self._askers.get(agent)
        now_s = self._clock.monotonic_s()
        return (
            asker is not None
            and asker.goes_on(epoch, now_s)
            and asker.last_s - asker.first_s >= SAID_FOR_S
        )

    # -- inside ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._loop is None:
            return
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._look()

    def _look(self) -> None:
        age_s = self._clock.monotonic_s() - self._head_confirmed_s()
        if age_s <= self._settings.ask_after_s:
            self._words.clear()
            self._take_back()
            self._come_back()
            return
        if self._asking is None:
            self._asking = background.start(background.CUT_OFF, self._ask_all)
            self._asking.add_done_callback(self._asked)
        self._judge()

    def _judge(self) -> None:
        """Do what follows from what the others have said."""
        now_s = self._clock.monotonic_s()
        age_s = now_s - self._head_confirmed_s()
        if age_s <= self._settings.cut_off_s:
            return
        reaching = self._reaching(now_s)
        if not reaching and self._over_s is None:
            # Nor is it known that the others are away; new requests wait, as they do then.
            self._come_back()
            return
        error = ElsewhereError(
            "append",
            f"agent {self._me}",
            f"the journal has been away from it for {age_s:.1f} s, and is there for others",
            "send it to another agent",
        )
        if not self._is_alone:
            self._is_alone = True
            logger.warning(
                "the journal has been away from this agent alone for %.1f s (agents %s reach it): "
                "what was not sent is let go, and clients are sent to them",
                age_s,
                reaching,
            )
        self._let_go(error)
        if self._over_s is not None:
            # Not "elsewhere": that says of a batch that it is not stored, which this one may be.
            self._give_up(
                InDoubtError(
                    "append", f"agent {self._me}", "its epoch was ended by others", "send it again"
                )
            )

    def _take_back(self) -> None:
        """The journal's head was read. What others said of this epoch's end is void if the head is
        later than their word and this epoch goes on: the journal came back older, and the end was
        in what it has lost. Else a journal that is away from all would have this agent give up
        what was sent, which may be applied later."""
        if self._over_s is None or self._head_confirmed_s() <= self._over_s:
            return
        if not _is_over(self._view, Asked(self._me, self._epoch)):
            self._over_s = None
            logger.warning(
                "epoch %d of this agent goes on: the journal doesn't hold the end that another "
                "agent has seen",
                self._epoch,
            )

    def _come_back(self) -> None:
        if self._is_alone:
            self._is_alone = False
            self._let_go(None)

    def _reaching(self, now_s: float) -> list[int]:
        """The agents that reach the journal, by what they said of late."""
        later_s = self._head_confirmed_s() + LATER_S
        return sorted(
            agent
            for agent, word in self._words.items()
            if now_s - word.at_s <= WORD_S
            and word.standing.head_age_ms <= 1000 * self._settings.cut_off_s
            and word.at_s - word.standing.head_age_ms / 1000 > later_s
        )

    def _others(self) -> Sequence[tuple[int, str]]:
        """Whom to ask now: some of those that should be there, by turns."""
        others = [
            (agent.agent_id, agent.peer)
            for agent in self._view.agents()
            if agent.status is not AgentStatus.FENCED and agent.peer and agent.agent_id != self._me
        ]
        if not others:
            return []
        first = (self._round * ASKED_MAX) % len(others)
        self._round += 1
        return (others[first:] + others[:first])[:ASKED_MAX]

    async def _ask_all(self) -> None:
        await asyncio.gather(*(self._ask(*other) for other in self._others()))

    async def _ask(self, agent: int, address: str) -> None:
        at_s = self._clock.monotonic_s()
        try:
            standing = await ask_standing(self._calls, address, Asked(self._me, self._epoch))
        except PenstockError as error:
            heard(
                Cause.ASK_AGENT,
                error,
                logger,
                f"agent {agent} says nothing of the journal",
                logging.INFO,
            )
            return
        self._words[agent] = _Word(at_s, standing)
        # A word of before this agent's own last head says nothing that it didn't see there.
        read_s = at_s - standing.head_age_ms / 1000
        if standing.is_over and self._over_s is None and read_s > self._head_confirmed_s():
            self._over_s = self._clock.monotonic_s()
            logger.warning(
                "agent %d has seen the end of epoch %d of this agent, which the journal is away "
                "from: what was sent and not answered is to be sent again elsewhere",
                agent,
                self._epoch,
            )

    def _asked(self, asking: "asyncio.Task[None]") -> None:
        self._asking = None
        if not asking.cancelled():
            asking.result()
            # Not at the next look: clients wait for what the others have just said.
            self._judge()


def _is_over(view: "StateView", asked: Asked) -> bool:
    agent = view.agent(asked.agent)
    if agent is None or agent.epoch < asked.epoch:
        # Not known here, or not any more: nothing is known of that epoch.
        return False
    return agent.epoch > asked.epoch or not agent.live
