"""Each package has settings of its own; they are made here from a server's settings. Pure."""

from penstock.app.http.gate import HttpLimits
from penstock.config.about import MIB
from penstock.config.addresses import parse_counts
from penstock.config.checks import is_cluster, super_users
from penstock.config.settings import ServerSettings
from penstock.groups.settings import GroupSettings, MigrationPolicy
from penstock.kafka.access import AclSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log.settings import LogSettings
from penstock.membership.membership import MembershipSettings


def log_limits(settings: ServerSettings) -> LogSettings:
    """Return the limits of `penstock.log`."""
    return LogSettings(
        # A WAL file must have room for its header and one frame, so small files get small frames.
        frame_bytes_max=min(16 * MIB, settings.wal_file_bytes // 2),
        tail_cache_bytes=settings.tail_cache_bytes,
        block_cache_bytes=settings.block_cache_bytes,
        block_bytes=settings.block_bytes,
        check_again_after_ms=settings.check_again_after_ms,
        scrub_bytes_per_s=settings.scrub_bytes_per_s,
        scrub_bucket=settings.scrub_bucket,
        segment_bytes=settings.segment_bytes,
        segment_age_ms=settings.segment_age_ms,
        retention_check_ms=settings.retention_check_ms,
        delete_grace_ms=settings.delete_grace_ms,
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
        transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
        snapshot_interval_ms=settings.snapshot_interval_ms,
        snapshot_entries=settings.snapshot_entries,
        state_check_interval_ms=settings.state_check_interval_ms,
        state_check_entries=settings.state_check_entries,
        durability=_durability(settings),
        flush_bytes=settings.flush_bytes,
        flush_interval_ms=settings.flush_interval_ms,
    )


def membership_settings(settings: ServerSettings) -> MembershipSettings:
    """Return the settings of `penstock.membership`."""
    return MembershipSettings(
        heartbeat_ms=settings.heartbeat_ms, agent_timeout_ms=settings.agent_timeout_ms
    )


def kafka_settings(settings: ServerSettings) -> KafkaSettings:
    """Return the settings of `penstock.kafka`."""
    return KafkaSettings(
        auto_create_topics=settings.auto_create_topics,
        auto_create_topics_per_s=settings.auto_create_topics_per_s,
        default_partitions=settings.default_partitions,
        topics_max=settings.topics_max,
        partitions_max=settings.partitions_max,
        topic_partitions_max=settings.topic_partitions_max,
        create_partitions_max=settings.create_partitions_max,
        fetch_sessions_max=settings.max_incremental_fetch_session_cache_slots,
        request_bytes_max=settings.request_bytes_max,
        batch_records_max=settings.batch_records_max,
        batch_decoded_bytes_max=settings.batch_decoded_bytes_max,
        connections_max=settings.connections_max,
        connections_per_ip_max=settings.max_connections_per_ip,
        connections_per_ip_overrides=parse_counts(
            settings.max_connections_per_ip_overrides, setting="max_connections_per_ip_overrides"
        ),
        connections_max_idle_s=settings.connections_max_idle_ms / 1000,
        connection_budget_bytes=settings.connection_inflight_bytes_max,
        server_budget_bytes=settings.inflight_bytes_max,
        group_budget_bytes=settings.group_inflight_bytes_max,
        gather_ms=settings.gather_ms if _durability(settings) == "wal" else 0,
        stall_timeout_s=settings.stall_timeout_ms / 1000,
        request_timeout_s=settings.request_receive_timeout_ms / 1000,
        transaction_timeout_max_ms=settings.transaction_max_timeout_ms,
        transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
        acls=_acl_settings(settings),
        authentication_timeout_s=settings.authentication_timeout_ms / 1000,
        authentication_bytes_max=settings.sasl_server_max_receive_size,
        log_dir=settings.data,
    )


def _acl_settings(settings: ServerSettings) -> AclSettings | None:
    if not settings.authorizer:
        return None
    return AclSettings(
        super_users=super_users(settings),
        allow_if_no_acl=settings.allow_everyone_if_no_acl_found,
        stale_max_s=settings.authorizer_stale_max_ms / 1000,
    )


def http_limits(settings: ServerSettings) -> HttpLimits:
    """Return the limits of each port that speaks HTTP."""
    return HttpLimits(
        connections_max=settings.http_connections_max,
        header_s=settings.http_header_timeout_ms / 1000,
        body_s=settings.http_body_timeout_ms / 1000,
        stall_s=settings.stall_timeout_ms / 1000,
    )


def group_settings(settings: ServerSettings) -> GroupSettings:
    """Return the settings of `penstock.groups`."""
    return GroupSettings(
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        session_timeout_ms_min=settings.group_min_session_timeout_ms,
        session_timeout_ms_max=settings.group_max_session_timeout_ms,
        size_max=settings.group_max_size,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_size_max=settings.group_consumer_max_size,
        migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
        groups_max=settings.groups_max,
        offset_metadata_length_max=settings.offset_metadata_length_max,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
    )


def _durability(settings: ServerSettings) -> str:
    return settings.durability or ("object" if is_cluster(settings) else "wal")
