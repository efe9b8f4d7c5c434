"""Every setting of a server, each with its unit, bounds and a sentence of documentation.

To add one: add a field to `ServerSettings`. Its type and the ending of its name say how text is
read (`_bytes`, `_bytes_max`: sizes such as "64MiB"; `_ms`, `_minutes`: durations such as "10s"),
and the command line, the environment, TOML files and docs/settings.md follow from the field.
What is said of each is an `About` (`config.about`), where values come from is `config.sources`,
what they must be together, `config.checks`.
"""

from typing import Annotated, Literal

from msgspec import Struct

from penstock.config.about import (
    DAY_MS,
    GIB,
    HOUR_MS,
    INT32_MAX,
    KIB,
    MIB,
    About,
    of_addresses,
    of_bytes,
    of_clients,
    of_cluster,
    of_durability,
    of_groups,
    of_storage,
    of_topics,
)


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server. Units are in the names: bytes, milliseconds, minutes."""

    data: Annotated[str, of_addresses("Directory of everything that the server keeps.")] = (
        "penstock-data"
    )
    kafka: Annotated[
        str, of_addresses("HOST:PORT on which Kafka clients are served.", kafka="listeners")
    ] = "127.0.0.1:9092"
    http: Annotated[
        str, of_addresses("HOST:PORT of metrics, health and status. Empty: no HTTP port.")
    ] = "127.0.0.1:8080"
    peer: Annotated[
        str,
        of_addresses(
            "HOST:PORT on which an agent of a cluster serves the others, and only them. Empty: "
            "the host of `http` and the port after its port, or any free one where that is taken; "
            "set it where a firewall stands between agents."
        ),
    ] = ""
    advertised: Annotated[
        str,
        of_addresses(
            "HOST:PORT that clients connect to. Empty: the `kafka` address, which then must not be "
            "a wildcard such as 0.0.0.0.",
            kafka="advertised.listeners",
        ),
    ] = ""
    allow_insecure: Annotated[
        bool,
        of_addresses(
            "Listen beyond loopback although there is no encryption, authentication or "
            "authorization yet: any client that reaches the port can read and write everything."
        ),
    ] = False

    fsync: Annotated[
        bool,
        of_durability(
            "Sync the WAL before a record is acknowledged. Without it a power cut loses "
            "acknowledged records, and can damage what the journal names so that the server "
            "refuses to start until it is given a backup; the death of the process alone does "
            "neither.",
        ),
    ] = True

    gather_ms: Annotated[
        int,
        of_durability(
            "While eight connections or more send records within 50 ms, how long a Produce request "
            "waits for those of others that share its sync. The more of them do, the less of the "
            "server's CPU each takes. 0: never, as with durability `object`, which gathers for "
            "longer.",
            0,
            1000,
        ),
    ] = 2

    journal: Annotated[
        str,
        of_cluster(
            "URL of the journal that all agents of a cluster share, `postgresql://USER@HOST/DB`. "
            "Empty: this server is alone, and its journal lies in the data directory.",
        ),
    ] = ""
    objects: Annotated[
        str,
        of_cluster(
            "URL of the store of segment objects: `s3://BUCKET/PREFIX`, `gs://`, `az://` or "
            "`file://`; all agents of a cluster share it. Only with `journal`: a server alone "
            "keeps them in the data directory.",
        ),
    ] = ""
    cluster_name: Annotated[
        str,
        of_cluster(
            "Tells clusters in one database apart: lower-case letters, digits and underscores."
        ),
    ] = "penstock"
    cluster_secret: Annotated[
        str,
        of_cluster(
            "What agents show one another, and what calls to the HTTP API must carry as "
            "`Authorization: Bearer ...`. Needed in a cluster; 16 characters at least. Give it by "
            "the environment, by a file that holds it alone and that "
            "`PENSTOCK_CLUSTER_SECRET_FILE` names, or in a settings file that only the server "
            "reads.",
            secret=True,
        ),
    ] = ""
    labels: Annotated[
        dict[str, str],
        of_cluster("Where this agent is, for example `region=eu-central-1,zone=a,rack=7`."),
    ] = {}
    node_id: Annotated[
        int,
        of_cluster(
            "This agent's id in a cluster, for deployments with stable names; no two agents may "
            "have the same at one time. 0: the one kept in the data directory, else a random one."
        ),
    ] = 0
    workers: Annotated[
        int,
        of_cluster(
            "Agents of this host, each a process and a broker in clients' metadata, on "
            "consecutive ports from `kafka` and `http` on.",
            1,
            256,
        ),
    ] = 1
    durability: Annotated[
        Literal["", "wal", "object"],
        of_cluster(
            "When a record is acknowledged: once it is in the local WAL, or once it is in the "
            "object store. Topics may say otherwise (`penstock.durability`). Empty: `object` in a "
            "cluster, else `wal`.",
        ),
    ] = ""
    flush_interval_ms: Annotated[
        int, of_cluster("Durability `object`: how long records are gathered for one object.", 1)
    ] = 250
    flush_bytes: Annotated[int, of_cluster("... and how many bytes at most.", 64 * KIB, GIB)] = (
        8 * MIB
    )
    heartbeat_ms: Annotated[
        int, of_cluster("An agent that has nothing to say tells the others that it lives.", 50)
    ] = 500
    agent_timeout_ms: Annotated[
        int,
        of_cluster(
            "An agent that has been silent for this time, while the journal answered, is fenced; "
            "after two thirds of it where the agent says that it alone does not reach the journal.",
            200,
        ),
    ] = 1500
    peer_timeout_ms: Annotated[
        int,
        of_cluster("How long another agent is waited for before the object store is read.", 10),
    ] = 250
    wal_volumes: Annotated[
        str,
        of_cluster(
            "Path of other agents' data directories as this host reaches them, with wildcards: "
            "`/mnt/agents/*`. The WAL of an agent that was fenced is taken over if it is found "
            "there. Empty: only `penstock agent takeover` does that."
        ),
    ] = ""
    digest_interval_ms: Annotated[
        int,
        of_cluster(
            "Agents of a cluster compare digests of their states this often (docs/operations.md): "
            "each copies its replica and hashes the copy. A comparison that not all have answered "
            "is left to them for a minute before the next. 0: this agent asks for none by itself.",
            0,
        ),
    ] = 3_600_000
    archive_interval_ms: Annotated[
        int,
        of_cluster(
            "How often the journal's new entries are archived in the bucket: what is younger is "
            "lost should the journal's database be lost for good.",
            100,
        ),
    ] = 10_000
    restore_window_ms: Annotated[
        int,
        of_cluster(
            "`penstock restore` can go back so far: objects and archived entries that a moment of "
            "this window needs are not deleted.",
            0,
            366 * DAY_MS,
        ),
    ] = DAY_MS

    compaction_warn_bytes: Annotated[
        int,
        of_bytes(
            "The log warns when so much lies in small runs that compaction could join. 0: never.",
            0,
        ),
    ] = 16 * GIB
    pipeline_object_bytes_max: Annotated[
        int,
        of_bytes(
            "Largest object that a job of the pipeline may put through this server, and most that "
            "all such puts hold at one time.",
            MIB,
            5 * GIB,
        ),
    ] = GIB

    wal_bytes_max: Annotated[
        int, of_bytes("Most that the WAL takes on disk. When full, producers wait.", 2 * MIB)
    ] = 512 * MIB
    wal_file_bytes: Annotated[
        int, of_bytes("Size of each preallocated WAL file.", MIB, 2 * GIB)
    ] = 64 * MIB
    segment_bytes: Annotated[
        int, of_bytes("The WAL is moved into a segment object once it holds this much.", 64 * KIB)
    ] = 32 * MIB
    segment_age_ms: Annotated[
        int,
        of_storage("Records move from the WAL to a segment object after this time.", 10),
    ] = 10_000

    snapshot_interval_ms: Annotated[
        int,
        of_storage(
            "A snapshot of the state is stored after this time, if anything changed; the journal "
            "is trimmed up to the one before it.",
            1000,
        ),
    ] = 600_000
    snapshot_entries: Annotated[
        int, of_storage("A snapshot is stored after so many journal entries, too.", 1)
    ] = 100_000
    state_check_interval_ms: Annotated[
        int,
        of_storage(
            "After this time the state of a server of its own is compared with what the journal "
            "gives; the journal since the last check is kept. 0: never, and a start after a crash "
            "doesn't either.",
            0,
        ),
    ] = 86_400_000
    state_check_entries: Annotated[
        int,
        of_storage("The state is compared after so many journal entries, too.", 1000),
    ] = 1_000_000

    tail_cache_bytes: Annotated[
        int,
        of_bytes("Memory for the newest records, which most read.", 0, section="Memory"),
    ] = 64 * MIB
    block_cache_bytes: Annotated[
        int, of_bytes("Memory for blocks of segment objects.", MIB, section="Memory")
    ] = 96 * MIB
    block_bytes: Annotated[
        int, of_bytes("Size of one block that is read and cached.", 64 * KIB, GIB, section="Memory")
    ] = 4 * MIB
    check_again_after_ms: Annotated[
        int,
        of_storage(
            "What is read of an object is checked before it is served, and not again for this time "
            "while it is in memory or its file is unchanged.",
            0,
        ),
    ] = HOUR_MS
    scrub_bytes_per_s: Annotated[
        int,
        of_bytes(
            "How much of what is stored the scrubber reads and checks per second; 0 turns it off.",
            0,
            GIB,
            section="Storage",
        ),
    ] = 8 * MIB
    scrub_bucket: Annotated[
        bool,
        of_storage(
            "Let the scrubber read objects of a bucket, too: docs/cost.md says what that costs.",
        ),
    ] = False
    inflight_bytes_max: Annotated[
        int,
        of_bytes(
            "Requests, unsent replies and large answers in the making of all connections together; "
            "above it, sockets are read for small requests and group calls alone.",
            MIB,
            section="Memory",
        ),
    ] = 128 * MIB
    group_inflight_bytes_max: Annotated[
        int,
        of_bytes(
            "The same for group calls, which have this besides: heartbeats, joins, commits.",
            MIB,
            section="Memory",
        ),
    ] = 16 * MIB
    connection_inflight_bytes_max: Annotated[
        int,
        of_bytes("Requests and unsent replies of one connection.", 64 * KIB, section="Memory"),
    ] = 64 * MIB

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

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        About("Logs", "Least severe kind of line that is written to standard error."),
    ] = "info"
