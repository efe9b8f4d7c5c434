"""The tables of the log's state. Explained, with what bounds each, in docs/formats/journal.md."""

from typing import Final

APPLICATION_ID: Final = 0x50454E53
"""ASCII "PENS"."""
FORMAT_VERSION: Final = 7
"""Raised by any change of a table here or of what an entry's bytes mean; `migration` brings
older files to it."""
OLDEST_VERSION: Final = 4
"""The oldest format version that is opened. Versions 1 to 3 are refused: no release wrote them."""
FEATURE_LEVEL_MAX: Final = 6
"""The newest semantics of apply that this release knows. 1: the embedded log; 2: the cluster;
3: the pipeline; 4: integrity; 5: merging, and members of groups; 6: transactions, share groups,
and access rules."""
CLUSTER_LEVEL: Final = 2
"""From which on the cluster's commands are applied."""
PIPELINE_LEVEL: Final = 3
"""From which on the pipeline's commands are applied."""
INTEGRITY_LEVEL: Final = 4
"""The level from which on the rules of docs/formats/journal.md, "Integrity", hold."""
MERGING_LEVEL: Final = 5
"""The level from which on compaction may merge batches (docs/formats/journal.md, "Merging")."""
MEMBERS_LEVEL: Final = 5
"""The level from which on groups have members of their own (docs/formats/journal.md, "Members of
groups")."""
TRANSACTIONS_LEVEL: Final = 6
"""The level from which on there are transactions (docs/formats/journal.md, "Transactions")."""
MIGRATION_LEVEL: Final = 6
"""The level from which on a consumer group may have classic members."""
SHARES_LEVEL: Final = 6
"""The level from which on there are share groups (docs/formats/journal.md, "Share groups")."""
STREAMS_LEVEL: Final = 6
"""The level from which on there are streams groups (docs/formats/journal.md, "Members of
groups")."""
ACLS_LEVEL: Final = 6
"""The level from which on there are access rules (docs/formats/journal.md, "Access rules")."""
SECURITY_LEVEL: Final = 6
"""The level from which on there are credentials (docs/formats/journal.md, "Credentials")."""
QUOTAS_LEVEL: Final = 6
"""The level from which on there are quotas (docs/formats/journal.md, "Quotas")."""
STORED_ENTRIES: Final = 16
"""K: of how many of an agent's last entries the answers are kept. A power of two."""

WALS: Final = """CREATE TABLE wals (
        wal_key INTEGER PRIMARY KEY,
        wal_id BLOB NOT NULL UNIQUE,
        agent INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        last_generation INTEGER NOT NULL
    ) STRICT"""
GROUP_MEMBERS: Final = """CREATE TABLE group_members (
        group_id TEXT NOT NULL,
        member_id TEXT NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (group_id, member_id)
    ) STRICT, WITHOUT ROWID"""
SHARE_PARTITIONS: Final = """CREATE TABLE share_partitions (
        group_id TEXT NOT NULL,
        topic_id BLOB NOT NULL,
        partition INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (group_id, topic_id, partition)
    ) STRICT, WITHOUT ROWID"""
SHARE_TOPICS: Final = "CREATE INDEX share_topics ON share_partitions (topic_id)"
GROUP_KIND: Final = "kind INTEGER NOT NULL DEFAULT 0"
"""A `penstock.state.rows.GroupKind`."""
GROUP_SHARDS: Final = """CREATE TABLE group_shards (
        shard INTEGER PRIMARY KEY,
        shard_epoch INTEGER NOT NULL,
        agent INTEGER NOT NULL,
        epoch INTEGER NOT NULL
    ) STRICT"""

JOB_PRINCIPAL: Final = "principal TEXT NOT NULL DEFAULT ''"
"""See `penstock.state.pipeline_commands.OpenJob`."""
PIPELINE_JOBS: Final = f"""CREATE TABLE pipeline_jobs (
        job INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        opened_position INTEGER NOT NULL,
        opened_ms INTEGER NOT NULL,
        renewed_ms INTEGER NOT NULL,
        lease_ms INTEGER NOT NULL,
        age_max_ms INTEGER NOT NULL,
        last_n INTEGER NOT NULL,
        last_answer BLOB NOT NULL,
        {JOB_PRINCIPAL}
    ) STRICT"""
WRITERS: Final = """CREATE TABLE writers (
        writer_id TEXT PRIMARY KEY,
        incarnation TEXT NOT NULL,
        batch_id INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        answer BLOB NOT NULL
    ) STRICT, WITHOUT ROWID"""
TABLE_PROGRESS: Final = """CREATE TABLE table_progress (
        topic_id BLOB NOT NULL,
        table_name TEXT NOT NULL,
        offsets TEXT NOT NULL,
        snapshot_id INTEGER NOT NULL,
        state TEXT NOT NULL,
        time_ms INTEGER NOT NULL,
        PRIMARY KEY (topic_id, table_name)
    ) STRICT, WITHOUT ROWID"""
CLEAN: Final = """CREATE TABLE clean (
        partition_key INTEGER PRIMARY KEY,
        clean_end INTEGER NOT NULL,
        time_ms INTEGER NOT NULL
    ) STRICT"""

DIGESTS: Final = """CREATE TABLE digests (
        agent INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        position INTEGER NOT NULL,
        answer BLOB NOT NULL
    ) STRICT"""
LEADER_EPOCHS: Final = """CREATE TABLE leader_epochs (
        partition_key INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        PRIMARY KEY (partition_key, epoch)
    ) STRICT, WITHOUT ROWID"""

LOST_RANGES: Final = """CREATE TABLE lost_ranges (
        partition_key INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        PRIMARY KEY (partition_key, start_offset)
    ) STRICT, WITHOUT ROWID"""
REBUILT_RANGES: Final = """CREATE TABLE rebuilt_ranges (
        partition_key INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        PRIMARY KEY (partition_key, start_offset)
    ) STRICT, WITHOUT ROWID"""
LEFTOVERS: Final = """CREATE TABLE leftovers (
        kind INTEGER NOT NULL,
        key INTEGER NOT NULL,
        topic_id BLOB NOT NULL,
        PRIMARY KEY (kind, key)
    ) STRICT, WITHOUT ROWID"""
LOST_HISTORIES: Final = """CREATE TABLE lost_histories (
        history INTEGER PRIMARY KEY,
        start_position INTEGER NOT NULL,
        end_position INTEGER NOT NULL,
        stamp_ms INTEGER NOT NULL,
        crc INTEGER NOT NULL,
        reason INTEGER NOT NULL,
        agent INTEGER NOT NULL,
        noted_position INTEGER NOT NULL,
        noted_ms INTEGER NOT NULL,
        closed_ms INTEGER,
        outcome INTEGER NOT NULL,
        records INTEGER NOT NULL
    ) STRICT"""

# Partial: most runs are not markers, and these must be found among all others.
MARKERS: Final = """CREATE INDEX markers ON wal_runs (partition_key, base_offset)
        WHERE generation < 0"""
TRANSACTIONS: Final = """CREATE TABLE transactions (
        producer_id INTEGER PRIMARY KEY,
        transactional_id TEXT NOT NULL UNIQUE,
        epoch INTEGER NOT NULL,
        last_epoch INTEGER NOT NULL,
        last_producer_id INTEGER NOT NULL,
        state INTEGER NOT NULL,
        timeout_ms INTEGER NOT NULL,
        changed_position INTEGER NOT NULL,
        changed_ms INTEGER NOT NULL,
        added INTEGER NOT NULL,
        offsets INTEGER NOT NULL
    ) STRICT"""
# A look for time-outs reads this alone, however many transactional ids there are.
ONGOING: Final = "CREATE INDEX ongoing ON transactions (changed_ms) WHERE state = 1"
TRANSACTION_PARTITIONS: Final = """CREATE TABLE transaction_partitions (
        producer_id INTEGER NOT NULL,
        partition_key INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        PRIMARY KEY (producer_id, partition_key)
    ) STRICT, WITHOUT ROWID"""
OPEN_OFFSETS: Final = """CREATE INDEX open_offsets
        ON transaction_partitions (partition_key, first_offset) WHERE first_offset >= 0"""
TRANSACTION_GROUPS: Final = """CREATE TABLE transaction_groups (
        producer_id INTEGER NOT NULL,
        group_id TEXT NOT NULL,
        connection INTEGER NOT NULL,
        PRIMARY KEY (producer_id, group_id)
    ) STRICT, WITHOUT ROWID"""
PENDING_OFFSETS: Final = """CREATE TABLE pending_offsets (
        producer_id INTEGER NOT NULL,
        group_id TEXT NOT NULL,
        topic_id BLOB NOT NULL,
        partition INTEGER NOT NULL,
        committed_offset INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        commit_ms INTEGER NOT NULL,
        PRIMARY KEY (producer_id, group_id, topic_id, partition)
    ) STRICT, WITHOUT ROWID"""
PENDING_GROUPS: Final = """CREATE INDEX pending_groups
        ON pending_offsets (group_id, topic_id, partition)"""
ABORTED: Final = """CREATE TABLE aborted (
        partition_key INTEGER NOT NULL,
        marker_offset INTEGER NOT NULL,
        producer_id INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        last_stable INTEGER NOT NULL,
        PRIMARY KEY (partition_key, marker_offset)
    ) STRICT, WITHOUT ROWID"""

ACLS: Final = """CREATE TABLE acls (
        resource_type INTEGER NOT NULL,
        name TEXT NOT NULL,
        pattern_type INTEGER NOT NULL,
        principal TEXT NOT NULL,
        host TEXT NOT NULL,
        operation INTEGER NOT NULL,
        permission INTEGER NOT NULL,
        PRIMARY KEY (
            resource_type, name, pattern_type, principal, host, operation, permission
        )
    ) STRICT, WITHOUT ROWID"""
GROUP_CONFIGS: Final = """CREATE TABLE group_configs (
        group_id TEXT PRIMARY KEY,
        configs TEXT NOT NULL
    ) STRICT, WITHOUT ROWID"""
CREDENTIALS: Final = """CREATE TABLE credentials (
        user_name TEXT NOT NULL,
        mechanism INTEGER NOT NULL,
        iterations INTEGER NOT NULL,
        salt BLOB NOT NULL,
        stored_key BLOB NOT NULL,
        server_key BLOB NOT NULL,
        PRIMARY KEY (user_name, mechanism)
    ) STRICT, WITHOUT ROWID"""
API_KEYS: Final = """CREATE TABLE api_keys (
        key_id TEXT PRIMARY KEY,
        digest BLOB NOT NULL,
        principal TEXT NOT NULL,
        note TEXT NOT NULL,
        expires INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID"""
"""`expires`: ms of the wall clock, which isn't journal time; 0: never."""
QUOTAS: Final = """CREATE TABLE quotas (
        entity TEXT NOT NULL,
        key TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (entity, key)
    ) STRICT, WITHOUT ROWID"""

REPLICATION_FACTOR: Final = "replication_factor INTEGER NOT NULL DEFAULT 0"
"""See `penstock.state.commands.CreateTopic`."""

# A key of several columns is the tree itself (WITHOUT ROWID): one look-up and one dirty page
# less per write. The rows are small, which is what such a table wants.
SCHEMA: Final = (
    """CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value ANY NOT NULL
    ) STRICT, WITHOUT ROWID""",
    f"""CREATE TABLE topics (
        topic_key INTEGER PRIMARY KEY,
        topic_id BLOB NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE,
        partitions INTEGER NOT NULL,
        configs TEXT NOT NULL,
        {REPLICATION_FACTOR}
    ) STRICT""",
    """CREATE TABLE partitions (
        partition_key INTEGER PRIMARY KEY,
        log_start INTEGER NOT NULL,
        next_offset INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE wal_runs (
        partition_key INTEGER NOT NULL,
        base_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        max_timestamp INTEGER NOT NULL,
        batch_count INTEGER NOT NULL,
        sum INTEGER,
        PRIMARY KEY (partition_key, base_offset)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE object_runs (
        partition_key INTEGER NOT NULL,
        base_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        object_id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        max_timestamp INTEGER NOT NULL,
        batch_count INTEGER NOT NULL,
        sum INTEGER,
        PRIMARY KEY (partition_key, base_offset)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE objects (
        object_id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        bytes INTEGER NOT NULL,
        live_runs INTEGER NOT NULL,
        condemned_position INTEGER,
        condemned_ms INTEGER,
        raw INTEGER NOT NULL DEFAULT 0,
        origin TEXT NOT NULL DEFAULT ''
    ) STRICT""",
    # Partial: an object enters these only when it loses its last run, and when it is condemned.
    """CREATE INDEX objects_unreferenced ON objects (object_id)
        WHERE live_runs = 0 AND condemned_position IS NULL""",
    """CREATE INDEX objects_condemned ON objects (condemned_position)
        WHERE condemned_position IS NOT NULL""",
    """CREATE TABLE producers (
        partition_key INTEGER NOT NULL,
        producer_id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        sequences BLOB NOT NULL,
        last_timestamp INTEGER NOT NULL,
        PRIMARY KEY (partition_key, producer_id)
    ) STRICT, WITHOUT ROWID""",
    f"""CREATE TABLE groups (
        group_id TEXT PRIMARY KEY,
        generation INTEGER NOT NULL,
        protocol_type TEXT NOT NULL,
        empty_since_ms INTEGER,
        state BLOB NOT NULL,
        {GROUP_KIND}
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE group_offsets (
        group_id TEXT NOT NULL,
        topic_id BLOB NOT NULL,
        partition INTEGER NOT NULL,
        committed_offset INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        commit_ms INTEGER NOT NULL,
        PRIMARY KEY (group_id, topic_id, partition)
    ) STRICT, WITHOUT ROWID""",
    # For deleting a topic without reading other groups' rows. Untouched by a commit of an offset
    # that is there already.
    "CREATE INDEX group_offsets_topic ON group_offsets (topic_id)",
    """CREATE TABLE agents (
        agent INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        labels TEXT NOT NULL,
        software TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        peer TEXT NOT NULL DEFAULT '',
        level_max INTEGER NOT NULL DEFAULT 1,
        status INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    """CREATE TABLE agent_entries (
        slot_key INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        n INTEGER NOT NULL,
        position INTEGER NOT NULL,
        answers BLOB NOT NULL
    ) STRICT""",
    WALS,
    GROUP_SHARDS,
    GROUP_MEMBERS,
    PIPELINE_JOBS,
    WRITERS,
    TABLE_PROGRESS,
    CLEAN,
    LEADER_EPOCHS,
    LEFTOVERS,
    LOST_RANGES,
    REBUILT_RANGES,
    LOST_HISTORIES,
    DIGESTS,
    MARKERS,
    TRANSACTIONS,
    ONGOING,
    TRANSACTION_PARTITIONS,
    OPEN_OFFSETS,
    TRANSACTION_GROUPS,
    PENDING_OFFSETS,
    PENDING_GROUPS,
    ABORTED,
    SHARE_PARTITIONS,
    SHARE_TOPICS,
    ACLS,
    GROUP_CONFIGS,
    CREDENTIALS,
    API_KEYS,
    QUOTAS,
)
