"""Every setting of a server, each with its unit, bounds and a sentence of documentation.

To add one: add a field to `ServerSettings`, or to `PlaceSettings` (`config.place_settings`) or
`SecuritySettings` (`config.security_settings`), whose settings come first. Its type and the ending
of its name say how text is read (`_bytes`, `_bytes_max`: sizes such as "64MiB"; `_ms`, `_minutes`:
durations such as "10s"), and the command line, the environment, TOML files and docs/settings.md
follow from the field. What is said of each is an `About` (`config.about`), where values come from
is `config.sources`, what they must be together, `config.checks`.
"""

from typing import Annotated, Literal

from penstock.config.about import (
    DAY_MS,
    INT32_MAX,
    KIB,
    MIB,
    TIB,
    About,
    of_clients,
    of_groups,
    of_permissions,
    of_topics,
)
from penstock.config.security_settings import SecuritySettings


class ServerSettings(SecuritySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server. Units are in the names: bytes, milliseconds, minutes."""

    request_bytes_max: Annotated[
        int,
        of_clients(
            "A longer request closes its connection.",
            KIB,
            INT32_MAX,
            "socket.request.max.bytes",
        ),
    ] = 100 * MIB
    batch_records_max: Annotated[
        int,
        of_clients(
            "Records of one batch at most, and headers of all its records together, where they are "
            "validated (`penstock.validate.records`).",
            1,
        ),
    ] = 1_000_000
    batch_decoded_bytes_max: Annotated[
        int,
        of_clients(
            "Bytes of a batch's records at most, decompressed, where they are validated. No more "
            "is decompressed to find out.",
            64 * KIB,
            128 * MIB,
        ),
    ] = 128 * MIB
    connections_max: Annotated[
        int,
        of_clients(
            "Connections at one time. For a further one the connection that has been idle for "
            "longest is closed, of the address that has the most; if none is idle, the further "
            "one is. Lowered at the start, with a warning, to the process's limit of open files "
            "less 200 and less those of the HTTP ports.",
            1,
            kafka="max.connections",
        ),
    ] = 10_000
    max_connections_per_ip: Annotated[
        int,
        of_clients(
            "Connections of one address at one time; further ones are closed.",
            1,
            kafka="max.connections.per.ip",
        ),
    ] = INT32_MAX
    max_connections_per_ip_overrides: Annotated[
        str,
        of_clients(
            "ADDRESS:COUNT, several separated by commas, of addresses for which another limit "
            "holds than `max_connections_per_ip`; an IPv6 address stands in brackets, and a name "
            "is refused.",
            kafka="max.connections.per.ip.overrides",
        ),
    ] = ""
    connections_max_idle_ms: Annotated[
        int,
        of_clients(
            "A connection that sends no request for this time is closed.",
            100,
            kafka="connections.max.idle.ms",
        ),
    ] = 600_000
    stall_timeout_ms: Annotated[
        int,
        of_clients(
            "A peer that takes no byte of a reply, or sends none of a request that it has begun, "
            "for this time is cut off; on the HTTP ports, too.",
            100,
        ),
    ] = 30_000
    request_receive_timeout_ms: Annotated[
        int,
        of_clients(
            "How long a peer may take to send one request, time in which it isn't read from left "
            "out; a second more for every 64 KiB that came.",
            100,
        ),
    ] = 30_000
    tcp_keepalive_ms: Annotated[
        int,
        of_clients(
            "A peer that the network no longer reaches, and that could not say so, is given up "
            "after this time, on all ports.",
            4000,
            7_200_000,
        ),
    ] = 60_000
    http_connections_max: Annotated[
        int,
        of_clients(
            "Connections of the HTTP port at one time, and as many of the `peer` port. For a "
            "further one the oldest is closed that has sent no whole request; half as many "
            "requests are worked on at one time, others get 503. Health and metrics are always "
            "answered.",
            16,
            100_000,
        ),
    ] = 200
    http_hosts: Annotated[
        str,
        About(
            "Where it is",
            "Names and addresses under which the HTTP port is called, separated by commas; the "
            "loopback's are taken always. A request whose Host header has another one gets 403. "
            "Empty: a port on the loopback without `cluster_secret` takes the loopback's alone, "
            "another one takes any.",
        ),
    ] = ""
    http_header_timeout_ms: Annotated[
        int,
        of_clients("How long the head of an HTTP request may take to come.", 100),
    ] = 10_000
    http_body_timeout_ms: Annotated[
        int,
        of_clients(
            "The same of its body; a second more for every 64 KiB that came.",
            100,
        ),
    ] = 30_000
    max_incremental_fetch_session_cache_slots: Annotated[
        int,
        of_clients(
            "Fetch sessions at one time; while all are in use, further consumers are served "
            "without one and name all their partitions each time.",
            1,
            1_000_000,
            "max.incremental.fetch.session.cache.slots",
        ),
    ] = 1_000
    drain_timeout_ms: Annotated[
        int,
        of_clients(
            "At the end, how long requests under way and the move of the WAL may take. What is "
            "left then stays in the WAL, safe, for the next start.",
        ),
    ] = 10_000

    auto_create_topics: Annotated[
        bool,
        of_topics(
            "Create topics when a client asks for them by name.",
            kafka="auto.create.topics.enable",
        ),
    ] = True
    auto_create_topics_per_s: Annotated[
        int,
        of_topics(
            "How many topics clients that ask one agent for them by name may create in a second, "
            "all together. Clients ask for further ones again.",
            1,
        ),
    ] = 500
    topics_max: Annotated[
        int,
        of_topics("Topics of the cluster at most; a further one is refused.", 1),
    ] = 100_000
    partitions_max: Annotated[
        int,
        of_topics(
            "Partitions of the cluster at most, all topics together; further ones are refused. "
            "Each takes memory on each agent.",
            1,
        ),
    ] = 250_000
    topic_partitions_max: Annotated[
        int,
        of_topics("Partitions of one topic at most.", 1, 100_000),
    ] = 10_000
    create_partitions_max: Annotated[
        int,
        of_topics(
            "Partitions that one request may create, all its topics together; also those that the "
            "requests of one agent create at a time. Kafka's limit is the same, and fixed.",
            1,
            100_000,
        ),
    ] = 10_000
    default_partitions: Annotated[
        int,
        of_topics(
            "Partitions of a topic that is created without a number.",
            1,
            10_000,
            "num.partitions",
        ),
    ] = 1
    retention_check_ms: Annotated[
        int,
        of_topics(
            "How often retention is applied and expired things are removed.",
            100,
            kafka="log.retention.check.interval.ms",
        ),
    ] = 300_000
    clock_believed_after_ms: Annotated[
        int,
        of_topics(
            "How long the wall clock must stand, after a step of over 5 s or over an hour away "
            "from what was known at the start, before it is believed. Until then nothing is "
            "deleted or expired by age.",
            0,
            DAY_MS,
        ),
    ] = 600_000
    delete_grace_ms: Annotated[
        int,
        of_topics(
            "An object that nothing names any more is deleted this much later. For half of it an "
            "agent of a cluster goes on serving stored records while the journal is away.",
            0,
            DAY_MS,
        ),
    ] = 600_000
    producer_id_expiration_ms: Annotated[
        int,
        of_topics(
            "The state of an idempotent producer is forgotten after this time of silence.",
            1,
            kafka="producer.id.expiration.ms",
        ),
    ] = DAY_MS
    transaction_max_timeout_ms: Annotated[
        int,
        of_topics(
            "Longest time-out of a transaction that a producer may ask for. One that is open for "
            "longer than its time-out is aborted.",
            1,
            (1 << 31) - 1,
            kafka="transaction.max.timeout.ms",
        ),
    ] = 900_000
    transactional_id_expiration_ms: Annotated[
        int,
        of_topics(
            "A transactional id is forgotten after this time without a transaction. One that is "
            "open isn't.",
            1,
            kafka="transactional.id.expiration.ms",
        ),
    ] = 7 * DAY_MS

    group_initial_rebalance_delay_ms: Annotated[
        int,
        of_groups(
            "How long the first rebalance of an empty group waits for further members. Kafka's "
            "default is 3000, for fleets; here 100, which no user notices and which still "
            "gathers members that are started together.",
            kafka="group.initial.rebalance.delay.ms",
        ),
    ] = 100
    group_min_session_timeout_ms: Annotated[
        int,
        of_groups(
            "Shortest session timeout that a member may ask for.",
            1,
            kafka="group.min.session.timeout.ms",
        ),
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        int,
        of_groups(
            "Longest session timeout that a member may ask for.",
            1,
            kafka="group.max.session.timeout.ms",
        ),
    ] = 1_800_000
    group_max_size: Annotated[
        int, of_groups("Members of one group at most.", 1, kafka="group.max.size")
    ] = INT32_MAX
    group_consumer_session_timeout_ms: Annotated[
        int,
        of_groups(
            "How long a member of a consumer group (KIP-848) may be silent before its partitions "
            "go to others.",
            1,
            kafka="group.consumer.session.timeout.ms",
        ),
    ] = 45_000
    group_consumer_heartbeat_interval_ms: Annotated[
        int,
        of_groups(
            "How often members of consumer groups (KIP-848) are asked to send heartbeats.",
            1,
            kafka="group.consumer.heartbeat.interval.ms",
        ),
    ] = 5_000
    group_consumer_max_size: Annotated[
        int,
        of_groups(
            "Members of one consumer group (KIP-848) at most.", 1, kafka="group.consumer.max.size"
        ),
    ] = INT32_MAX
    group_consumer_migration_policy: Annotated[
        Literal["disabled", "upgrade", "downgrade", "bidirectional"],
        of_groups(
            "Whether a group with members may change its protocol: `upgrade` when the first member "
            "of KIP-848 joins a classic group, `downgrade` when the last one leaves members of the "
            "classic protocol, `bidirectional` both.",
            kafka="group.consumer.migration.policy",
        ),
    ] = "bidirectional"
    groups_max: Annotated[
        int,
        of_groups(
            "Groups of the cluster at most; a member or a commit that would begin a further one "
            "is refused. Groups are counted every ten seconds.",
            1,
        ),
    ] = 100_000
    offsets_retention_minutes: Annotated[
        int,
        of_groups(
            "Committed offsets are forgotten when their group has been empty for this time.",
            1,
            kafka="offsets.retention.minutes",
        ),
    ] = 10_080
    offset_metadata_length_max: Annotated[
        int,
        of_groups(
            "Longest text, in characters, that a client may store with a committed offset.",
            kafka="offset.metadata.max.bytes",
        ),
    ] = 4096

    authorizer: Annotated[
        Literal["", "acl"],
        of_permissions(
            "`acl`: access rules say what each client may do (docs/acls.md). Empty: every client "
            "may do everything.",
            kafka="authorizer.class.name",
        ),
    ] = ""
    super_users: Annotated[
        str,
        of_permissions(
            "Principals that may do everything, whatever the rules say: `User:NAME`, several "
            "separated by semicolons.",
            kafka="super.users",
        ),
    ] = ""
    allow_everyone_if_no_acl_found: Annotated[
        bool,
        of_permissions(
            "Allow everyone what no access rule is about.",
            kafka="allow.everyone.if.no.acl.found",
        ),
    ] = False
    audit_file: Annotated[
        str,
        of_permissions(
            "File of the audit log: a line of JSON for each decision about what a client may do "
            "(docs/security.md). Empty: there is none. The further workers of a host have "
            "files of their own, with `-worker-N` at the end."
        ),
    ] = ""
    audit_file_bytes_max: Annotated[
        int,
        of_permissions("Bytes of a file of the audit log, before the next is begun.", KIB, TIB),
    ] = 64 << 20
    audit_files_max: Annotated[
        int,
        of_permissions("Files of the audit log that are kept, the newest included.", 1, 1000),
    ] = 8
    audit_sample_every: Annotated[
        int,
        of_permissions(
            "Of allowed reads, writes and descriptions one in so many is entered into the audit "
            "log; 0: none, 1: all. Changes, and what is denied, are always entered."
        ),
    ] = 1000
    backup_targets: Annotated[
        str,
        of_permissions(
            "Paths and URLs, separated by commas: `penstock backup` may copy to them and below, "
            "and `penstock repair` may look for copies there. Empty: with an authorizer nowhere, "
            "else anywhere."
        ),
    ] = ""
    backup_instance_credentials: Annotated[
        bool,
        of_permissions(
            "Whether a place of `backup_targets` may be reached by the credentials of the server's "
            "cloud instance or pod, where the environment has none."
        ),
    ] = False
    authorizer_stale_max_ms: Annotated[
        int,
        of_permissions(
            "An agent of a cluster that has not confirmed the journal's head for this time may not "
            "know that a rule was taken back: it refuses what rules allow, with errors that "
            "clients try again. Super users are served.",
            1_000,
        ),
    ] = 10_000

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        About("Logs", "Least severe kind of line that is written to standard error."),
    ] = "info"
