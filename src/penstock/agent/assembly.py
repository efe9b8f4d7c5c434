"""The one place where an agent is put together; docs/decisions/0022-one-assembly.md."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.agent.clients import join_clients
from penstock.agent.company import Company
from penstock.agent.foundation import EndEpoch, Foundation
from penstock.agent.jobs import Job
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.kafka.broker import Broker


@dataclass(slots=True, kw_only=True)
class Agent:
    """The parts of one agent. `start` it, `drain` it in the end; what it was handed in is closed
    by the caller, who handed it in."""

    settings: AgentSettings
    foundation: Foundation
    company: Company | None
    """None: no other agent shares the journal."""
    groups: GroupCoordinator
    broker: Broker

    async def start(self) -> None:
        """Follow the journal, open an epoch, and begin to serve.

        Raises: as `Foundation.follow` and `Foundation.begin`.
        """
        foundation, company = self.foundation, self.company
        await foundation.follow()
        if company is not None:
            company.begin(foundation.order.epoch)
            company.cut_off = foundation.new_cut_off(self.groups)
            if company.cut_off is not None:
                company.cut_off.start()
        await foundation.begin()
        self.groups.start()
        if company is not None:
            company.shards.start(self.groups)

    async def drain(self, deadline_s: float) -> bool:
        """See `Foundation.drain`. Clients are gone by now, and `groups` is closed."""
        if self.company is not None:
            await self.company.shards.close()
        return await self.foundation.drain(self._stop_company, deadline_s)

    def jobs(self) -> Sequence[Job]:
        """Return the work that comes round."""
        expiry = Job(
            name="expiry of idle groups",
            interval_s=self.settings.retention_check_s,
            run=self.groups.expire,
            matters=True,
        )
        return [expiry, *self.foundation.jobs()]

    async def _stop_company(self, end_epoch: EndEpoch | None) -> None:
        if self.company is not None:
            await self.company.stop(end_epoch)


async def assemble(settings: AgentSettings, ports: AgentPorts) -> Agent:
    """Join the parts of an agent; nothing is served yet.

    Raises: as the `join` of `ports.journal`.
    """
    foundation = await ports.journal.join(settings, ports)
    company = Company(foundation, settings, ports) if foundation.has_company else None
    if company is not None:
        foundation.on_followed = company.shards.follow
    groups, broker = join_clients(foundation, company, settings, ports)
    return Agent(
        settings=settings, foundation=foundation, company=company, groups=groups, broker=broker
    )
