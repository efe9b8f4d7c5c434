"""Applying commands about shards of groups: who coordinates them, and which epoch they are at."""

from collections.abc import Iterable
from dataclasses import replace

from penstock.state.answers import AnyAnswer, Refusal, Refused, ShardClaimed
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import ShardMoved
from penstock.state.cluster_tables import GROUP_SHARDS, NO_AGENT, group_shard
from penstock.state.commands import ClaimShard
from penstock.state.rows import Shard
from penstock.state.schema import CLUSTER_LEVEL


def claim_shard(context: ApplyContext, command: ClaimShard) -> AnyAnswer:
    """Make the entry's agent the owner, unless another agent has claimed the shard meanwhile."""
    cluster = context.tables.cluster
    if not 0 <= command.shard < GROUP_SHARDS:
        return Refused(Refusal.STALE_SHARD, f"there is no shard {command.shard}")
    shard_epoch = cluster.shard_epoch(command.shard)
    if command.shard_epoch != shard_epoch:
        return _stale(command.shard, command.shard_epoch, shard_epoch)
    claimed = Shard(command.shard, shard_epoch + 1, context.agent, context.epoch)
    cluster.save_shard(claimed)
    context.changes.append(ShardMoved(shard=claimed))
    return ShardClaimed(claimed.shard_epoch)


def free_shards(context: ApplyContext, agent_id: int) -> None:
    """End the ownership of an agent whose epoch is over: its shards wait for another claim."""
    cluster = context.tables.cluster
    for shard in sorted(cluster.shards):
        row = cluster.shards[shard]
        if row.agent == agent_id:
            freed = replace(row, agent=NO_AGENT)
            cluster.save_shard(freed)
            context.changes.append(ShardMoved(shard=freed))


def refuse_shard(
    context: ApplyContext, group_ids: Iterable[str], shard_epoch: int
) -> Refused | None:
    """Say why a group command with this shard epoch is refused; None: it isn't.

    Several groups are refused together, if the shard of any is at another epoch.
    """
    tables = context.tables
    if tables.meta_int("feature_level") < CLUSTER_LEVEL:
        # There is one shard, and its epoch is 0.
        return (
            Refused(Refusal.STALE_SHARD, f"shard epoch {shard_epoch}") if shard_epoch < 0 else None
        )
    for group_id in group_ids:
        shard = group_shard(group_id)
        found = tables.cluster.shard_epoch(shard)
        if found != shard_epoch:
            return _stale(shard, shard_epoch, found)
    return None


def _stale(shard: int, named: int, found: int) -> Refused:
    return Refused(Refusal.STALE_SHARD, f"shard {shard}: epoch {named}, it is at {found}")
