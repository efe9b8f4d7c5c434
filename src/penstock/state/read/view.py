"""The state as the event loop sees it: topics, heads, agents and shards in memory, kept up by
changes.

No SQL after `load`. The code that applies entries hands its changes over in order; readers on the
same thread see all of an entry or nothing.
"""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from penstock.model.ids import (
    PartitionKey,
    TopicId,
    TopicKey,
    partition_key,
    partition_of,
    topic_key_of,
)
from penstock.model.topic_names import folded
from penstock.records.sums import partition_seed
from penstock.security.acl_index import AclIndex
from penstock.security.api_key import ApiKey
from penstock.security.quota_index import QuotaIndex
from penstock.security.scram.credential import ScramCredential, ScramMechanism
from penstock.state.changes import (
    AclsChanged,
    AgentChanged,
    AgentRemoved,
    AgentSeen,
    ApiKeyChanged,
    Change,
    ClusterConfigsChanged,
    CredentialChanged,
    DigestAsked,
    DigestTold,
    GroupConfigsChanged,
    HeadMoved,
    HistoryChanged,
    LevelChanged,
    MarkersWritten,
    OffsetsSettled,
    OpenMoved,
    QuotasChanged,
    RunsMoved,
    ShardMoved,
    TopicChanged,
    TopicDeleted,
)
from penstock.state.digest_plan import DigestRound
from penstock.state.leader_epochs import FIRST_EPOCH, EpochStart
from penstock.state.read.queries import Queries
from penstock.state.rows import Agent, LostHistory, Shard
from penstock.state.transactions import NO_OPEN


class Topic(Struct, frozen=True):
    """A topic as of now; a changed one is a new value."""

    topic_key: TopicKey
    topic_id: TopicId
    name: str
    partitions: int
    configs: dict[str, str]
    replication_factor: int = 0
    """How many replicas clients are shown; 0: as many as there are zones."""


_OF_OTHERS: Final = frozenset((RunsMoved, OffsetsSettled, MarkersWritten))
"""The changes that move the log's caches, or wake who waits, and not the view."""


class Head:
    """A partition's log start and next offset (the high watermark), the first offset of what is
    open there (NO_OPEN: no transaction is), and the offset of the last marker of an abort (-1:
    there is none). Changes in place."""

    __slots__ = ("first_open", "last_aborted", "log_start", "next_offset")

    def __init__(self, log_start: int, next_offset: int, first_open: int = NO_OPEN) -> None:
        self.log_start = log_start
        self.next_offset = next_offset
        self.first_open = first_open
        self.last_aborted = -1

    @property
    def last_stable(self) -> int:
        """Below this offset every transaction has ended. Never below the log start."""
        first_open = self.first_open
        return self.next_offset if first_open < 0 else max(first_open, self.log_start)

    def __repr__(self) -> str:
        return f"Head(log_start={self.log_start}, next_offset={self.next_offset})"


class StateView:
    """Topics by name, id and key; heads by partition key. One thread."""

    def __init__(self) -> None:
        """An empty view; `load` reads one."""
        self.cluster_configs: dict[str, str] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        """Configs of the groups that have some, by group id."""
        self.generation = 0
        """Grows with each change of a topic, config or access rule, so that others can cache."""
        self.loaded_position = 0
        """The last entry of the state that `load` read."""
        self.feature_level = 1
        self.leader_epoch = 0
        """How often the log was restored; constant while it is served."""
        self.open_histories: dict[int, LostHistory] = {}
        """Histories that the journal has lost and no operator has closed, by number."""
        self.digests = DigestRound()
        """The last round of digests, and what is answered of it."""
        self.acls = AclIndex()
        """The access rules. A change of them is one of `generation`, too."""
        self.credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        """Credentials by user and mechanism; each user has one at least."""
        self.credential_count = 0
        self.revocations = 0
        """Grows with each credential that is deleted."""
        self.api_keys: dict[str, ApiKey] = {}
        """API keys by id."""
        self.quotas = QuotaIndex()
        self.agents_generation = 0
        """Grows with each change of an agent or of a shard's owner."""
        self._agents: dict[int, Agent] = {}
        self._last_positions: dict[int, int] = {}
        self._shards: dict[int, Shard] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_folded: dict[str, list[str]] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._by_key: dict[TopicKey, Topic] = {}
        self._heads: dict[PartitionKey, Head] = {}
        self._epoch_starts: dict[PartitionKey, tuple[EpochStart, ...]] = {}

    @classmethod
    def load(cls, queries: Queries) -> "StateView":
        """Read it as of one moment."""
        view = cls()
        view.reload(queries)
        return view

    def reload(self, queries: Queries) -> None:
        """Read it again, in place, as of one moment: changes were missed."""
        self._by_name, self._by_id, self._by_key = {}, {}, {}
        self._by_folded = {}
        self.generation += 1
        self.agents_generation += 1
        queries.begin()
        try:
            self.cluster_configs = queries.cluster_configs()
            self.acls.replace(queries.acls())
            self.quotas.replace(queries.quotas())
            self.group_configs = queries.group_configs()
            for row in queries.topic_rows():
                self._put(
                    Topic(
                        TopicKey(row.topic_key),
                        TopicId(row.topic_id),
                        row.name,
                        row.partitions,
                        row.configs,
                        row.replication_factor,
                    )
                )
            self._reload_heads(queries)
            self.credentials = {}
            for user, credential in queries.credentials():
                self.credentials.setdefault(user, {})[credential.mechanism] = credential
            self.credential_count = sum(map(len, self.credentials.values()))
            self.api_keys = {key.key_id: key for key in queries.api_keys()}
            self.revocations += 1  # perhaps: what was there before isn't compared
            self.loaded_position = queries.position()
            self.feature_level = queries.feature_level()
            self.leader_epoch = queries.leader_epoch()
            self.digests = queries.digests()
            self._epoch_starts = queries.epoch_starts()
            self._agents = {agent.agent_id: agent for agent in queries.agents()}
            self._last_positions = queries.last_positions()
            self._shards = {shard.shard: shard for shard in queries.shards()}
            self.open_histories = {
                found.history: found
                for found in queries.lost_histories()
                if found.closed_ms is None
            }
        finally:
            queries.end()

    def _reload_heads(self, queries: Queries) -> None:
        """In place: fetches that wait hold the heads of their partitions."""
        before, self._heads = self._heads, {}
        for key, log_start, next_offset in queries.heads():
            head = self._heads[key] = before.get(key) or Head(log_start, next_offset)
            head.log_start, head.next_offset = log_start, next_offset
            head.first_open, head.last_aborted = NO_OPEN, -1
        for key, first_open in queries.first_open().items():
            if key in self._heads:
                self._heads[key].first_open = first_open
        for key, marker_offset in queries.last_aborted().items():
            if key in self._heads:
                self._heads[key].last_aborted = marker_offset

    def apply(self, changes: Sequence[Change]) -> None:
        """Follow one or more entries, in order."""
        heads = self._heads
        for change in changes:
            # The first by far the most frequent.
            if type(change) is HeadMoved:
                head = heads.get(change.partition_key)
                if head is not None:
                    head.log_start = change.log_start
                    head.next_offset = change.next_offset
            elif type(change) is AgentSeen:
                self._last_positions[change.agent_id] = change.position
            elif type(change) is OpenMoved:
                head = heads.get(change.partition_key)
                if head is not None:
                    head.first_open = change.first_open
                    if change.aborted_at >= 0:
                        head.last_aborted = change.aborted_at
            elif type(change) in _OF_OTHERS:
                pass
            elif type(change) is TopicChanged:
                self._change(change)
            elif type(change) is TopicDeleted:
                self._delete(change)
            elif type(change) is ClusterConfigsChanged:
                self.cluster_configs = change.configs
                self.generation += 1
            elif type(change) is AclsChanged:
                self.acls.change(added=change.added, removed=change.removed)
                self.generation += 1
            elif type(change) is CredentialChanged:
                self._change_credential(change)
            elif type(change) is ApiKeyChanged:
                if change.key is None:
                    self.api_keys.pop(change.key_id, None)
                else:
                    self.api_keys[change.key_id] = change.key
            elif type(change) is QuotasChanged:
                self.quotas.change(change.changes)
            else:
                self._change_cluster(change)

    def topic(self, name: str) -> Topic | None:
        """Find a topic by its name."""
        return self._by_name.get(name)

    def similar_name(self, name: str) -> str | None:
        """A topic's name that differs from `name` in nothing but '.' for '_'; None: there is none
        (KAFKA-2337)."""
        for other in self._by_folded.get(folded(name) or "", ()):
            if other != name:
                return other
        return None

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Find a topic by its id."""
        return self._by_id.get(topic_id)

    def topic_by_key(self, topic_key: TopicKey) -> Topic | None:
        """Find a topic by its key."""
        return self._by_key.get(topic_key)

    def topics(self) -> Collection[Topic]:
        """All topics, in the order of their creation."""
        return self._by_key.values()

    @property
    def partition_count(self) -> int:
        """Partitions of all topics together."""
        return len(self._heads)

    def head(self, key: PartitionKey) -> Head | None:
        """A partition's offsets; None: there is no such partition."""
        return self._heads.get(key)

    def seed(self, key: PartitionKey) -> int | None:
        """Return the seed of the sums of a partition's runs (`penstock.records.sums`).

        Returns:
            None: the topic does not exist.
        """
        topic = self._by_key.get(topic_key_of(key))
        return None if topic is None else partition_seed(topic.topic_id, partition_of(key))

    def epoch_starts(self, key: PartitionKey) -> tuple[EpochStart, ...]:
        """A partition's leader epochs, at least one; see `penstock.state.leader_epochs`."""
        return self._epoch_starts.get(key, FIRST_EPOCH)

    def agents(self) -> Collection[Agent]:
        """All agents that are known, fenced ones too, by id."""
        return self._agents.values()

    def agent(self, agent_id: int) -> Agent | None:
        """Find an agent by its id."""
        return self._agents.get(agent_id)

    def last_position(self, agent_id: int) -> int:
        """The position of an agent's last applied entry; 0: none is known."""
        return self._last_positions.get(agent_id, 0)

    def shard_owner(self, shard: int) -> int | None:
        """The agent that owns a shard of groups; None: none does now."""
        found = self._shards.get(shard)
        return None if found is None else found.owner

    def shard_epoch(self, shard: int) -> int:
        """Count the claims of the shard; commands about its groups carry this number."""
        found = self._shards.get(shard)
        return 0 if found is None else found.shard_epoch

    def _change_credential(self, change: CredentialChanged) -> None:
        own = dict(self.credentials.get(change.user, {}))
        self.credential_count -= len(own)
        if change.credential is None:
            own.pop(change.mechanism, None)
            self.revocations += 1
        else:
            own[change.mechanism] = change.credential
        self.credential_count += len(own)
        if own:
            self.credentials[change.user] = own
        else:
            self.credentials.pop(change.user, None)

    def _change_cluster(self, change: Change) -> None:
        if type(change) is AgentChanged:
            agents = self._agents
            known = change.agent.agent_id in agents
            agents[change.agent.agent_id] = change.agent
            if not known:
                self._agents = dict(sorted(agents.items()))
        elif type(change) is AgentRemoved:
            self._agents.pop(change.agent_id, None)
            self._last_positions.pop(change.agent_id, None)
        elif type(change) is ShardMoved:
            self._shards[change.shard.shard] = change.shard
        elif type(change) is GroupConfigsChanged:
            if change.configs:
                self.group_configs[change.group_id] = change.configs
            else:
                self.group_configs.pop(change.group_id, None)
            return
        elif type(change) is HistoryChanged:
            found = change.history
            if found.closed_ms is None:
                self.open_histories[found.history] = found
            else:
                self.open_histories.pop(found.history, None)
        elif type(change) is DigestAsked:
            self.digests = DigestRound(change.position, dict(change.agents))
            return
        elif type(change) is DigestTold:
            self.digests.answers[change.agent_id] = change.digest
            return
        else:
            assert type(change) is LevelChanged, change
            self.feature_level = change.level
            return
        self.agents_generation += 1

    def _put(self, topic: Topic) -> None:
        fold = folded(topic.name)
        if fold is not None and topic.name not in self._by_name:
            self._by_folded.setdefault(fold, []).append(topic.name)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_key[topic.topic_key] = topic

    def _change(self, change: TopicChanged) -> None:
        topic = Topic(
            change.topic_key,
            change.topic_id,
            change.name,
            change.partitions,
            change.configs,
            change.replication_factor,
        )
        before = self._by_key.get(topic.topic_key)
        self._put(topic)
        for number in range(before.partitions if before else 0, topic.partitions):
            key = partition_key(topic.topic_key, number)
            self._heads[key] = Head(0, 0)
            if self.leader_epoch:
                self._epoch_starts[key] = ((self.leader_epoch, 0),)
        self.generation += 1

    def _delete(self, change: TopicDeleted) -> None:
        topic = self._by_key.pop(change.topic_key)
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        fold = folded(topic.name)
        if fold is not None:
            similar = self._by_folded[fold]
            similar.remove(topic.name)
            if not similar:
                del self._by_folded[fold]
        for number in range(topic.partitions):
            key = partition_key(topic.topic_key, number)
            self._heads.pop(key, None)
            self._epoch_starts.pop(key, None)
        self.generation += 1
