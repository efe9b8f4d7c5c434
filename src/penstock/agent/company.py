"""One agent among others: its beats, its shards of groups, the brokers that clients are shown."""

from penstock.agent.foundation import EndEpoch, Foundation
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.groups.shards import ShardKeeper
from penstock.kafka.nodes import ClusterNodes
from penstock.membership.cut_off import CutOff
from penstock.membership.membership import Membership
from penstock.model.errors import RetryableError
from penstock.peers.standing import Asked, Standing


class Company:
    """The same in a cluster and among the workers of a host. Event loop only."""

    def __init__(self, foundation: Foundation, settings: AgentSettings, ports: AgentPorts) -> None:
        self._foundation = foundation
        self._settings = settings
        self._ports = ports
        self.membership: Membership | None = None
        """Beats for this agent, from `begin` on."""
        self.cut_off: CutOff | None = None
        """Knows whether the journal is away from this agent alone; None: no other can be asked."""
        self.shards = ShardKeeper(
            me=foundation.agent_id,
            order=foundation.order,
            view=foundation.view,
            clock=ports.clock,
            shows_answers=foundation.shows_answers,
            quiet=lambda: self.quiet_agents,
            settings=settings.shards,
        )
        self.nodes = ClusterNodes(
            me=foundation.agent_id,
            view=foundation.view,
            coordinator_of=self.shards.coordinator,
            is_cut_off=self._is_cut_off,
            is_alone=lambda: self.is_alone,
            quiet=lambda: self.quiet_agents,
        )

    @property
    def quiet_agents(self) -> frozenset[int]:
        """The agents that have missed a beat, as far as this agent knows."""
        return frozenset() if self.membership is None else self.membership.quiet

    @property
    def is_alone(self) -> bool:
        """Whether the journal is away from this agent and there for others."""
        return self.cut_off is not None and self.cut_off.is_alone

    def begin(self, epoch: int) -> None:
        """Beat, before the agent recovers its WAL: that may take longer than the others wait for a
        beat, and the feature level that claiming a WAL needs is raised by membership."""
        self.membership = Membership(
            me=self._foundation.agent_id,
            epoch=epoch,
            order=self._foundation.order,
            view=self._foundation.view,
            clock=self._ports.clock,
            on_fenced=self._ports.on_fatal,
            is_alone=self._says_it_is_alone,
            settings=self._settings.membership,
        )
        self.membership.start()

    async def leave(self, deadline_s: float) -> None:
        """Have others claim this agent's shards of groups, and clients sent to them."""
        if self.membership is not None:
            await self.membership.leave(lambda: len(self.shards.owned()), deadline_s=deadline_s)

    async def stop(self, end_epoch: EndEpoch | None) -> None:
        """Stop.

        Args:
            end_epoch: see `Membership.end`; None: the epoch stays open.
        """
        if self.cut_off is not None:
            await self.cut_off.close()
        if self.membership is None:
            return
        if end_epoch is None:
            await self.membership.close()
        else:
            await self.membership.end(end_epoch)

    def standing_of(self, asked: Asked) -> Standing:
        """Tell another agent what is known here of its epoch.

        Raises:
            RetryableError: this agent is starting.
        """
        if self.cut_off is None:
            raise RetryableError("tell standing", f"agent {asked.agent}", "this agent is starting")
        return self.cut_off.standing_of(asked)

    def _is_cut_off(self) -> bool:
        age_s = self._ports.clock.monotonic_s() - self._foundation.order.head_confirmed_s
        return age_s > self._settings.cut_off_s

    def _says_it_is_alone(self, agent: int, epoch: int) -> bool:
        return self.cut_off is not None and self.cut_off.says_it_is_alone(agent, epoch)
