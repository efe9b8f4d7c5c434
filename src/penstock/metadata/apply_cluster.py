"""Applying commands about the cluster as a whole: its id, agents, feature level, digest."""

from penstock.metadata.commands import (
    AnyAnswer,
    Digest,
    Done,
    InitCluster,
    Noop,
    RegisterAgent,
    SetFeatureLevel,
)
from penstock.metadata.context import ApplyContext
from penstock.metadata.schema import FEATURE_LEVEL_MAX
from penstock.metadata.tables import Tables, encode_json
from penstock.model.errors import CorruptDataError


def init_cluster(context: ApplyContext, command: InitCluster) -> AnyAnswer:
    """The cluster's id, given once."""
    if not context.tables.meta_text("cluster_id"):
        context.tables.set_meta("cluster_id", command.cluster_id)
    return Done()


def register_agent(_context: ApplyContext, _command: RegisterAgent) -> AnyAnswer:
    """Opening the epoch is the entry's doing (`LogMachine.apply`); elsewhere it changes nothing."""
    return Done()


def save_agent(tables: Tables, epoch: int, command: RegisterAgent) -> None:
    """An agent's new epoch."""
    tables.execute(
        "INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?, ?)",
        (command.agent, epoch, encode_json(command.labels), command.software, command.endpoint),
    )


def noop(_context: ApplyContext, _command: Noop) -> AnyAnswer:
    """Changes nothing."""
    return Done()


def set_feature_level(context: ApplyContext, command: SetFeatureLevel) -> AnyAnswer:
    """Upwards only; a lower level changes nothing.

    Raises:
        CorruptDataError: the level is not known here. The agent stops: from this entry on it
            would make another state than those that know.
    """
    if command.level > FEATURE_LEVEL_MAX:
        raise CorruptDataError(
            "apply",
            f"position {context.position}",
            f"feature level {command.level}, this release knows {FEATURE_LEVEL_MAX}",
            "upgrade this agent",
        )
    if command.level > context.tables.meta_int("feature_level"):
        context.tables.set_meta("feature_level", command.level)
    return Done()


def check_digest(_context: ApplyContext, _command: Digest) -> AnyAnswer:
    """Takes a position. Comparing reads the whole state, so it is not done on the commit path:
    whoever follows compares `Replica.digest` with what the journal says."""
    return Done()
