"""The dumb twin of a cluster: agents with numbered entries, fences, claims, around the log's twin.

It keeps every answer for ever and owns nothing by reference: whoever owned a WAL or a shard is
compared by agent and epoch each time.
"""

from dataclasses import dataclass, field, replace

from penstock.order.outcome import Standing
from penstock.state.answers import (
    AnyAnswer,
    Done,
    HistoryNoted,
    Refusal,
    Refused,
    Relayed,
    ShardClaimed,
    WalClaimed,
)
from penstock.state.cluster_tables import GROUP_SHARDS, group_shard
from penstock.state.commands import (
    AnyCommand,
    AskDigest,
    ClaimShard,
    ClaimWal,
    CloseHistory,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    DeleteGroups,
    DeleteOffsets,
    DrainAgent,
    Fence,
    Heartbeat,
    NoteLostHistory,
    RegisterAgent,
    Relay,
    RemoveAgent,
    ReportDigest,
    SaveGroup,
    SaveMembers,
    SaveShares,
    SetFeatureLevel,
)
from penstock.state.entries import Entry
from penstock.state.rows import AgentStatus
from penstock.state.state_digest import StateDigest
from unit.state.twin import Twin

CLUSTER_ONLY = (Relay, Heartbeat, Fence, DrainAgent, RemoveAgent, ClaimWal, ClaimShard)


@dataclass
class AgentState:
    epoch: int
    status: AgentStatus
    level_max: int
    labels: dict[str, str]
    last_n: int = -1
    last_position: int = 0


@dataclass
class WalState:
    key: int
    agent: int
    epoch: int
    last_generation: int = 0


@dataclass
class ShardState:
    epoch: int = 0
    owner: int | None = None


@dataclass
class HistoryState:
    number: int
    positions: set[int]
    """All that it covers."""
    marks: tuple[int, int, int]
    noted: int
    is_open: bool = True
    records: int = 0
    gave_up: bool = False


@dataclass
class ClusterTwin:
    log: Twin = field(default_factory=Twin)
    level: int = 0
    agents: dict[int, AgentState] = field(default_factory=dict)
    wals: dict[bytes, WalState] = field(default_factory=dict)
    shards: list[ShardState] = field(
        default_factory=lambda: [ShardState() for _ in range(GROUP_SHARDS)]
    )
    raw: set[str] = field(default_factory=set)
    answers: dict[tuple[int, int, int], list[AnyAnswer]] = field(default_factory=dict)
    histories: list[HistoryState] = field(default_factory=list)
    digest_position: int = 0
    digests: dict[int, tuple[int, StateDigest | None]] = field(default_factory=dict)
    """Of the agents that were asked: epoch and answer."""
    removed_epoch: int = 0
    wal_count: int = 0
    position: int = 0

    def apply(self, entry: Entry, position: int, time_ms: int) -> tuple[Standing, list[AnyAnswer]]:
        self.position = position
        verdict = self._verdict(entry)
        if verdict is Standing.REPEATED:
            return verdict, self.answers[(entry.agent, entry.epoch, entry.n)]
        if isinstance(verdict, Refusal):
            return Standing.REFUSED, [Refused(verdict) for _ in entry.commands]
        for command in entry.commands:
            if isinstance(command, RegisterAgent) and entry.n == 0:
                self._free(entry.agent)
                self.agents[entry.agent] = AgentState(
                    entry.epoch, AgentStatus.LIVE, command.level_max, command.labels
                )
        self.agents[entry.agent].last_position = position
        answers = [self._command(entry, command, time_ms) for command in entry.commands]
        state = self.agents[entry.agent]
        state.last_n = entry.n
        self.answers[(entry.agent, entry.epoch, entry.n)] = answers
        return Standing.APPLIED, answers

    def _verdict(self, entry: Entry) -> Standing | Refusal:
        state = self.agents.get(entry.agent)
        registers = any(isinstance(command, RegisterAgent) for command in entry.commands)
        if state is None or entry.epoch > state.epoch:
            known = self.removed_epoch if state is None else state.epoch
            opens = entry.n == 0 and registers and entry.epoch > known
            return Standing.APPLIED if opens else Refusal.FENCED_AGENT
        if entry.epoch < state.epoch:
            return Refusal.FENCED_AGENT
        if state.last_n - 16 < entry.n <= state.last_n:
            return Standing.REPEATED
        if state.status is AgentStatus.FENCED:
            return Refusal.FENCED_AGENT
        return Standing.APPLIED if entry.n == state.last_n + 1 else Refusal.OUT_OF_ORDER_ENTRY

    def _command(self, entry: Entry, command: AnyCommand, time_ms: int) -> AnyAnswer:
        if isinstance(command, CLUSTER_ONLY) and self.level < 2:
            return Refused(Refusal.LEVEL_NOT_ON)
        match command:
            case RegisterAgent() | Heartbeat():
                return Done()
            case SetFeatureLevel():
                if command.level <= self.level:
                    return Done()
                if any(
                    state.level_max < command.level
                    for state in self.agents.values()
                    if state.status is not AgentStatus.FENCED
                ):
                    return Refused(Refusal.LEVEL_NOT_KNOWN)
                self.level = command.level
                return Done()
            case Fence():
                return self._fence(command, by=entry.agent)
            case DrainAgent():
                state = self.agents.get(command.agent)
                if state is None:
                    return Refused(Refusal.UNKNOWN_AGENT)
                if state.status is AgentStatus.FENCED:
                    return Refused(Refusal.FENCED_AGENT)
                state.status = AgentStatus.DRAINING if command.draining else AgentStatus.LIVE
                return Done()
            case RemoveAgent():
                return self._remove(command)
            case ClaimWal():
                return self._claim_wal(entry, command)
            case AskDigest():
                if self.level < 4:
                    return Refused(Refusal.LEVEL_NOT_ON)
                if command.seen_position == self.digest_position:
                    self.digest_position = self.position
                    self.digests = {
                        agent: (state.epoch, None)
                        for agent, state in self.agents.items()
                        if state.status is not AgentStatus.FENCED
                    }
                return Done()
            case ReportDigest():
                if self.level < 4:
                    return Refused(Refusal.LEVEL_NOT_ON)
                asked = self.digests.get(entry.agent, (0, None))
                if (asked[0], self.digest_position) == (entry.epoch, command.position):
                    self.digests[entry.agent] = (entry.epoch, command.digest)
                return Done()
            case ClaimShard():
                shard = self.shards[command.shard]
                if shard.epoch != command.shard_epoch:
                    return Refused(Refusal.STALE_SHARD)
                self.shards[command.shard] = ShardState(shard.epoch + 1, entry.agent)
                return ShardClaimed(shard.epoch + 1)
            case Relay():
                nested = any(isinstance(inner, Relay) for inner in command.commands)
                if nested or command.agent == entry.agent:
                    return Refused(Refusal.OUT_OF_ORDER_ENTRY)
                inner = Entry(
                    agent=command.agent,
                    epoch=command.epoch,
                    n=command.n,
                    stamp_ms=0,
                    commands=command.commands,
                )
                standing, answers = self.apply(inner, self.position, time_ms)
                return Relayed(standing.value, answers)
            case SaveMembers() if self.level < 5:
                return Refused(Refusal.LEVEL_NOT_ON)
            case SaveShares() if self.level < 6:
                return Refused(Refusal.LEVEL_NOT_ON)
            case SaveGroup() | SaveMembers() | SaveShares() | CommitOffsets() | DeleteOffsets():
                if self._stale([command.group_id], command.shard_epoch):
                    return Refused(Refusal.STALE_SHARD)
            case DeleteGroups():
                if self._stale(command.group_ids, command.shard_epoch):
                    return Refused(Refusal.STALE_SHARD)
            case NoteLostHistory() | CloseHistory() if self.level < 4:
                return Refused(Refusal.LEVEL_NOT_ON)
            case NoteLostHistory():
                return self._note(command)
            case CloseHistory():
                return self._close(command)
            case CondemnObjects() if any(one.is_open for one in self.histories):
                known = [key for key in command.keys if key in self.log.objects]
                return self.log.apply(CondemnObjects(keys=known), time_ms)
            case CommitRuns() if command.wal >> 32:
                owned = {
                    wal.key
                    for wal in self.wals.values()
                    if (wal.agent, wal.epoch) == (entry.agent, entry.epoch)
                }
                if command.wal >> 32 not in owned:
                    return Refused(Refusal.WAL_NOT_OWNED)
                for wal in self.wals.values():
                    if wal.key == command.wal >> 32:
                        wal.last_generation = max(wal.last_generation, command.wal % (1 << 32))
            case CommitRuns() if command.object_key and command.raw:
                named = self.log.objects.get(command.object_key, "never")
                if named == "never" and self.level < 2:
                    return Refused(Refusal.LEVEL_NOT_ON)
                if named == "never":
                    self.raw.add(command.object_key)
        self.log.level = self.level
        answer = self.log.apply(command, time_ms)
        self.raw &= set(self.log.objects)
        return answer

    def _stale(self, group_ids: list[str], shard_epoch: int) -> bool:
        if self.level < 2:
            return shard_epoch < 0
        return any(self.shards[group_shard(one)].epoch != shard_epoch for one in group_ids)

    def _note(self, command: NoteLostHistory) -> AnyAnswer:
        if not 1 <= command.start <= command.end or not 1 <= command.reason <= 3:
            return Refused(Refusal.MALFORMED)
        mark = (command.end, command.stamp_ms, command.crc)
        covered = set(range(command.start, command.end + 1))
        for one in self.histories:
            if one.marks == mark:
                return HistoryNoted(one.number)
        for one in self.histories:
            if one.is_open and one.positions & covered:
                if command.end > max(one.positions):
                    one.marks = mark
                one.positions |= set(range(min(covered | one.positions), max(covered) + 1))
                one.noted = self.position
                self._leave_lost_numbers()
                return HistoryNoted(one.number)
        self._leave_lost_numbers()
        self.histories.append(
            HistoryState(len(self.histories) + 1, covered, mark, noted=self.position)
        )
        return HistoryNoted(len(self.histories))

    def _leave_lost_numbers(self) -> None:
        self.wal_count += 1 << 10
        self.log.next_producer_id += 1 << 32

    def _close(self, command: CloseHistory) -> AnyAnswer:
        if command.records < 0:
            return Refused(Refusal.MALFORMED)
        for one in self.histories:
            if one.number == command.history:
                if one.is_open and one.noted > command.seen_position:
                    return Refused(Refusal.HISTORY_GREW)
                if one.is_open:
                    one.is_open, one.records = False, command.records
                    one.gave_up = command.give_up
                return Done()
        return Refused(Refusal.UNKNOWN_HISTORY)

    def _fence(self, command: Fence, *, by: int) -> AnyAnswer:
        state = self.agents.get(command.agent)
        if state is None:
            return Refused(Refusal.UNKNOWN_AGENT)
        unseen = (self.position, *range(command.seen_position + 1, self.position))
        ends_itself = by == command.agent and self.level >= 4
        if state.epoch != command.epoch or (state.last_position in unseen and not ends_itself):
            return Refused(Refusal.AGENT_IS_ALIVE)
        if state.status is not AgentStatus.FENCED:
            state.status = AgentStatus.FENCED
            self._free(command.agent)
        return Done()

    def _free(self, agent: int) -> None:
        self.shards = [
            replace(shard, owner=None) if shard.owner == agent else shard for shard in self.shards
        ]

    def _remove(self, command: RemoveAgent) -> AnyAnswer:
        state = self.agents.get(command.agent)
        if state is None:
            return Refused(Refusal.UNKNOWN_AGENT)
        if state.status is not AgentStatus.FENCED or state.last_position == self.position:
            return Refused(Refusal.AGENT_IS_ALIVE)
        owned = {name: wal for name, wal in self.wals.items() if wal.agent == command.agent}
        named = {
            batch.place >> 32
            for partition in self.log.partitions.values()
            for batch in partition.batches
            if isinstance(batch.place, int)
        }
        if any(wal.key in named for wal in owned.values()):
            return Refused(Refusal.WAL_IN_USE)
        for name in owned:
            del self.wals[name]
        del self.agents[command.agent]
        self.removed_epoch = max(self.removed_epoch, state.epoch)
        return Done()

    def _claim_wal(self, entry: Entry, command: ClaimWal) -> AnyAnswer:
        wal = self.wals.get(command.wal_id)
        if wal is None:
            self.wal_count += 1
            wal = self.wals[command.wal_id] = WalState(self.wal_count, 0, 0)
        owner = self.agents.get(wal.agent)
        if (
            owner is not None
            and wal.agent != entry.agent
            and owner.epoch == wal.epoch
            and owner.status is not AgentStatus.FENCED
        ):
            return Refused(Refusal.AGENT_IS_ALIVE)
        wal.agent, wal.epoch = entry.agent, entry.epoch
        return WalClaimed(wal.key, wal.last_generation)
