"""The state machine's report of what an entry changed, for those that keep a view. Values. Pure.

The thread that applies entries hands these to the event loop, where `view.StateView` and the
log's caches follow them. They are not durable and not part of any format.
"""

from dataclasses import dataclass

from msgspec import Struct

from penstock.model.ids import PartitionKey, TopicId, TopicKey
from penstock.security.acl import AclBinding
from penstock.security.api_key import ApiKey
from penstock.security.quota import QuotaChange
from penstock.security.scram.credential import ScramCredential, ScramMechanism
from penstock.state.rows import Agent, LostHistory, Shard
from penstock.state.state_digest import StateDigest


class TopicChanged(Struct, frozen=True, kw_only=True):
    """A topic was created, or its partition count or configs are new. Carries the whole of it."""

    topic_key: TopicKey
    topic_id: TopicId
    name: str
    partitions: int
    configs: dict[str, str]
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic is gone."""

    topic_key: TopicKey
    topic_id: TopicId
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfigsChanged:
    """All cluster-wide configs, as they are now."""

    configs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigsChanged:
    """All configs of a group, as they are now."""

    group_id: str
    configs: dict[str, str]


class HeadMoved(Struct, frozen=True, gc=False):
    """A partition's offsets are new. Positional and a struct, which takes a fifth of the time to
    make, since there is one per partition and commit."""

    partition_key: PartitionKey
    log_start: int
    next_offset: int


class OpenMoved(Struct, frozen=True, gc=False):
    """The least first offset of the transactions that are open in a partition is another; -1: none
    is open. `aborted_at`: the marker's offset, if one was aborted; else -1."""

    partition_key: PartitionKey
    first_open: int
    aborted_at: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """A transaction ended in partitions. `places`: partition keys and offsets of its markers."""

    producer_id: int
    producer_epoch: int
    commits: bool
    time_ms: int
    places: list[tuple[PartitionKey, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsMoved:
    """Runs of a partition in [start, end) lie elsewhere now (StoreSegment, ReplaceRuns). `cleaned`:
    and no longer have all the records that they had. `repaired`: all of them were damaged, and
    nothing damaged is left there (AcceptLoss, RestoreRuns); of other moves a damaged run may stay
    behind."""

    partition_key: PartitionKey
    start: int
    end: int
    cleaned: bool = False
    repaired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsSettled:
    """A transaction was committed that had offsets of these groups: they have them now."""

    groups: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChanged:
    """An agent opened an epoch, or its status is new. Carries the whole of it."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """An entry of an agent was applied at a position. Positional, since there is one per entry."""

    agent_id: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRemoved:
    """An agent was forgotten."""

    agent_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMoved:
    """A shard of groups has another owner, or none: its owner's epoch is over."""

    shard: Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChanged:
    """The feature level, as it is now."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryChanged:
    """A lost history was noted, grew, or was closed. Carries the whole of it."""

    history: LostHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestAsked:
    """A digest of the state at a position is due, from these agents: pairs of id and epoch."""

    position: int
    agents: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestTold:
    """An agent answered the last `DigestAsked`."""

    agent_id: int
    digest: StateDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class AclsChanged:
    """Access rules that weren't there are, or those that were there aren't any more."""

    added: list[AclBinding]
    removed: list[AclBinding]


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialChanged:
    """A user's credential for one mechanism is another; None: it is gone."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyChanged:
    """There is a new API key; `key` None: it is gone."""

    key_id: str
    key: ApiKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasChanged:
    """Quotas that have another value, or none any more."""

    changes: list[QuotaChange]


Change = (
    TopicChanged
    | TopicDeleted
    | ClusterConfigsChanged
    | GroupConfigsChanged
    | HeadMoved
    | OpenMoved
    | MarkersWritten
    | RunsMoved
    | OffsetsSettled
    | AgentChanged
    | AgentSeen
    | AgentRemoved
    | ShardMoved
    | LevelChanged
    | HistoryChanged
    | DigestAsked
    | DigestTold
    | AclsChanged
    | CredentialChanged
    | ApiKeyChanged
    | QuotasChanged
)
