"""The configs of share groups, by Kafka's names, and what a group's own ones make of them. Pure.

Source: GroupConfig and ShareGroupConfig of Kafka 4.3.1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.model.group_configs import SHARE_RENEW, group_flag

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BY_DURATION: Final = "by_duration:"
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfigs:
    """The configs of one share group. Defaults are Kafka's; times in milliseconds."""

    session_timeout_ms: int = 45_000
    """share.session.timeout.ms"""
    heartbeat_interval_ms: int = 5_000
    """share.heartbeat.interval.ms"""
    record_lock_duration_ms: int = 30_000
    """share.record.lock.duration.ms: how long a member may have records without an answer."""
    delivery_count_limit: int = 5
    """share.delivery.count.limit: after so many deliveries a record is archived."""
    partition_max_record_locks: int = 2_000
    """share.partition.max.record.locks: how far deliveries of one partition run ahead of what is
    answered."""
    auto_offset_reset: str = LATEST
    """share.auto.offset.reset: earliest, latest, or by_duration: with an ISO 8601 duration."""
    isolation_level: str = READ_UNCOMMITTED
    """share.isolation.level"""
    renew_acknowledge: bool = True
    """share.renew.acknowledge.enable"""


GroupConfigs = Callable[[str], Mapping[str, str]]
"""Gives the configs that were set for a group, by Kafka's names."""


def share_configs(own: Mapping[str, str]) -> ShareConfigs:
    """Return the configs of a group.

    Args:
        own: what was set for it; each value was checked when it was set.
    """
    if not own:
        return _DEFAULTS

    def number(name: str, default: int) -> int:
        return int(own.get(name, default))

    return ShareConfigs(
        session_timeout_ms=number("share.session.timeout.ms", _DEFAULTS.session_timeout_ms),
        heartbeat_interval_ms=number(
            "share.heartbeat.interval.ms", _DEFAULTS.heartbeat_interval_ms
        ),
        record_lock_duration_ms=number(
            "share.record.lock.duration.ms", _DEFAULTS.record_lock_duration_ms
        ),
        delivery_count_limit=number("share.delivery.count.limit", _DEFAULTS.delivery_count_limit),
        partition_max_record_locks=number(
            "share.partition.max.record.locks", _DEFAULTS.partition_max_record_locks
        ),
        auto_offset_reset=own.get("share.auto.offset.reset", _DEFAULTS.auto_offset_reset),
        isolation_level=own.get("share.isolation.level", _DEFAULTS.isolation_level),
        renew_acknowledge=group_flag(SHARE_RENEW, own, {}),
    )


_DEFAULTS: Final = ShareConfigs()
