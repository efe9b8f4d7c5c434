"""Topic configs: which are known, what their values may be, which one counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidRequestError
from penstock.model.topic_configs import (
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
    Standing,
    topic_settings,
    validate,
    validate_cluster,
)

KAFKA_4_NAMES = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


OWN_NAMES = [
    "penstock.durability",
    "penstock.flush.interval.ms",
    "penstock.retention.messages",
    "penstock.table",
    "penstock.table.begin",
    "penstock.table.dlq",
    "penstock.table.key.schema",
    "penstock.table.mode",
    "penstock.table.name",
    "penstock.table.orphan.retention.ms",
    "penstock.table.partition",
    "penstock.table.retention.wait.ms",
    "penstock.table.schema",
    "penstock.table.schema.incompatible",
    "penstock.table.schema.text",
    "penstock.table.schema.unknown",
    "penstock.table.snapshot.retention.ms",
    "penstock.validate.records",
]


def test_every_topic_config_of_kafka_4_is_known_in_order_and_ours_have_a_prefix() -> None:
    assert list(TOPIC_CONFIGS) == sorted(KAFKA_4_NAMES + OWN_NAMES)


@pytest.mark.parametrize("value", ["wal", "object"])
def test_a_topic_chooses_its_durability(value: str) -> None:
    validate({"penstock.durability": value})
    assert topic_settings({"penstock.durability": value}, {}).durability == value
    assert topic_settings({}, {"penstock.durability": value}).durability == value
    assert topic_settings({}, {}).durability == ""


def test_a_topic_becomes_a_table_and_retention_waits_for_it_a_week() -> None:
    settings = topic_settings({}, {})
    assert (settings.table, settings.table_retention_wait_ms) == ("", 7 * 86_400_000)
    configs = {"penstock.table": "iceberg", "penstock.table.retention.wait.ms": "5"}
    validate(configs)
    settings = topic_settings(configs, {})
    assert (settings.table, settings.table_retention_wait_ms) == ("iceberg", 5)
    with pytest.raises(InvalidRequestError, match="one of"):
        validate({"penstock.table": "delta"})


def test_a_quorum_is_refused_and_the_error_says_why() -> None:
    with pytest.raises(InvalidRequestError, match="quorum of buckets is not there yet"):
        validate({"penstock.durability": "quorum"})
    with pytest.raises(InvalidRequestError, match="one of"):
        validate({"penstock.durability": "disk"})


def test_every_default_is_valid_and_every_other_standing_has_a_reason() -> None:
    validate({name: config.default for name, config in TOPIC_CONFIGS.items()})
    for config in TOPIC_CONFIGS.values():
        assert config.documentation
        assert bool(config.reason) == (config.standing is not Standing.HONOURED)


GOOD = [
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "delete, compact"),
    ("compression.type", "zstd"),
    ("retention.ms", "-1"),
    ("retention.ms", " 5 "),
    ("max.message.bytes", "0"),
    ("min.cleanable.dirty.ratio", "1.0"),
    ("preallocate", "TRUE"),
    ("remote.storage.enable", "false"),
    ("leader.replication.throttled.replicas", "0:1,1:1"),
    ("follower.replication.throttled.replicas", "*"),
]
BAD = [
    ("cleanup.policy", ""),
    ("cleanup.policy", "delete,shred"),
    ("cleanup.policy", "delete,delete"),
    ("compression.type", "brotli"),
    ("compression.gzip.level", "10"),
    ("retention.ms", "-2"),
    ("retention.ms", "1_000"),
    ("retention.ms", "1.5"),
    ("retention.ms", "9223372036854775808"),
    ("retention.ms", "\u0663"),
    ("max.message.bytes", "2147483648"),
    ("message.timestamp.type", "createtime"),
    ("min.cleanable.dirty.ratio", "nan"),
    ("min.insync.replicas", "0"),
    ("preallocate", "yes"),
    ("remote.storage.enable", "true"),
    ("segment.bytes", "1024"),
    ("leader.replication.throttled.replicas", "a:1"),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_values_that_kafka_takes(name: str, value: str) -> None:
    validate({name: value})


@pytest.mark.parametrize(("name", "value"), BAD)
def test_values_that_are_refused_with_name_and_value(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate({name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@given(st.sampled_from(KAFKA_4_NAMES), st.text(max_size=30))
def test_any_text_is_valid_or_refused(name: str, value: str) -> None:
    try:
        validate({name: value})
    except InvalidRequestError:
        return
    # What is valid can be acted on.
    topic_settings({name: value}, {})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"no\.such"):
        validate({"no.such": "1"})
    with pytest.raises(InvalidRequestError, match=r"num\.partitions"):
        validate_cluster({"num.partitions": "3"})


def test_compaction_lags_must_not_contradict() -> None:
    validate({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidRequestError, match="above"):
        validate({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_kafkas_defaults() -> None:
    settings = topic_settings({}, {})
    assert settings.max_message_bytes == 1_048_588
    assert not settings.log_append_time
    assert settings.timestamp_before_max_ms == (1 << 63) - 1
    assert settings.timestamp_after_max_ms == 3_600_000
    assert settings.retention_ms == 7 * 24 * 3_600_000
    assert settings.retention_bytes == -1
    assert (settings.deletes, settings.compacts) == (True, False)


def test_the_topics_own_value_counts_before_the_clusters() -> None:
    cluster = {"log.retention.hours": "1", "log.retention.bytes": "10", "message.max.bytes": "5"}
    settings = topic_settings({"retention.bytes": "20"}, cluster)
    assert settings.retention_bytes == 20
    assert settings.retention_ms == 3_600_000
    assert settings.max_message_bytes == 5


def test_retention_by_count_has_kafkas_bounds_for_limits_and_a_default_for_all_topics() -> None:
    name = "penstock.retention.messages"
    assert topic_settings({}, {}).retention_messages == -1
    assert topic_settings({name: "5"}, {name: "7"}).retention_messages == 5
    assert topic_settings({}, {name: "7"}).retention_messages == 7
    for value in ("-2", "1.5", "many"):
        with pytest.raises(InvalidRequestError, match=r"penstock\.retention\.messages"):
            validate({name: value})


def test_the_finest_unit_of_retention_wins() -> None:
    cluster = {"log.retention.hours": "1", "log.retention.minutes": "2"}
    assert topic_settings({}, cluster).retention_ms == 120_000
    cluster["log.retention.ms"] = "3"
    assert topic_settings({}, cluster).retention_ms == 3
    assert topic_settings({}, {"log.retention.hours": "-1"}).retention_ms == -1


def test_policies_are_read_from_the_list() -> None:
    both = topic_settings({"cleanup.policy": "compact, delete"}, {})
    assert (both.deletes, both.compacts) == (True, True)
    compact = topic_settings({}, {"log.cleanup.policy": "compact"})
    assert (compact.deletes, compact.compacts) == (False, True)


def test_cluster_configs_are_checked_like_those_of_topics() -> None:
    validate_cluster({"log.retention.ms": "5", "message.max.bytes": "100"})
    with pytest.raises(InvalidRequestError, match=r"log\.retention\.ms"):
        validate_cluster({"log.retention.ms": "x"})
    assert all(name for name in CLUSTER_CONFIGS)
