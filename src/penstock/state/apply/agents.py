"""Applying commands about agents: their epochs, who is fenced, and the feature level."""

from dataclasses import replace

from penstock.model.errors import CorruptDataError
from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.shards import free_shards
from penstock.state.changes import AgentChanged, AgentRemoved, LevelChanged
from penstock.state.commands import (
    DrainAgent,
    Fence,
    Heartbeat,
    RegisterAgent,
    RemoveAgent,
    SetFeatureLevel,
)
from penstock.state.meta import EPOCH_FLOOR
from penstock.state.rows import GENERATION_BITS, Agent, AgentStatus
from penstock.state.schema import FEATURE_LEVEL_MAX, INTEGRITY_LEVEL
from penstock.state.tables import Tables


def register_agent(_context: ApplyContext, _command: RegisterAgent) -> AnyAnswer:
    """Opening the epoch is the entry's doing (`open_epoch`); elsewhere it changes nothing."""
    return Done()


def open_epoch(context: ApplyContext, command: RegisterAgent) -> None:
    """The entry's agent begins its entry's epoch: live, and without the shards that it had."""
    agent = Agent(
        agent_id=command.agent,
        epoch=context.epoch,
        status=AgentStatus.LIVE,
        labels=command.labels,
        software=command.software,
        endpoint=command.endpoint,
        peer=command.peer,
        level_max=command.level_max,
    )
    free_shards(context, command.agent)
    context.tables.cluster.save_agent(agent)
    context.changes.append(AgentChanged(agent=agent))


def next_epoch(tables: Tables, agent_id: int, *, floor: int) -> int:
    """The epoch that an agent may open.

    Args:
        floor: `penstock.model.epochs.epoch_floor` of the agent's clock: the state may be older than
            the last epoch that the agent had.
    """
    known = tables.agent(agent_id)
    last = max(known.epoch if known is not None else 0, tables.meta_int(EPOCH_FLOOR))
    return max(last + 1, floor)


def heartbeat(_context: ApplyContext, _command: Heartbeat) -> AnyAnswer:
    """Do only what every entry does: move its agent's last position."""
    return Done()


def fence(context: ApplyContext, command: Fence) -> AnyAnswer:
    """End an epoch, unless its agent has had an entry since it was last seen.

    An agent that ends in order ends its own: this entry of its is the last.
    """
    tables = context.tables
    agent = tables.cluster.agents.get(command.agent)
    row = tables.agent(command.agent)
    if agent is None or row is None:
        return _unknown(command.agent)
    if agent.epoch != command.epoch:
        return Refused(
            Refusal.AGENT_IS_ALIVE,
            f"agent {command.agent} is at epoch {agent.epoch}, not {command.epoch}",
        )
    ends_itself = (
        context.agent == command.agent and tables.meta_int("feature_level") >= INTEGRITY_LEVEL
    )
    # No other agent has seen this entry's own position.
    if not ends_itself and row.position > min(command.seen_position, context.position - 1):
        return Refused(
            Refusal.AGENT_IS_ALIVE,
            f"agent {command.agent} had entry {row.position}, seen was {command.seen_position}",
        )
    if agent.status is not AgentStatus.FENCED:
        row.fenced = True
        _set_status(context, agent, AgentStatus.FENCED)
        free_shards(context, command.agent)
    return Done()


def drain_agent(context: ApplyContext, command: DrainAgent) -> AnyAnswer:
    """Live to draining, and back."""
    agent = context.tables.cluster.agents.get(command.agent)
    if agent is None:
        return _unknown(command.agent)
    if agent.status is AgentStatus.FENCED:
        return Refused(Refusal.FENCED_AGENT, f"agent {command.agent} is fenced")
    status = AgentStatus.DRAINING if command.draining else AgentStatus.LIVE
    if agent.status is not status:
        _set_status(context, agent, status)
    return Done()


def remove_agent(context: ApplyContext, command: RemoveAgent) -> AnyAnswer:
    """Forget a fenced agent that nothing depends on."""
    tables = context.tables
    cluster = tables.cluster
    agent = cluster.agents.get(command.agent)
    if agent is None:
        return _unknown(command.agent)
    if agent.status is not AgentStatus.FENCED:
        return Refused(Refusal.AGENT_IS_ALIVE, f"agent {command.agent} is not fenced")
    row = tables.agent(command.agent)
    if row is not None and row.position == context.position:
        # It has ended itself in the entry that is being applied, whose number is yet to be kept.
        return Refused(Refusal.AGENT_IS_ALIVE, f"agent {command.agent} is ending")
    tables.flush()
    for wal_key in sorted(
        wal.wal_key for wal in cluster.wals.values() if wal.agent == agent.agent_id
    ):
        # Reads all runs that lie in WALs; an agent is removed by hand, and rarely.
        named = tables.execute(
            "SELECT 1 FROM wal_runs WHERE generation >= ? AND generation < ? LIMIT 1",
            (wal_key << GENERATION_BITS, (wal_key + 1) << GENERATION_BITS),
        ).fetchone()
        if named is not None:
            return Refused(Refusal.WAL_IN_USE, f"runs are named in WAL {wal_key}")
    cluster.remove_agent(agent.agent_id)
    tables.agents.pop(agent.agent_id, None)
    tables.forget_entries(agent.agent_id)
    if agent.epoch > tables.meta_int(EPOCH_FLOOR):
        tables.set_meta(EPOCH_FLOOR, agent.epoch)
    context.changes.append(AgentRemoved(agent_id=agent.agent_id))
    return Done()


def set_feature_level(context: ApplyContext, command: SetFeatureLevel) -> AnyAnswer:
    """Upwards only, a lower level changes nothing; and only to one that every agent knows whose
    epoch isn't over.

    Raises:
        CorruptDataError: the level is not known here. The agent stops: from this entry on it
            would make another state than those that know.
    """
    tables = context.tables
    level = command.level
    found = tables.meta_int("feature_level")
    if level <= found:
        return Done()
    # By id: below level 4 the sentence is state, and what is in memory may be in another order.
    for _, agent in sorted(tables.cluster.agents.items()):
        if agent.live and agent.level_max < level:
            return Refused(
                Refusal.LEVEL_NOT_KNOWN,
                f"agent {agent.agent_id} knows feature level {agent.level_max}, not {level}",
            )
    if level > FEATURE_LEVEL_MAX:
        raise CorruptDataError(
            "apply",
            f"position {context.position}",
            f"feature level {level}, this release knows {FEATURE_LEVEL_MAX}",
            "upgrade this agent",
        )
    tables.set_meta("feature_level", level)
    if found < INTEGRITY_LEVEL <= level:
        tables.restate_answers()
    context.changes.append(LevelChanged(level=level))
    return Done()


def _set_status(context: ApplyContext, agent: Agent, status: AgentStatus) -> None:
    changed = replace(agent, status=status)
    context.tables.cluster.save_agent(changed)
    context.changes.append(AgentChanged(agent=changed))


def _unknown(agent_id: int) -> Refused:
    return Refused(Refusal.UNKNOWN_AGENT, f"there is no agent {agent_id}")
