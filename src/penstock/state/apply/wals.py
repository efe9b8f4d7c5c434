"""Applying commands about WAL directories: who may name runs in them."""

from dataclasses import replace

from penstock.state.answers import AnyAnswer, Refusal, Refused, WalClaimed
from penstock.state.apply.context import ApplyContext
from penstock.state.commands import ClaimWal
from penstock.state.meta import NEXT_WAL_KEY
from penstock.state.rows import GENERATION_BITS, GENERATION_MASK, Wal

WAL_ID_BYTES = 16


def claim_wal(context: ApplyContext, command: ClaimWal) -> AnyAnswer:
    """The entry's agent and epoch own it from here on, unless another's live epoch does."""
    tables = context.tables
    wal = tables.cluster.wals_by_id.get(command.wal_id)
    if wal is None:
        wal_key = tables.meta_int(NEXT_WAL_KEY) or 1
        tables.set_meta(NEXT_WAL_KEY, wal_key + 1)
        wal = Wal(wal_key, command.wal_id, context.agent, context.epoch, 0)
    elif wal.agent != context.agent:
        owner = tables.cluster.agents.get(wal.agent)
        if owner is not None and owner.live and owner.epoch == wal.epoch:
            return Refused(
                Refusal.AGENT_IS_ALIVE,
                f"agent {wal.agent} owns WAL {wal.wal_key}, and its epoch {wal.epoch} isn't over",
            )
    tables.cluster.save_wal(replace(wal, agent=context.agent, epoch=context.epoch))
    return WalClaimed(wal.wal_key, wal.last_generation)


def refuse_wal(context: ApplyContext, place: int) -> Refused | None:
    """Say why the entry may not name runs in this WAL file; None: it may, and the file is noted.

    Args:
        place: WAL key << 32 | generation, of a WAL with a key above 0.
    """
    cluster = context.tables.cluster
    wal_key = place >> GENERATION_BITS
    wal = cluster.wals.get(wal_key)
    if wal is None:
        return Refused(Refusal.WAL_NOT_OWNED, f"WAL {wal_key} was never claimed")
    if wal.agent != context.agent or wal.epoch != context.epoch:
        return Refused(
            Refusal.WAL_NOT_OWNED,
            f"WAL {wal_key} is agent {wal.agent}'s of epoch {wal.epoch},"
            f" not agent {context.agent}'s of epoch {context.epoch}",
        )
    generation = place & GENERATION_MASK
    if generation > wal.last_generation:
        cluster.save_wal(replace(wal, last_generation=generation))
    return None
