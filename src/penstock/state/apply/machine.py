"""The log's state machine: entries in, answers and changes out. Deterministic.

Nothing here reads the clock, random or the environment; journal time is an argument. A command's
meaning changes only behind a feature level. What applying does per kind of command is in
`apply_records`, `apply_segments`, `apply_topics`, `apply_groups` and `apply_cluster`; of the
pipeline's in `apply_jobs`, `apply_replace`, `apply_writes` and `apply_progress`.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.order.outcome import Outcome, Standing
from penstock.state import (
    acl_commands,
    commands,
    journal_time,
    migration,
    pipeline_commands,
    quota_commands,
    security_commands,
    transaction_commands,
)
from penstock.state.answers import AnyAnswer, Refusal, Refused, Relayed
from penstock.state.apply import acls as apply_acls
from penstock.state.apply import agents as apply_agents
from penstock.state.apply import api_keys as apply_api_keys
from penstock.state.apply import credentials as apply_credentials
from penstock.state.apply import digests as apply_digests
from penstock.state.apply import features as apply_cluster
from penstock.state.apply import groups as apply_groups
from penstock.state.apply import histories as apply_histories
from penstock.state.apply import jobs as apply_jobs
from penstock.state.apply import journal_clock as apply_time
from penstock.state.apply import loss as apply_loss
from penstock.state.apply import progress as apply_progress
from penstock.state.apply import quotas as apply_quotas
from penstock.state.apply import records as apply_records
from penstock.state.apply import replace as apply_replace
from penstock.state.apply import restored_runs as apply_restored_runs
from penstock.state.apply import segments as apply_segments
from penstock.state.apply import shards as apply_shards
from penstock.state.apply import topics as apply_topics
from penstock.state.apply import transactions as apply_transactions
from penstock.state.apply import wals as apply_wals
from penstock.state.apply import writes as apply_writes
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import AgentSeen, Change
from penstock.state.commands import AnyCommand, RegisterAgent, Relay, SetJournalTime
from penstock.state.entries import Entry, decode_entry
from penstock.state.levels import LEVEL_OF
from penstock.state.meta import EPOCH_FLOOR
from penstock.state.schema import (
    APPLICATION_ID,
    FEATURE_LEVEL_MAX,
    FORMAT_VERSION,
    INTEGRITY_LEVEL,
    OLDEST_VERSION,
    SCHEMA,
    STORED_ENTRIES,
)
from penstock.state.tables import AgentRow, Tables

Handler = Callable[[ApplyContext, Any], AnyAnswer]
EntryOutcome: TypeAlias = Outcome[AnyAnswer, Change]
"""The outcome of an entry of the log."""


def _from_level(level: int, handler: Handler) -> Handler:
    """Make a handler refuse its command before the feature level is switched on."""

    def apply(context: ApplyContext, command: AnyCommand) -> AnyAnswer:
        found = context.tables.meta_int("feature_level")
        if found < level:
            return Refused(Refusal.LEVEL_NOT_ON, f"feature level {found}, {level} it takes")
        return handler(context, command)

    return apply


_HANDLERS: Final[dict[type[AnyCommand], Handler]] = {
    commands.InitCluster: apply_cluster.init_cluster,
    commands.RegisterAgent: apply_agents.register_agent,
    commands.Heartbeat: apply_agents.heartbeat,
    commands.Fence: apply_agents.fence,
    commands.DrainAgent: apply_agents.drain_agent,
    commands.RemoveAgent: apply_agents.remove_agent,
    commands.ClaimWal: apply_wals.claim_wal,
    commands.ClaimShard: apply_shards.claim_shard,
    commands.Noop: apply_cluster.noop,
    commands.SetFeatureLevel: apply_agents.set_feature_level,
    commands.Digest: apply_cluster.check_digest,
    commands.AskDigest: apply_digests.ask_digest,
    commands.ReportDigest: apply_digests.report_digest,
    commands.CreateTopic: apply_topics.create_topic,
    commands.DeleteTopic: apply_topics.delete_topic,
    commands.CreatePartitions: apply_topics.create_partitions,
    commands.AlterTopicConfigs: apply_topics.alter_topic_configs,
    commands.AlterClusterConfigs: apply_topics.alter_cluster_configs,
    commands.AlterGroupConfigs: apply_topics.alter_group_configs,
    commands.AllocateProducerIds: apply_records.allocate_producer_ids,
    commands.CommitRuns: apply_records.commit_runs,
    commands.ExpireProducers: apply_records.expire_producers,
    commands.StoreSegment: apply_segments.store_segment,
    commands.TrimLog: apply_segments.trim_log,
    commands.CondemnObjects: apply_segments.condemn_objects,
    commands.AcceptLoss: apply_loss.accept_loss,
    commands.RestoreRuns: apply_restored_runs.restore_runs,
    commands.ClearLeftovers: apply_segments.clear_leftovers,
    commands.SetJournalTime: apply_time.set_journal_time,
    commands.ForgetObjects: apply_segments.forget_objects,
    pipeline_commands.OpenJob: apply_jobs.open_job,
    pipeline_commands.RenewJob: apply_jobs.renew_job,
    pipeline_commands.CloseJob: apply_jobs.close_job,
    pipeline_commands.ReplaceRuns: apply_replace.replace_runs,
    pipeline_commands.CommitWrite: apply_writes.commit_write,
    pipeline_commands.ExpireWriters: apply_writes.expire_writers,
    pipeline_commands.SaveTable: apply_progress.save_table,
    pipeline_commands.DropTable: apply_progress.drop_table,
    commands.SaveGroup: apply_groups.save_group,
    commands.SaveMembers: apply_groups.save_members,
    commands.SaveShares: apply_groups.save_shares,
    commands.DeleteGroups: apply_groups.delete_groups,
    commands.CommitOffsets: apply_groups.commit_offsets,
    commands.DeleteOffsets: apply_groups.delete_offsets,
    commands.NoteLostHistory: apply_histories.note_lost_history,
    commands.CloseHistory: apply_histories.close_history,
    transaction_commands.InitTransaction: apply_transactions.init_transaction,
    transaction_commands.AddToTransaction: apply_transactions.add_to_transaction,
    transaction_commands.CommitToTransaction: apply_transactions.commit_to_transaction,
    transaction_commands.EndTransaction: apply_transactions.end_transaction,
    transaction_commands.AbortTransactions: apply_transactions.abort_transactions,
    transaction_commands.ExpireTransactions: apply_transactions.expire_transactions,
    acl_commands.CreateAcls: apply_acls.create_acls,
    acl_commands.DeleteAcls: apply_acls.delete_acls,
    security_commands.SaveCredential: apply_credentials.save_credential,
    security_commands.DeleteCredential: apply_credentials.delete_credential,
    security_commands.SaveApiKey: apply_api_keys.save_api_key,
    security_commands.DeleteApiKey: apply_api_keys.delete_api_key,
    quota_commands.AlterQuotas: apply_quotas.alter_quotas,
}


class LogMachine:
    """The state machine of the log, for `penstock.replica.Replica`."""

    application_id = APPLICATION_ID
    format_version = FORMAT_VERSION
    oldest_version = OLDEST_VERSION

    def __init__(self) -> None:
        self._tables: Tables | None = None
        self._decoded: tuple[bytes, Entry] | None = None
        """Entry that `journal_time` has decoded, for `apply`, which gets the same bytes."""

    @property
    def tables(self) -> Tables:
        """The tables, once bound."""
        assert self._tables is not None
        return self._tables

    def create(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        for statement in SCHEMA:
            connection.execute(statement)

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """See `StateMachine`."""
        migration.migrate(connection, from_version)

    def bind(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`.

        Raises:
            InvalidRequestError: a feature level is on that this release doesn't know: its entries
                would be applied by older rules, to another state.
        """
        found = connection.execute("SELECT value FROM meta WHERE name = 'feature_level'").fetchone()
        if found is not None and found[0] > FEATURE_LEVEL_MAX:
            raise InvalidRequestError(
                "open",
                "the state",
                f"feature level {found[0]} is on, this release knows {FEATURE_LEVEL_MAX}",
                "open it with the release that switched it on, or a later one",
            )
        self._tables = Tables(connection)

    def flush(self) -> None:
        """See `StateMachine`."""
        self.tables.flush()
        self.tables.bound_caches()

    def drop_caches(self) -> None:
        """See `StateMachine`."""
        self._decoded = None
        self.tables.forget()

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:
        """See `StateMachine`."""
        tables = self.tables
        tables.ensure_loaded()
        if tables.meta_int("feature_level") < INTEGRITY_LEVEL:
            return journal_time.greatest(previous_ms, stamp_ms)
        if not body:
            # The stamp of a seal is the journal's alone: no second clock vouches for it.
            return previous_ms
        try:
            entry = decode_entry(body, position=0)
        except (CorruptDataError, InvalidRequestError):
            return previous_ms  # `apply` refuses the entry, and knows its position
        self._decoded = (body, entry)
        for command in entry.commands:
            if type(command) is SetJournalTime and journal_time.is_set_back(
                previous_ms, command.time_ms, stamp_ms=stamp_ms, appender_ms=entry.stamp_ms
            ):
                return command.time_ms
        return journal_time.raised(previous_ms, stamp_ms=stamp_ms, appender_ms=entry.stamp_ms)

    def apply(self, position: int, time_ms: int, body: bytes) -> EntryOutcome:
        """See `StateMachine`."""
        if not body:
            # The seal of a position that no entry took in the end.
            return Outcome(Standing.APPLIED, [], [])
        decoded, self._decoded = self._decoded, None
        if decoded is not None and decoded[0] is body:
            entry = decoded[1]
        else:
            entry = decode_entry(body, position=position)
        self.tables.ensure_loaded()
        return apply_entry(self.tables, position, time_ms, entry)


def apply_entry(tables: Tables, position: int, time_ms: int, entry: Entry) -> EntryOutcome:
    """Apply an entry by its key."""
    agent = tables.agent(entry.agent)
    if agent is None or entry.epoch != agent.epoch or entry.n != agent.last_n + 1 or agent.fenced:
        settled = _settle_unusual(tables, entry, agent)
        if settled is not None:
            return settled
    apply_time.mark_time(tables, time_ms)
    context = ApplyContext(tables, position, time_ms, agent=entry.agent, epoch=entry.epoch)
    if agent is None or agent.epoch != entry.epoch:
        agent = tables.agents[entry.agent] = AgentRow(entry.epoch, 0, position, fenced=False)
        _open_epoch(context, entry)
    # Before its commands: an agent isn't silent while an entry of it is applied.
    agent.position = position
    context.changes.append(AgentSeen(entry.agent, position))
    handlers = HANDLERS
    answers = [handlers[type(command)](context, command) for command in entry.commands]
    agent.last_n = entry.n
    tables.store_entry(entry.agent, entry.epoch, entry.n, position, answers)
    return Outcome(Standing.APPLIED, answers, context.changes, context.asks_digest)


def relay(context: ApplyContext, command: Relay) -> AnyAnswer:
    """Apply another agent's entry inside this one."""
    nested = any(isinstance(inner, Relay) for inner in command.commands)
    if nested or command.agent == context.agent:
        return Refused(Refusal.OUT_OF_ORDER_ENTRY, "a relay inside a relay, or from itself")
    entry = Entry(
        agent=command.agent,
        epoch=command.epoch,
        n=command.n,
        stamp_ms=command.stamp_ms,
        commands=command.commands,
    )
    outcome = apply_entry(context.tables, context.position, context.time_ms, entry)
    context.changes += outcome.changes
    return Relayed(outcome.standing, outcome.answers)


HANDLERS: Final[dict[type[AnyCommand], Handler]] = {
    kind: _from_level(LEVEL_OF[kind], handler) if LEVEL_OF[kind] > 1 else handler
    for kind, handler in {**_HANDLERS, Relay: relay}.items()
}
"""Handlers by type of command; each refuses below its feature level."""


def _settle_unusual(tables: Tables, entry: Entry, agent: AgentRow | None) -> EntryOutcome | None:
    """An entry that is not simply its agent's next: None means that it is applied all the same."""
    if agent is None or entry.epoch > agent.epoch:
        if agent is None and entry.epoch <= tables.meta_int(EPOCH_FLOOR):
            return _refused(
                entry, Refusal.FENCED_AGENT, f"epoch {entry.epoch} is over: the agent was removed"
            )
        if entry.n == 0 and _registers(entry):
            return None
        return _refused(entry, Refusal.FENCED_AGENT, f"epoch {entry.epoch} was never opened")
    if entry.epoch < agent.epoch:
        return _refused(
            entry, Refusal.FENCED_AGENT, f"epoch {entry.epoch}, the agent's is {agent.epoch}"
        )
    if agent.last_n - STORED_ENTRIES < entry.n <= agent.last_n:
        stored = tables.stored_answers(entry.agent, entry.epoch, entry.n)
        if stored is not None:
            return Outcome(Standing.REPEATED, stored, [])
    if agent.fenced:
        return _refused(entry, Refusal.FENCED_AGENT, f"epoch {entry.epoch} was ended by another")
    return _refused(
        entry, Refusal.OUT_OF_ORDER_ENTRY, f"n {entry.n}, the agent's last is {agent.last_n}"
    )


def _registers(entry: Entry) -> bool:
    return any(
        isinstance(command, RegisterAgent) and command.agent == entry.agent
        for command in entry.commands
    )


def _refused(entry: Entry, reason: Refusal, detail: str) -> EntryOutcome:
    refusal = Refused(reason, detail)
    return Outcome(Standing.REFUSED, [refusal for _ in entry.commands], [])


def _open_epoch(context: ApplyContext, entry: Entry) -> None:
    for command in entry.commands:
        if isinstance(command, RegisterAgent) and command.agent == entry.agent:
            apply_agents.open_epoch(context, command)
