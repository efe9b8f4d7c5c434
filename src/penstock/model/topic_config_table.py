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
    INT32_MAX,
    Check,
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
_MERGED: Final = "the pipeline compresses batches so that it merges; others stay as produced"
_NO_TIERS: Final = "there is no second tier: all bytes move to the object store"

_H, _S, _M, _R = Standing.HONOURED, Standing.STORED, Standing.MEANINGLESS, Standing.REFUSED
_BOOL, _TEXT, _LIST, _DOUBLE = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.LIST,
    ConfigType.DOUBLE,
)
_Values = tuple[ConfigType, Check]


def _int(low: int = 0, high: int = INT32_MAX) -> _Values:
    return ConfigType.INT, int32(low, high)


def _long(low: int = 0) -> _Values:
    return ConfigType.LONG, int64(low)


# Name; type and check; default; broker configs that give the default, strongest first, with the
# factor that turns their unit into this config's; standing, and the reason for it; documentation.
# fmt: off
_ROWS: Final[tuple[tuple[str, _Values, str, str, Standing, str, str], ...]] = (
    ("cleanup.policy", (_LIST, cleanup_policy), "delete", "log.cleanup.policy", _H, "",
     ("What happens to old records: delete discards them by time, size and count, compact keeps "
     "the last one of each key; both may be given. A topic that is only compacted never loses "
     "records by time, size or count. `penstock pipeline` compacts, see docs/compaction.md.")),
    ("compression.gzip.level", _int(-1, 9), "-1", "compression.gzip.level", _S, _MERGED,
     "Level of gzip where the pipeline merges batches."),
    ("compression.lz4.level", _int(1, 17), "9", "compression.lz4.level", _S, _MERGED,
     "Level of lz4 where the pipeline merges batches."),
    ("compression.type",
     (_TEXT, one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), "producer",
     "compression.type", _S, _MERGED,
     ("The compression of batches that the pipeline has merged (docs/compaction.md); producer: "
     "that of most of what went into one. Others pass through untouched.")),
    ("compression.zstd.level", _int(-131072, 22), "3", "compression.zstd.level", _S, _MERGED,
     "Level of zstd where the pipeline merges batches."),
    ("delete.retention.ms", _long(), "86400000",
     "log.cleaner.delete.retention.ms", _S, "the pipeline's key compaction acts on it",
     "How long a tombstone is kept in a compacted topic, in milliseconds."),
    ("file.delete.delay.ms", _long(), "60000",
     "log.segment.delete.delay.ms", _M, "objects are deleted after the server's own grace",
     "How long a file stays after it was given up, in milliseconds."),
    ("flush.messages", _long(1), "9223372036854775807",
     "log.flush.interval.messages", _M, _ALWAYS_FLUSHED,
     "After how many records the log is forced to disk."),
    ("flush.ms", _long(), "9223372036854775807",
     "log.flush.interval.ms log.flush.scheduler.interval.ms", _M, _ALWAYS_FLUSHED,
     "After how many milliseconds the log is forced to disk."),
    ("follower.replication.throttled.replicas", (_LIST, throttled_replicas), "",
     "", _M, _NO_REPLICAS,
     "Replicas whose replication is throttled on the follower's side."),
    ("index.interval.bytes", _int(), "4096", "log.index.interval.bytes", _M, _NO_SEGMENT_FILES,
     "How densely the offset index is written, in bytes."),
    ("leader.replication.throttled.replicas", (_LIST, throttled_replicas), "", "", _M, _NO_REPLICAS,
     "Replicas whose replication is throttled on the leader's side."),
    ("local.retention.bytes", _long(-2), "-2", "log.local.retention.bytes", _M, _NO_TIERS,
     "Bytes that stay on local disk when storage is tiered."),
    ("local.retention.ms", _long(-2), "-2", "log.local.retention.ms", _M, _NO_TIERS,
     "Milliseconds that records stay on local disk when storage is tiered."),
    ("max.compaction.lag.ms", _long(1), "9223372036854775807",
     "log.cleaner.max.compaction.lag.ms", _S, "the pipeline's key compaction acts on it",
     "After how many milliseconds a record must have been looked at."),
    ("max.message.bytes", _int(), "1048588", "message.max.bytes", _H, "",
     "The largest record batch, as sent (so after compression), in bytes."),
    ("message.timestamp.after.max.ms", _long(), "3600000",
     "log.message.timestamp.after.max.ms", _H, "",
     ("How far a record's timestamp may lie ahead of the server's clock, in milliseconds; not "
     "looked at with LogAppendTime.")),
    ("message.timestamp.before.max.ms", _long(), "9223372036854775807",
     "log.message.timestamp.before.max.ms", _H, "",
     ("How far a record's timestamp may lie behind the server's clock, in milliseconds; not "
     "looked at with LogAppendTime.")),
    ("message.timestamp.type", (_TEXT, one_of("CreateTime", "LogAppendTime")), "CreateTime",
     "log.message.timestamp.type", _H, "",
     "Whose time a record carries: the producer's, or the server's at arrival."),
    ("min.cleanable.dirty.ratio", (_DOUBLE, number(0, 1, float)), "0.5",
     "log.cleaner.min.cleanable.ratio", _S, "the pipeline's key compaction acts on it",
     "How much of a log must be uncompacted before it is compacted."),
    ("min.compaction.lag.ms", _long(), "0",
     "log.cleaner.min.compaction.lag.ms", _S, "the pipeline's key compaction acts on it",
     "How long a record stays uncompacted at least, in milliseconds."),
    ("min.insync.replicas", _int(1), "1", "min.insync.replicas", _M, _NO_REPLICAS,
     "How many replicas must have a record before acks=all is answered."),
    ("penstock.durability", (_TEXT, durability), "", "penstock.durability", _H, "",
     ("When a batch is acknowledged: `wal`, once it is in the WAL of the agent that took it; "
     "`object`, once it is in the object store. Empty: as the agents' setting `durability` says. "
     "See docs/durability.md.")),
    ("penstock.flush.interval.ms", _int(-1), "-1", "penstock.flush.interval.ms", _H, "",
     ("With durability `object`, how many milliseconds a batch waits at most for others to share "
     "its object; -1: as the agents' setting `flush_interval_ms` says. A flush takes along all "
     "that waits, of whatever topic.")),
    ("penstock.retention.messages", _long(-1), "-1", "penstock.retention.messages", _H, "",
     ("Offsets that a partition keeps at most before the oldest are deleted; -1: no limit. "
     "Retention deletes to the exact offset, like DeleteRecords, and not by whole runs; between "
     "two of its passes (`retention_check_ms`) a partition may hold more. In a `compact,delete` "
     "topic offsets that a cleaning emptied count, so fewer records may stay; a topic that is "
     "only compacted ignores it. In a cluster that is being upgraded it acts from when the agent "
     "that does retention knows it; agents that do not know it refuse to alter the topic's "
     "configs until they are upgraded.")),
    ("penstock.table", (_TEXT, one_of("", "iceberg")), "", "", _H, "",
     ("What the pipeline makes of the topic: `iceberg`, a table that follows it; or nothing. "
     "Retention waits for that table.")),
    ("penstock.table.begin", (_TEXT, any_text), "", "", _S, "the pipeline's tables act on it",
     ("Where a new table begins: `earliest` or empty, `latest`, an instant with its zone as "
     "`2024-02-29T12:00:00Z`, or `PARTITION:OFFSET,...`. See docs/tables.md.")),
    ("penstock.table.dlq", (_TEXT, topic_name), "", "", _S, "the pipeline's tables act on it",
     ("The topic that the table's bad records go to. Empty: this topic's name and `.dlq`. See "
     "docs/tables.md.")),
    ("penstock.table.key.schema", (_TEXT, one_of("raw", "registry")), "raw",
     "", _S, "the pipeline's tables act on it",
     ("What the table's key column is: the key as bytes, or what the key's schema in the schema "
     "registry says; only where `penstock.table.schema` isn't raw.")),
    ("penstock.table.mode", (_TEXT, one_of("append", "upsert")), "append",
     "", _S, "the pipeline's tables act on it",
     ("Whether each record is a row of the table, or each key: `upsert` keeps the newest record "
     "of a key, and a tombstone deletes its row.")),
    ("penstock.table.name", (_TEXT, table_name), "", "", _H, "",
     ("The table's name in its catalog, `namespace.table`. Empty: `penstock.` and the topic's "
     "name, where each character other than a letter, digit or `_` becomes `_`. Retention waits "
     "for the table of this name and for no other.")),
    ("penstock.table.orphan.retention.ms", _long(3_600_000), "259200000",
     "", _S, "the pipeline's tables act on it",
     ("How many milliseconds a file in the table's folder that nothing names is kept at least. "
     "It has to be longer than any commit takes.")),
    ("penstock.table.partition", (_TEXT, any_text), "day(timestamp)",
     "", _S, "the pipeline's tables act on it",
     ("How the files of a new table are split: Iceberg's transforms `year month day hour identity "
     "bucket[N] truncate[N]` of columns, with commas; or `none`.")),
    ("penstock.table.retention.wait.ms", _long(), "604800000", "", _H, "",
     ("How many milliseconds retention waits at most for a table to follow records that have "
     "outlived `retention.ms`, `retention.bytes` or `penstock.retention.messages`. Past it they "
     "are deleted, and the table reports them as lost.")),
    ("penstock.table.schema", (_TEXT, one_of("raw", "registry", "text")), "raw",
     "", _S, "the pipeline's tables act on it",
     ("What the table's columns are: key and value as bytes, the fields of values whose "
     "schemas are in the schema registry that the pipeline is given, or those of the schema in "
     "`penstock.table.schema.text`.")),
    ("penstock.table.schema.incompatible", (_TEXT, one_of("stop", "dead-letter")), "stop",
     "", _S, "the pipeline's tables act on it",
     ("What happens to records of a schema that the table's columns can't follow: the table stops, "
     "or they go to the dead-letter topic and the table goes on. See docs/tables.md.")),
    ("penstock.table.schema.text", (_TEXT, any_text), "",
     "", _S, "the pipeline's tables act on it",
     ("The schema of bare values with `penstock.table.schema=text`, a text of JSON: an Avro "
     "record, or a JSON Schema. A newer one has to keep the older one's columns.")),
    ("penstock.table.schema.unknown", (_TEXT, one_of("dead-letter", "ignore", "rest")),
     "dead-letter", "", _S, "the pipeline's tables act on it",
     ("What becomes of a JSON value's properties that its schema does not name: the record goes to "
     "the dead-letter topic, they are left out, or they are kept as JSON in the column "
     "`kafka_rest`. See docs/tables.md.")),
    ("penstock.table.snapshot.retention.ms", _long(), "86400000",
     "", _S, "the pipeline's tables act on it",
     ("How many milliseconds a snapshot of the table is kept: a reader may stay at it, or go back "
     "to it, for that time.")),
    ("penstock.validate.records", (_BOOL, boolean), "true", "penstock.validate.records", _H, "",
     ("Whether the records of a produced batch are looked at before it is acknowledged: lengths, "
     "count, offset deltas, timestamps against the topic's limits and the header, keys of a "
     "compacted topic, what is compressed. If not, its header and CRC alone are, and what the "
     "producer sends is what consumers must cope with. See docs/operations.md.")),
    ("preallocate", (_BOOL, boolean), "false", "log.preallocate", _M, _NO_SEGMENT_FILES,
     "Whether segment files are allocated at once."),
    ("remote.log.copy.disable", (_BOOL, only_false), "false", "", _R, f"only false: {_NO_TIERS}",
     "Whether to stop copying to the remote tier."),
    ("remote.log.delete.on.disable", (_BOOL, only_false), "false",
     "", _R, f"only false: {_NO_TIERS}",
     "Whether disabling the remote tier deletes what is there."),
    ("remote.storage.enable", (_BOOL, only_false), "false",
     "", _R, f"only false, as in a Kafka without tiered storage: {_NO_TIERS}",
     "Whether the topic's storage is tiered."),
    ("retention.bytes", _long(-1), "-1", "log.retention.bytes", _H, "",
     "Bytes that a partition keeps at most before the oldest are deleted; -1: no limit."),
    ("retention.ms", _long(-1), "604800000",
     "log.retention.ms log.retention.minutes*60000 log.retention.hours*3600000", _H, "",
     ("Milliseconds that records are kept before they are deleted; -1: for ever. Records that "
     "were produced without a timestamp do not expire by time, nor does what came after them "
     "while they are there: they leave by size, or by DeleteRecords.")),
    ("segment.bytes", _int(1 << 20), "1073741824", "log.segment.bytes", _M, _NO_SEGMENT_FILES,
     "Size of a segment file, in bytes."),
    ("segment.index.bytes", _int(4), "10485760", "log.index.size.max.bytes", _M, _NO_SEGMENT_FILES,
     "Size of a segment file's index, in bytes."),
    ("segment.jitter.ms", _long(), "0", "log.roll.jitter.ms", _M, _NO_SEGMENT_FILES,
     "By how much the rolling of segment files is spread, in milliseconds."),
    ("segment.ms", _long(1), "604800000", "log.roll.ms", _M, _NO_SEGMENT_FILES,
     "After how many milliseconds a segment file is closed."),
    ("unclean.leader.election.enable", (_BOOL, boolean), "false",
     "unclean.leader.election.enable", _M, _NO_REPLICAS,
     "Whether a replica that lags may lead, at the price of lost records."),
)
# fmt: on


def _synonym(text: str) -> tuple[str, int]:
    name, _, factor = text.partition("*")
    return name, int(factor or 1)


_TABLE: Final = tuple(
    TopicConfig(
        name=name,
        type=kind,
        default=default,
        check=check,
        documentation=documentation,
        standing=standing,
        reason=reason,
        synonyms=tuple(map(_synonym, synonyms.split())),
    )
    for name, (kind, check), default, synonyms, standing, reason, documentation in _ROWS
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _TABLE}
"""All configs by name, in alphabetical order."""

CLUSTER_CONFIGS: Final[Mapping[str, tuple[TopicConfig, int]]] = {
    name: (config, factor) for config in _TABLE for name, factor in config.synonyms
}
"""Broker configs that set a default for all topics: the topic config, and the factor of units."""

assert all(config.check(config.default) is None for config in _TABLE)
