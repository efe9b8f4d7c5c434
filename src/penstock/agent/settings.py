"""An agent's settings, in the words of the packages that act on them. Pure."""

from dataclasses import dataclass, field

from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log.archive import ArchiveSettings
from penstock.log.settings import LogSettings
from penstock.membership.membership import MembershipSettings
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings; `cluster` is for agents whose journal several hosts share."""

    identity: AgentIdentity
    """How the agent announces itself. Where it writes the journal itself, that says its id."""
    advertised_host: str
    """Clients connect to this host, and to `advertised_port`."""
    advertised_port: int
    log: LogSettings
    groups: GroupSettings
    kafka: KafkaSettings
    retention_check_s: float
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    shards: ShardSettings = field(default_factory=ShardSettings)
    cut_off_s: float = 0.75
    """Without a reading of the journal's head, after which clients are sent to other agents."""
    cluster: "ClusterSettings | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """These settings concern a journal and a store that several hosts share."""

    archive: ArchiveSettings
    restore_window_ms: int
    """An object that a moment of the window named is deleted only after the window."""
    digest_interval_ms: int = 3_600_000
    """Between comparisons of the agents' states; 0: this agent asks for none."""
    order: ClusterOrderSettings = field(default_factory=ClusterOrderSettings)
