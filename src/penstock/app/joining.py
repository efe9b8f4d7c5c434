"""An agent among others, put together: the same in a cluster and among the workers of a host."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.http.agent_list import HTTP_LABEL, list_agents
from penstock.app.layout import DataLayout
from penstock.app.limits import membership_settings
from penstock.app.parts import Environment, Parts
from penstock.config.settings import ServerSettings
from penstock.log.wals.own_wal import WalFolder
from penstock.membership.membership import Membership
from penstock.order.cluster_order import AgentIdentity
from penstock.order.heads import Ordering
from penstock.ports.random import Random
from penstock.state.read.view import StateView
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.system.files import PosixDevice
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.app.http.agents_api import AgentSources


def make_identity(settings: ServerSettings, environment: Environment, *, me: int) -> AgentIdentity:
    """An agent as it announces itself to the others."""
    return AgentIdentity(
        agent_id=me,
        labels=_told_labels(settings.labels, environment),
        software=VERSION,
        endpoint=str(environment.advertised),
        peer=str(environment.peer or ""),
        level_max=FEATURE_LEVEL_MAX,
    )


def _told_labels(labels: dict[str, str], environment: Environment) -> dict[str, str]:
    if environment.http is None:
        return labels
    return {**labels, HTTP_LABEL: str(environment.http)}


def make_membership(
    settings: ServerSettings,
    environment: Environment,
    *,
    me: int,
    epoch: int,
    order: Ordering,
    view: StateView,
) -> Membership:
    """Make an agent's membership, not started. It is to beat before the agent recovers its WAL,
    which may take longer than the others wait for a beat."""
    return Membership(
        me=me,
        epoch=epoch,
        order=order,
        view=view,
        clock=environment.clock,
        on_fenced=environment.on_fatal,
        settings=membership_settings(settings),
    )


def own_wal_folder(settings: ServerSettings, layout: DataLayout, random: Random) -> WalFolder:
    """Where an agent has its WAL, once something asks for one."""
    return WalFolder(
        device=PosixDevice(layout.root),
        random=random,
        file_bytes=settings.wal_file_bytes,
        bytes_max=settings.wal_bytes_max,
        fsync=settings.fsync,
    )


def agent_sources(
    parts: Parts,
    membership: Membership,
    *,
    take_over: Callable[[str], Awaitable[int]] | None = None,
    without_secret: bool = False,
) -> "AgentSources":
    """What the HTTP calls about agents are answered from."""
    # Imported behind the Kafka port, which clients wait for.
    from penstock.app.http.agents_api import AgentSources

    async def drain(agent: int, draining: bool) -> None:  # noqa: FBT001 - the port's
        await membership.drain(agent, draining=draining)

    return AgentSources(
        agents=partial(list_agents, parts, membership),
        drain=drain,
        remove=membership.remove,
        take_over=take_over,
        without_secret=without_secret,
    )
