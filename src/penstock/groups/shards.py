"""The shards of groups that this agent owns: claimed, taken up, given up.

Owning is a journal entry, and every write of a group carries the epoch of its shard's last claim:
one that a former owner sends, whatever it believes, is refused by apply. What is answered from
memory alone (a heartbeat) can't be refused there, so it's given only while the journal's head was
read a moment ago: an agent that was stopped and wakes is silent until it has caught up.

What is owned is read from the view, never from the answer to a claim, whose reply may be lost.
A claim's entry is the barrier behind which its groups are read: everything that a former owner
wrote is before it, and nothing of that owner comes after.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.shard_plan import plan_shards, shard_candidates
from penstock.model.errors import PenstockError
from penstock.order.head_watch import HeadWatch
from penstock.ports.clock import Clock
from penstock.state.answers import Refused
from penstock.state.cluster_tables import GROUP_SHARDS, group_shard
from penstock.state.commands import ClaimShard
from penstock.state.order_types import Order
from penstock.state.schema import CLUSTER_LEVEL
from penstock.system import background
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.state.read.view import StateView

logger = logging.getLogger(__name__)

TICK_S: Final = 0.25
CLAIM_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """Settings of how shards move. Times in milliseconds."""

    stale_ms: int = 750
    """How old the last reading of the journal's head may be for groups to be served, and for
    coordinators to be named: an agent that alone is cut off would name itself, or a dead one."""
    move_delay_ms: int = 3_000
    """For how long agents neither come nor go before shards move between live ones."""
    move_count_max: int = 8
    """Shards that an agent takes from a live one per turn of 250 ms, so that the clients of all
    groups don't look for their coordinators at once."""


class ShardKeeper:
    """Claims what this agent should own. Implements `groups.ownership.Ownership`. Event loop only.

    `follow` is to be called after each batch of applied entries, once the view has them and
    queries see them.
    """

    def __init__(
        self,
        *,
        me: int,
        order: Order,
        view: "StateView",
        clock: Clock,
        shows_answers: Callable[[], bool],
        quiet: Callable[[], frozenset[int]] = frozenset,
        settings: ShardSettings | None = None,
    ) -> None:
        """
        Args:
            me: this agent's id.
            shows_answers: as of `GroupCoordinator`: whether groups can be read that are taken up.
            quiet: agents that have missed a beat, and may be gone.
        """
        self._quiet = quiet
        self._me = me
        self._order = order
        self._view = view
        self._clock = clock
        self._shows_answers = shows_answers
        self._settings = settings or ShardSettings()
        self._stale_s = self._settings.stale_ms / 1000
        self._watch = HeadWatch(self._stale_s)
        self._groups: GroupCoordinator | None = None
        self._held: dict[int, int] = {}
        """The epochs of owned shards, by shard."""
        self._seen = (-1, -1)
        self._candidates: tuple[int, ...] = ()
        self._settled_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._claim: asyncio.Task[None] | None = None
        self._closed = False

    def start(self, groups: "GroupCoordinator") -> None:
        """Begin to claim, and tell the coordinator what comes and goes."""
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._settled_s = self._clock.monotonic_s()
        self._tick()

    async def close(self) -> None:
        """Claim no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._claim is not None:
            self._claim.cancel()
            await asyncio.wait({self._claim})

    # -- `Ownership` -----------------------------------------------------------------------------

    def epoch(self, group_id: str) -> int | None:
        """See `Ownership`."""
        return self._held.get(group_shard(group_id))

    def error(self, group_id: str) -> GroupError:
        """See `Ownership`."""
        if group_shard(group_id) not in self._held:
            return GroupError.NOT_COORDINATOR
        if self._is_stale():
            # It may be another's by now. Members look for the coordinator again, and find this
            # agent once it has heard of the journal again.
            return GroupError.COORDINATOR_NOT_AVAILABLE
        return GroupError.NONE

    def served_s(self) -> float:
        """See `Ownership`."""
        now_s = self._clock.monotonic_s()
        self._watch.look(now_s, self._order.head_confirmed_s)
        return self._watch.answered_for_s(now_s)

    # -- where clients are sent ------------------------------------------------------------------

    def coordinator(self, group_id: str) -> int | None:
        """The live agent that coordinates a group; None: none does, one is being found, the one is
        quiet, or this agent doesn't know, since the journal is away from it: clients ask again, or
        ask another agent. A client that learns the address of an agent that is gone tries it first,
        and asks again later (librdkafka: after 1 s rather than 0.5 s)."""
        if self._is_stale():
            return None
        shard = group_shard(group_id)
        owner = self._view.shard_owner(shard)
        if owner is not None:
            agent = self._view.agent(owner)
            if agent is not None and agent.live:
                return None if owner in self._quiet() else owner
        self._claim_soon()
        return None

    def owned(self) -> Sequence[int]:
        """The shards that this agent owns."""
        return sorted(self._held)

    def _is_stale(self) -> bool:
        return self._clock.monotonic_s() - self._order.head_confirmed_s > self._stale_s

    # -- following the journal -------------------------------------------------------------------

    def follow(self) -> None:
        """Take up and give up what the view says; claim what became free."""
        view = self._view
        seen = (view.agents_generation, view.feature_level)
        if seen == self._seen or self._groups is None:
            return
        self._seen = seen
        self._follow_shards(self._groups)
        candidates = shard_candidates(view.agents())
        if candidates != self._candidates:
            self._candidates = candidates
            self._settled_s = self._clock.monotonic_s()
        self._claim_soon()

    def _follow_shards(self, groups: "GroupCoordinator") -> None:
        view, held = self._view, self._held
        # Registering an agent's epoch frees its shards, so those that name this agent were
        # claimed by this process.
        owned = {
            shard: view.shard_epoch(shard)
            for shard in range(GROUP_SHARDS)
            if view.shard_owner(shard) == self._me
        }
        gone = {shard for shard, epoch in held.items() if owned.get(shard) != epoch}
        new = {shard for shard, epoch in owned.items() if held.get(shard) != epoch}
        self._held = owned
        if gone:
            logger.info("gave up %d shards of groups", len(gone))
            groups.release(_in(gone))
        if new:
            logger.info("took up %d shards of groups", len(new))
            groups.take_up(_in(new))

    # -- claiming --------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._watch.look(self._clock.monotonic_s(), self._order.head_confirmed_s)
        self.follow()
        self._claim_what_is_due(with_moves=True)

    def _claim_soon(self) -> None:
        """Claim shards without an owner now; the rest in turns."""
        if self._loop is not None:
            self._claim_what_is_due(with_moves=False)

    def _claim_what_is_due(self, *, with_moves: bool) -> None:
        view = self._view
        if self._claim is not None or self._closed or view.feature_level < CLUSTER_LEVEL:
            return
        plan = plan_shards(self._me, view.agents(), view.shard_owner)
        shards = list(plan.free)
        if with_moves:
            settled_for_s = self._clock.monotonic_s() - self._settled_s
            moving = list(plan.drained)
            # A live owner has in memory what this agent could not read before its disk has room.
            if settled_for_s * 1000 >= self._settings.move_delay_ms and self._shows_answers():
                moving += plan.moved
            shards += moving[: self._settings.move_count_max]
        if shards:
            self._claim = background.start(
                background.CLAIM_SHARDS, partial(self._claim_all, shards)
            )
            self._claim.add_done_callback(self._claimed)

    async def _claim_all(self, shards: Sequence[int]) -> None:
        claims = [
            ClaimShard(shard=shard, shard_epoch=self._view.shard_epoch(shard)) for shard in shards
        ]
        try:
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                answers = await self._order.commit(claims)
        except (PenstockError, TimeoutError) as error:
            detail = str(error) or f"no answer in {CLAIM_TIMEOUT_S:g} s"
            saying = f"could not claim {len(shards)} shards of groups"
            heard(Cause.CLAIM_SHARDS, detail, logger, saying)
            return
        refused = sum(isinstance(answer, Refused) for answer in answers)
        if refused:
            logger.info("%d of %d shards of groups were claimed by others", refused, len(shards))

    def _claimed(self, claim: "asyncio.Task[None]") -> None:
        if self._claim is claim:
            self._claim = None
        if not claim.cancelled():
            claim.result()
        self.follow()


def _in(shards: set[int]) -> Callable[[str], bool]:
    return lambda group_id: group_shard(group_id) in shards
