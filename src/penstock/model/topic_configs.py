"""Topic configs: what may be set, and which value counts. Pure.

An effective value is the topic's own, else the cluster's default (under the broker config's name,
as in Kafka), else Kafka's default. The configs themselves are the table in
`penstock.model.topic_config_table`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.broker_configs import BROKER_CONFIGS
from penstock.model.errors import InvalidRequestError
from penstock.model.topic_config import (
    INT64_MAX,
    ConfigType,
    Standing,
    TopicConfig,
    split_list,
)
from penstock.model.topic_config_table import CLUSTER_CONFIGS, TOPIC_CONFIGS

__all__ = [
    "CLUSTER_CONFIGS",
    "INT64_MAX",
    "TOPIC_CONFIGS",
    "ConfigType",
    "Standing",
    "TopicConfig",
    "TopicSettings",
    "cluster_default",
    "effective",
    "topic_settings",
    "validate",
    "validate_cluster",
]


def validate(configs: Mapping[str, str]) -> None:
    """Check a topic's own configs.

    Raises:
        InvalidRequestError: a name that Kafka does not have, a bad value, or two that contradict.
    """
    for name, value in configs.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise InvalidRequestError("validate", "topic config", f"unknown name {name!r}")
        problem = config.check(value)
        if problem is not None:
            raise InvalidRequestError(
                "validate", f"topic config {name}", f"the value {value!r} is invalid: {problem}"
            )
    low = int(configs.get("min.compaction.lag.ms", "0"))
    high = int(configs.get("max.compaction.lag.ms", str(INT64_MAX)))
    if low > high:
        raise InvalidRequestError(
            "validate",
            "topic config min.compaction.lag.ms",
            f"{low} is above max.compaction.lag.ms, which is {high}",
        )


def validate_cluster(configs: Mapping[str, str]) -> None:
    """Check cluster-wide defaults, under the names of Kafka's broker configs.

    Raises:
        InvalidRequestError: a name that sets no default of topics and isn't in `BROKER_CONFIGS`, or
            a bad value.
    """
    for name, value in configs.items():
        known, _ = CLUSTER_CONFIGS.get(name) or (BROKER_CONFIGS.get(name), 1)
        if known is None:
            raise InvalidRequestError(
                "validate", f"cluster config {name}", "it cannot be changed while the server runs"
            )
        problem = known.check(value)
        if problem is not None:
            raise InvalidRequestError(
                "validate", f"cluster config {name}", f"the value {value!r} is invalid: {problem}"
            )


def cluster_default(
    config: TopicConfig, cluster_configs: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return what the cluster's configs set as the config's default.

    Returns:
        The broker config that decides and the value in the topic config's unit; None: none does.
    """
    for name, factor in config.synonyms:
        value = cluster_configs.get(name)
        if value is not None:
            # Minus one means "no limit" in any unit.
            return name, value if factor == 1 or value == "-1" else str(int(value) * factor)
    return None


def effective(
    config: TopicConfig, topic_configs: Mapping[str, str], cluster_configs: Mapping[str, str]
) -> str:
    """The value that counts."""
    own = topic_configs.get(config.name)
    if own is not None:
        return own
    from_cluster = cluster_default(config, cluster_configs)
    return config.default if from_cluster is None else from_cluster[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic's configs, parsed for the log. Sizes in bytes, -1: no limit; times in ms."""

    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int
    retention_bytes: int
    retention_messages: int
    """Offsets that a partition keeps at most; -1: no limit."""
    deletes: bool
    compacts: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    validates_records: bool
    """Whether a produced batch's records are looked at, or its header alone."""
    durability: str
    """`wal`, `object`, or empty: as the agent says."""
    flush_interval_ms: int
    """-1: as the agent says."""
    table: str
    """Kind of table that follows the topic: `iceberg`, or empty: none does."""
    table_name: str
    """Name of the table; empty: made of the topic's name (`penstock.model.table_names`)."""
    table_retention_wait_ms: int
    """How long retention waits for that table at most."""

    @property
    def has_retention(self) -> bool:
        """Whether records leave the topic by themselves."""
        limits = (self.retention_ms, self.retention_bytes, self.retention_messages)
        return self.deletes and max(limits) >= 0


def topic_settings(
    topic_configs: Mapping[str, str], cluster_configs: Mapping[str, str]
) -> TopicSettings:
    """The settings of a topic.

    Args:
        topic_configs: the topic's own, valid.
        cluster_configs: cluster-wide defaults by broker config name, valid.
    """

    def text(name: str) -> str:
        return effective(TOPIC_CONFIGS[name], topic_configs, cluster_configs)

    def number(name: str) -> int:
        return int(text(name))

    policies = split_list(text("cleanup.policy"))
    return TopicSettings(
        max_message_bytes=number("max.message.bytes"),
        log_append_time=text("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        retention_messages=number("penstock.retention.messages"),
        deletes="delete" in policies,
        compacts="compact" in policies,
        delete_retention_ms=number("delete.retention.ms"),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        validates_records=text("penstock.validate.records").strip().lower() == "true",
        durability=text("penstock.durability"),
        flush_interval_ms=number("penstock.flush.interval.ms"),
        table=text("penstock.table"),
        table_name=text("penstock.table.name"),
        table_retention_wait_ms=number("penstock.table.retention.wait.ms"),
    )
