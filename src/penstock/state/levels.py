"""The feature level of each command, and the check before a command is submitted.

An agent of an older release can't decode a command that it doesn't know, and stops, at each start
again. So no command is submitted below its level: apply, which refuses it too, comes too late,
since the command is in the journal by then. A level is only on when every agent knows it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from penstock.model.errors import RetryableError
from penstock.state import (
    acl_commands,
    commands,
    pipeline_commands,
    quota_commands,
    security_commands,
    transaction_commands,
)
from penstock.state.changes import AgentChanged, AgentRemoved, Change, LevelChanged
from penstock.state.commands import (
    BATCH_FIELDS,
    EPOCH_MAX,
    AnyCommand,
    CommitRuns,
    Relay,
    RunCommit,
)
from penstock.state.pipeline_commands import OpenJob, ReplaceRuns
from penstock.state.rows import Agent
from penstock.state.schema import (
    ACLS_LEVEL,
    CLUSTER_LEVEL,
    FEATURE_LEVEL_MAX,
    INTEGRITY_LEVEL,
    MEMBERS_LEVEL,
    MERGING_LEVEL,
    PIPELINE_LEVEL,
    QUOTAS_LEVEL,
    SECURITY_LEVEL,
    SHARES_LEVEL,
    TRANSACTIONS_LEVEL,
)

_EPOCH_FIELD: Final = 4

LEVEL_OF: Final[dict[type[AnyCommand], int]] = {
    commands.InitCluster: 1,
    commands.RegisterAgent: 1,
    commands.Noop: 1,
    commands.SetFeatureLevel: 1,
    commands.Digest: 1,
    commands.CreateTopic: 1,
    commands.DeleteTopic: 1,
    commands.CreatePartitions: 1,
    commands.AlterTopicConfigs: 1,
    commands.AlterClusterConfigs: 1,
    commands.AllocateProducerIds: 1,
    commands.CommitRuns: 1,
    commands.ExpireProducers: 1,
    commands.StoreSegment: 1,
    commands.TrimLog: 1,
    commands.CondemnObjects: 1,
    commands.ForgetObjects: 1,
    commands.SaveGroup: 1,
    commands.DeleteGroups: 1,
    commands.CommitOffsets: 1,
    commands.DeleteOffsets: 1,
    commands.Heartbeat: CLUSTER_LEVEL,
    commands.Fence: CLUSTER_LEVEL,
    commands.DrainAgent: CLUSTER_LEVEL,
    commands.RemoveAgent: CLUSTER_LEVEL,
    commands.ClaimWal: CLUSTER_LEVEL,
    commands.ClaimShard: CLUSTER_LEVEL,
    commands.Relay: CLUSTER_LEVEL,
    pipeline_commands.OpenJob: PIPELINE_LEVEL,
    pipeline_commands.RenewJob: PIPELINE_LEVEL,
    pipeline_commands.CloseJob: PIPELINE_LEVEL,
    pipeline_commands.ReplaceRuns: PIPELINE_LEVEL,
    pipeline_commands.CommitWrite: PIPELINE_LEVEL,
    pipeline_commands.ExpireWriters: PIPELINE_LEVEL,
    pipeline_commands.SaveTable: PIPELINE_LEVEL,
    pipeline_commands.DropTable: PIPELINE_LEVEL,
    commands.ClearLeftovers: INTEGRITY_LEVEL,
    commands.AcceptLoss: INTEGRITY_LEVEL,
    commands.RestoreRuns: INTEGRITY_LEVEL,
    commands.NoteLostHistory: INTEGRITY_LEVEL,
    commands.CloseHistory: INTEGRITY_LEVEL,
    commands.AskDigest: INTEGRITY_LEVEL,
    commands.ReportDigest: INTEGRITY_LEVEL,
    commands.SetJournalTime: INTEGRITY_LEVEL,
    commands.SaveMembers: MEMBERS_LEVEL,
    commands.SaveShares: SHARES_LEVEL,
    commands.AlterGroupConfigs: TRANSACTIONS_LEVEL,
    transaction_commands.InitTransaction: TRANSACTIONS_LEVEL,
    transaction_commands.AddToTransaction: TRANSACTIONS_LEVEL,
    transaction_commands.CommitToTransaction: TRANSACTIONS_LEVEL,
    transaction_commands.EndTransaction: TRANSACTIONS_LEVEL,
    transaction_commands.AbortTransactions: TRANSACTIONS_LEVEL,
    transaction_commands.ExpireTransactions: TRANSACTIONS_LEVEL,
    acl_commands.CreateAcls: ACLS_LEVEL,
    acl_commands.DeleteAcls: ACLS_LEVEL,
    security_commands.SaveCredential: SECURITY_LEVEL,
    security_commands.DeleteCredential: SECURITY_LEVEL,
    security_commands.SaveApiKey: SECURITY_LEVEL,
    security_commands.DeleteApiKey: SECURITY_LEVEL,
    quota_commands.AlterQuotas: QUOTAS_LEVEL,
}
"""The level that a command's type belongs to. Apply refuses the command below it."""


class LevelNotOnError(RetryableError):
    """A command of a feature level that isn't on was not submitted."""


class Levels(Protocol):
    """The check needs to know this; `penstock.state.read.view.StateView` does."""

    @property
    def feature_level(self) -> int:
        """The level that is on."""
        ...

    def agents(self) -> Collection[Agent]:
        """All agents that are known, fenced ones too."""
        ...


class KnownLevels:
    """`Levels` for an order, which has no view: follows what is applied, as long as a level may
    rise. One thread."""

    def __init__(self) -> None:
        self.feature_level = 1
        """Until `load`: an agent registers by commands of this level alone."""
        self._agents: dict[int, Agent] = {}

    @property
    def is_highest(self) -> bool:
        """No level that this release knows is missing, so that nothing need be followed."""
        return self.feature_level >= FEATURE_LEVEL_MAX

    @property
    def ends_epochs(self) -> bool:
        """Whether an agent may end its own epoch: a fence of itself is known."""
        return self.feature_level >= INTEGRITY_LEVEL

    def agents(self) -> Collection[Agent]:
        """See `Levels`."""
        return self._agents.values()

    def refusal(self, commands: Sequence[AnyCommand]) -> "LevelNotOnError | None":
        """Return why these must not be submitted now; None: they may be."""
        if self.feature_level >= FEATURE_LEVEL_MAX:
            return None
        return refuse_below_level(self, commands)

    def load(self, feature_level: int, agents: Iterable[Agent]) -> None:
        """Begin with a state. `feature_level` 0: none was ever raised."""
        self.feature_level = max(1, feature_level)
        self._agents = {agent.agent_id: agent for agent in agents}

    def follow(self, changes: Sequence[Change]) -> None:
        """Follow an entry that was applied."""
        for change in changes:
            if type(change) is LevelChanged:
                self.feature_level = change.level
            elif type(change) is AgentChanged:
                self._agents[change.agent.agent_id] = change.agent
            elif type(change) is AgentRemoved:
                self._agents.pop(change.agent_id, None)


def refuse_below_level(
    levels: Levels, wanted: Sequence[AnyCommand], *, operation: str = "commit"
) -> LevelNotOnError | None:
    """Return why these commands must not be submitted now; None: they may be."""
    found = levels.feature_level
    if found >= FEATURE_LEVEL_MAX:
        return None
    for command in wanted:
        needed = level_needed(command)
        if needed > found:
            return _not_on(levels, operation, type(command).__name__, needed)
    return None


def level_needed(command: AnyCommand) -> int:
    """The level that a command belongs to, what its fields hold included.

    An older release leaves out a field that it doesn't know: unless apply ignores the field below
    the level, too, the state would be another from there on.
    """
    needed = LEVEL_OF[type(command)]
    match command:
        case Relay():
            # The levels of both count: a relay is an entry within an entry.
            return max([needed, *map(level_needed, command.commands)])
        case commands.CreateTopic(replication_factor=factor) if factor:
            return TRANSACTIONS_LEVEL
        case OpenJob(principal=principal) if principal:
            return SECURITY_LEVEL
        case CommitRuns() if any(map(_is_transactional, command.runs)):
            return TRANSACTIONS_LEVEL
        case CommitRuns(raw=True):
            return max(needed, CLUSTER_LEVEL)
        case ReplaceRuns() if any(each.merged for each in command.partitions):
            return max(needed, MERGING_LEVEL)
        case _:
            return needed


def _is_transactional(run: RunCommit) -> bool:
    return max(run.batches[_EPOCH_FIELD::BATCH_FIELDS], default=0) > EPOCH_MAX


def _not_on(levels: Levels, operation: str, subject: str, needed: int) -> LevelNotOnError:
    older = [agent for agent in levels.agents() if agent.live and agent.level_max < needed]
    known = f"feature level {needed} is needed, {levels.feature_level} is on"
    if not older:
        return LevelNotOnError(operation, subject, known, "the level is being raised")
    named = ", ".join(f"{agent.agent_id} (level {agent.level_max})" for agent in older[:5])
    more = f" and {len(older) - 5} more" if len(older) > 5 else ""
    return LevelNotOnError(
        operation,
        subject,
        f"{known}, since these agents know less: {named}{more}",
        "upgrade them; the level then rises by itself",
    )
