"""Settings of group coordination, as values; where they are read from is the config's work."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.model.group_configs import CONSUMER_HEARTBEAT, CONSUMER_SESSION

INT32_MAX = (1 << 31) - 1


class MigrationPolicy(StrEnum):
    """The ways in which groups with members may change their protocol; the names are Kafka's."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group becomes a consumer group when a member of KIP-848 joins."""
        return self in {MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL}

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group becomes a classic one when its last member of KIP-848 leaves."""
        return self in {MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Defaults are Kafka's. Times in milliseconds."""

    initial_rebalance_delay_ms: int = 3000
    """group.initial.rebalance.delay.ms: how long the first members of an empty group wait for
    others (KIP-134), so that starting ten of them is one rebalance and not ten."""
    session_timeout_ms_min: int = 6_000
    """group.min.session.timeout.ms"""
    session_timeout_ms_max: int = 1_800_000
    """group.max.session.timeout.ms"""
    size_max: int = INT32_MAX
    """group.max.size: members of one group at most (KIP-389)."""
    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms"""
    consumer_heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms: what members of KIP-848 groups are answered."""
    consumer_size_max: int = INT32_MAX
    """group.consumer.max.size: members of one KIP-848 group at most."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    """group.consumer.migration.policy"""
    share_size_max: int = 200
    """group.share.max.size: members of one share group at most."""
    streams_size_max: int = INT32_MAX
    """group.streams.max.size: members of one streams group at most."""
    share_sessions_max: int = 2_000
    """group.share.max.share.sessions: members that may fetch by sessions at one time."""
    groups_max: int = 100_000
    """Groups of the cluster at most."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member's first join may wait; it has no session yet."""
    offset_metadata_length_max: int = 4096
    """offset.metadata.max.bytes: characters, as Kafka counts them."""
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    """offsets.retention.minutes"""
    idle_groups_max: int = 1_000
    """Groups without members that are kept in memory; more are read again when they are used."""
    expire_groups_max: int = 1_000
    """Groups that one call of `expire` looks at."""

    @property
    def group_defaults(self) -> Mapping[str, str]:
        """Values of groups that set nothing else, by the names of group configs. Configs that are
        not here have Kafka's defaults."""
        return {
            CONSUMER_SESSION: str(self.consumer_session_timeout_ms),
            CONSUMER_HEARTBEAT: str(self.consumer_heartbeat_interval_ms),
        }
