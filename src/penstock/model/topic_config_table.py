"""The table of topic configs: every one of Kafka 4, and our own (`penstock.*`); its type, default
and bounds, and what it means here. Pure. What follows from it is `penstock.model.topic_configs`.

A config is *honoured*; or *stored*, for the pipeline, which acts on it; or accepted *without
meaning*, since what it tunes does not exist here; or *refused* in all but one value, where taking
it silently would promise what is not done. docs/topic-configs.md is made from this table.
Source: Kafka 4.2, "Topic Configs" of the documentation.
"""

from collections.abc import Mapping
from typing import Final

from penstock.model.topic_config import (
    INT64_MAX,
    ConfigType,
    Standing,
    TopicConfig,
    any_text,
    boolean,
    cleanup_policy,
    durability,
    int32,
    int64,
    number,
    one_of,
    only_false,
    table_name,
    throttled_replicas,
    topic_name,
)

_NO_SEGMENT_FILES: Final = (
    "a partition has no segment files of its own: many partitions share a segment object"
)
_NO_REPLICAS: Final = "a partition has no replicas: its bytes are in the WAL and the object store"
_ALWAYS_FLUSHED: Final = "every append is durable before it is acknowledged"
_AS_PRODUCED: Final = "batches are kept as they were produced, whatever their compression"
_NO_TIERS: Final = "there is no second tier: all bytes move to the object store"

_H, _S, _M, _R = Standing.HONOURED, Standing.STORED, Standing.MEANINGLESS, Standing.REFUSED
_HOUR_MS: Final = 3_600_000

_TABLE: Final[tuple[TopicConfig, ...]] = (
    TopicConfig(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        check=cleanup_policy,
        documentation=(
            "What happens to old records: delete discards them by time, size and count, compact "
            "keeps the last one of each key; both may be given. A topic that is only compacted "
            "never loses records by time, size or count. `penstock pipeline` compacts, see "
            "docs/compaction.md."
        ),
        standing=_H,
        synonyms=(("log.cleanup.policy", 1),),
    ),
    TopicConfig(
        name="compression.gzip.level",
        type=ConfigType.INT,
        default="-1",
        check=int32(-1, 9),
        documentation="Level of gzip when the broker compresses.",
        standing=_M,
        reason=_AS_PRODUCED,
        synonyms=(("compression.gzip.level", 1),),
    ),
    TopicConfig(
        name="compression.lz4.level",
        type=ConfigType.INT,
        default="9",
        check=int32(1, 17),
        documentation="Level of lz4 when the broker compresses.",
        standing=_M,
        reason=_AS_PRODUCED,
        synonyms=(("compression.lz4.level", 1),),
    ),
    TopicConfig(
        name="compression.type",
        type=ConfigType.STRING,
        default="producer",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        documentation=(
            "The compression that Kafka turns batches into. Here every value means producer: "
            "batches pass through untouched, and consumers read any compression."
        ),
        standing=_M,
        reason=_AS_PRODUCED,
        synonyms=(("compression.type", 1),),
    ),
    TopicConfig(
        name="compression.zstd.level",
        type=ConfigType.INT,
        default="3",
        check=int32(-131072, 22),
        documentation="Level of zstd when the broker compresses.",
        standing=_M,
        reason=_AS_PRODUCED,
        synonyms=(("compression.zstd.level", 1),),
    ),
    TopicConfig(
        name="delete.retention.ms",
        type=ConfigType.LONG,
        default="86400000",
        check=int64(),
        documentation="How long a tombstone is kept in a compacted topic, in milliseconds.",
        standing=_S,
        reason="the pipeline's key compaction acts on it",
        synonyms=(("log.cleaner.delete.retention.ms", 1),),
    ),
    TopicConfig(
        name="file.delete.delay.ms",
        type=ConfigType.LONG,
        default="60000",
        check=int64(),
        documentation="How long a file stays after it was given up, in milliseconds.",
        standing=_M,
        reason="objects are deleted after the server's own grace",
        synonyms=(("log.segment.delete.delay.ms", 1),),
    ),
    TopicConfig(
        name="flush.messages",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        check=int64(1),
        documentation="After how many records the log is forced to disk.",
        standing=_M,
        reason=_ALWAYS_FLUSHED,
        synonyms=(("log.flush.interval.messages", 1),),
    ),
    TopicConfig(
        name="flush.ms",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        check=int64(),
        documentation="After how many milliseconds the log is forced to disk.",
        standing=_M,
        reason=_ALWAYS_FLUSHED,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    TopicConfig(
        name="follower.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        check=throttled_replicas,
        documentation="Replicas whose replication is throttled on the follower's side.",
        standing=_M,
        reason=_NO_REPLICAS,
    ),
    TopicConfig(
        name="index.interval.bytes",
        type=ConfigType.INT,
        default="4096",
        check=int32(),
        documentation="How densely the offset index is written, in bytes.",
        standing=_M,
        reason=_NO_SEGMENT_FILES,
        synonyms=(("log.index.interval.bytes", 1),),
    ),
    TopicConfig(
        name="leader.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        check=throttled_replicas,
        documentation="Replicas whose replication is throttled on the leader's side.",
        standing=_M,
        reason=_NO_REPLICAS,
    ),
    TopicConfig(
        name="local.retention.bytes",
        type=ConfigType.LONG,
        default="-2",
        check=int64(-2),
        documentation="Bytes that stay on local disk when storage is tiered.",
        standing=_M,
        reason=_NO_TIERS,
        synonyms=(("log.local.retention.bytes", 1),),
    ),
    TopicConfig(
        name="local.retention.ms",
        type=ConfigType.LONG,
        default="-2",
        check=int64(-2),
        documentation="Milliseconds that records stay on local disk when storage is tiered.",
        standing=_M,
        reason=_NO_TIERS,
        synonyms=(("log.local.retention.ms", 1),),
    ),
    TopicConfig(
        name="max.compaction.lag.ms",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        check=int64(1),
        documentation="After how many milliseconds a record must have been looked at.",
        standing=_S,
        reason="the pipeline's key compaction acts on it",
        synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
    ),
    TopicConfig(
        name="max.message.bytes",
        type=ConfigType.INT,
        default="1048588",
        check=int32(),
        documentation="The largest record batch, as sent (so after compression), in bytes.",
        standing=_H,
        synonyms=(("message.max.bytes", 1),),
    ),
    TopicConfig(
        name="message.timestamp.after.max.ms",
        type=ConfigType.LONG,
        default=str(_HOUR_MS),
        check=int64(),
        documentation=(
            "How far a record's timestamp may lie ahead of the server's clock, in milliseconds; "
            "not looked at with LogAppendTime."
        ),
        standing=_H,
        synonyms=(("log.message.timestamp.after.max.ms", 1),),
    ),
    TopicConfig(
        name="message.timestamp.before.max.ms",
        type=ConfigType.LONG,
        default=str(INT64_MAX),
        check=int64(),
        documentation=(
            "How far a record's timestamp may lie behind the server's clock, in milliseconds; "
            "not looked at with LogAppendTime."
        ),
        standing=_H,
        synonyms=(("log.message.timestamp.before.max.ms", 1),),
    ),
    TopicConfig(
        name="message.timestamp.type",
        type=ConfigType.STRING,
        default="CreateTime",
        check=one_of("CreateTime", "LogAppendTime"),
        documentation="Whose time a record carries: the producer's, or the server's at arrival.",
        standing=_H,
        synonyms=(("log.message.timestamp.type", 1),),
    ),
    TopicConfig(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        check=number(0, 1, float),
        documentation="How much of a log must be uncompacted before it is compacted.",
        standing=_S,
        reason="the pipeline's key compaction acts on it",
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
    ),
    TopicConfig(
        name="min.compaction.lag.ms",
        type=ConfigType.LONG,
        default="0",
        check=int64(),
        documentation="How long a record stays uncompacted at least, in milliseconds.",
        standing=_S,
        reason="the pipeline's key compaction acts on it",
        synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
    ),
    TopicConfig(
        name="min.insync.replicas",
        type=ConfigType.INT,
        default="1",
        check=int32(1),
        documentation="How many replicas must have a record before acks=all is answered.",
        standing=_M,
        reason=_NO_REPLICAS,
        synonyms=(("min.insync.replicas", 1),),
    ),
    TopicConfig(
        name="penstock.durability",
        type=ConfigType.STRING,
        default="",
        check=durability,
        documentation=(
            "When a batch is acknowledged: `wal`, once it is in the WAL of the agent that took it; "
            "`object`, once it is in the object store. Empty: as the agents' setting `durability` "
            "says. See docs/durability.md."
        ),
        standing=_H,
        synonyms=(("penstock.durability", 1),),
    ),
    TopicConfig(
        name="penstock.flush.interval.ms",
        type=ConfigType.INT,
        default="-1",
        check=int32(-1),
        documentation=(
            "With durability `object`, how many milliseconds a batch waits at most for others to "
            "share its object; -1: as the agents' setting `flush_interval_ms` says. A flush takes "
            "along all that waits, of whatever topic."
        ),
        standing=_H,
        synonyms=(("penstock.flush.interval.ms", 1),),
    ),
    TopicConfig(
        name="penstock.retention.messages",
        type=ConfigType.LONG,
        default="-1",
        check=int64(-1),
        documentation=(
            "Offsets that a partition keeps at most before the oldest are deleted; -1: no limit. "
            "Retention deletes to the exact offset, like DeleteRecords, and not by whole runs; "
            "between two of its passes (`retention_check_ms`) a partition may hold more. In a "
            "`compact,delete` topic offsets that a cleaning emptied count, so fewer records may "
            "stay; a topic that is only compacted ignores it. In a cluster that is being upgraded "
            "it acts from when the agent that does retention knows it; agents that do not know "
            "it refuse to alter the topic's configs until they are upgraded."
        ),
        standing=_H,
        synonyms=(("penstock.retention.messages", 1),),
    ),
    TopicConfig(
        name="penstock.table",
        type=ConfigType.STRING,
        default="",
        check=one_of("", "iceberg"),
        documentation=(
            "What the pipeline makes of the topic: `iceberg`, a table that follows it; or nothing. "
            "Retention waits for that table."
        ),
        standing=_H,
    ),
    TopicConfig(
        name="penstock.table.dlq",
        type=ConfigType.STRING,
        default="",
        check=topic_name,
        documentation=(
            "The topic that the table's bad records go to. Empty: this topic's name and `.dlq`. "
            "See docs/tables.md."
        ),
        standing=_S,
        reason="the pipeline's tables act on it",
    ),
    TopicConfig(
        name="penstock.table.key.schema",
        type=ConfigType.STRING,
        default="raw",
        check=one_of("raw", "registry"),
        documentation=(
            "What the table's key column is: the key as bytes, or what the key's schema in the "
            "schema registry says; only where `penstock.table.schema` isn't raw."
        ),
        standing=_S,
        reason="the pipeline's tables act on it",
    ),
    TopicConfig(
        name="penstock.table.mode",
        type=ConfigType.STRING,
        default="append",
        check=one_of("append", "upsert"),
        documentation=(
            "Whether each record is a row of the table, or each key: `upsert` keeps the newest "
            "record of a key, and a tombstone deletes its row."
        ),
        standing=_S,
        reason="the pipeline's tables act on it",
    ),
    TopicConfig(
        name="penstock.table.name",
        type=ConfigType.STRING,
        default="",
        check=table_name,
        documentation=(
            "The table's name in its catalog, `namespace.table`. Empty: `penstock.` and the "
            "topic's name, where each character other than a letter, digit or `_` becomes `_`. "
            "Retention waits for the table of this name and for no other."
        ),
        standing=_H,
    ),
    TopicConfig(
        name="penstock.table.partition",
        type=ConfigType.STRING,
        default="day(timestamp)",
        check=any_text,
        documentation=(
            "How the files of a new table are split: Iceberg's transforms `year month day hour "
            "identity bucket[N] truncate[N]` of columns, with commas; or `none`."
        ),
        standing=_S,
        reason="the pipeline's tables act on it",
    ),
    TopicConfig(
        name="penstock.table.retention.wait.ms",
        type=ConfigType.LONG,
        default="604800000",
        check=int64(),
        documentation=(
            "How many milliseconds retention waits at most for a table to follow records that have "
            "outlived `retention.ms`, `retention.bytes` or "
            "`penstock.retention.messages`. Past it they are deleted, and the table "
            "reports them as lost."
        ),
        standing=_H,
    ),
    TopicConfig(
        name="penstock.table.schema",
        type=ConfigType.STRING,
        default="raw",
        check=one_of("raw", "registry"),
        documentation=(
            "What the table's columns are: key and value as bytes, or the fields of values whose "
            "schemas are in the schema registry that the pipeline is given."
        ),
        standing=_S,
        reason="the pipeline's tables act on it",
    ),
    TopicConfig(
        name="penstock.validate.records",
        type=ConfigType.BOOLEAN,
        default="true",
        check=boolean,
        documentation=(
            "Whether the records of a produced batch are looked at before it is acknowledged: "
            "lengths, count, offset deltas, timestamps against the topic's limits and the header, "
            "keys of a compacted topic, what is compressed. If not, its header and CRC alone are, "
            "and what the producer sends is what consumers must cope with. See docs/operations.md."
        ),
        standing=_H,
        synonyms=(("penstock.validate.records", 1),),
    ),
    TopicConfig(
        name="preallocate",
        type=ConfigType.BOOLEAN,
        default="false",
        check=boolean,
        documentation="Whether segment files are allocated at once.",
        standing=_M,
        reason=_NO_SEGMENT_FILES,
        synonyms=(("log.preallocate", 1),),
    ),
    TopicConfig(
        name="remote.log.copy.disable",
        type=ConfigType.BOOLEAN,
        default="false",
        check=only_false,
        documentation="Whether to stop copying to the remote tier.",
        standing=_R,
        reason=f"only false: {_NO_TIERS}",
    ),
    TopicConfig(
        name="remote.log.delete.on.disable",
        type=ConfigType.BOOLEAN,
        default="false",
        check=only_false,
        documentation="Whether disabling the remote tier deletes what is there.",
        standing=_R,
        reason=f"only false: {_NO_TIERS}",
    ),
    TopicConfig(
        name="remote.storage.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        check=only_false,
        documentation="Whether the topic's storage is tiered.",
        standing=_R,
        reason=f"only false, as in a Kafka without tiered storage: {_NO_TIERS}",
    ),
    TopicConfig(
        name="retention.bytes",
        type=ConfigType.LONG,
        default="-1",
        check=int64(-1),
        documentation=(
            "Bytes that a partition keeps at most before the oldest are deleted; -1: no limit."
        ),
        standing=_H,
        synonyms=(("log.retention.bytes", 1),),
    ),
    TopicConfig(
        name="retention.ms",
        type=ConfigType.LONG,
        default="604800000",
        check=int64(-1),
        documentation=(
            "Milliseconds that records are kept before they are deleted; -1: for ever. Records "
            "that were produced without a timestamp do not expire by time, nor does what came "
            "after them while they are there: they leave by size, or by DeleteRecords."
        ),
        standing=_H,
        synonyms=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", 60_000),
            ("log.retention.hours", _HOUR_MS),
        ),
    ),
    TopicConfig(
        name="segment.bytes",
        type=ConfigType.INT,
        default="1073741824",
        check=int32(1 << 20),
        documentation="Size of a segment file, in bytes.",
        standing=_M,
        reason=_NO_SEGMENT_FILES,
        synonyms=(("log.segment.bytes", 1),),
    ),
    TopicConfig(
        name="segment.index.bytes",
        type=ConfigType.INT,
        default="10485760",
        check=int32(4),
        documentation="Size of a segment file's index, in bytes.",
        standing=_M,
        reason=_NO_SEGMENT_FILES,
        synonyms=(("log.index.size.max.bytes", 1),),
    ),
    TopicConfig(
        name="segment.jitter.ms",
        type=ConfigType.LONG,
        default="0",
        check=int64(),
        documentation="By how much the rolling of segment files is spread, in milliseconds.",
        standing=_M,
        reason=_NO_SEGMENT_FILES,
        synonyms=(("log.roll.jitter.ms", 1),),
    ),
    TopicConfig(
        name="segment.ms",
        type=ConfigType.LONG,
        default="604800000",
        check=int64(1),
        documentation="After how many milliseconds a segment file is closed.",
        standing=_M,
        reason=_NO_SEGMENT_FILES,
        synonyms=(("log.roll.ms", 1),),
    ),
    TopicConfig(
        name="unclean.leader.election.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        check=boolean,
        documentation="Whether a replica that lags may lead, at the price of lost records.",
        standing=_M,
        reason=_NO_REPLICAS,
        synonyms=(("unclean.leader.election.enable", 1),),
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _TABLE}
"""All configs by name, in alphabetical order."""

CLUSTER_CONFIGS: Final[Mapping[str, tuple[TopicConfig, int]]] = {
    name: (config, factor) for config in _TABLE for name, factor in config.synonyms
}
"""Broker configs that set a default for all topics: the topic config, and the factor of units."""

assert all(config.check(config.default) is None for config in _TABLE)
