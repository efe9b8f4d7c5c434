"""Settings of a server's place: its addresses, its cluster, and where it keeps bytes, on disks, in
buckets and in memory."""

from typing import Annotated, Literal

from msgspec import Struct

from penstock.config.about import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KIB,
    MIB,
    of_addresses,
    of_bytes,
    of_cluster,
    of_durability,
    of_storage,
)


class PlaceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `ServerSettings`."""

    data: Annotated[str, of_addresses("Directory of everything that the server keeps.")] = (
        "penstock-data"
    )
    kafka: Annotated[
        str,
        of_addresses(
            "HOST:PORT on which Kafka clients are served, without encryption and authentication; "
            "`listeners` takes its place."
        ),
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
        ),
    ] = ""
    allow_insecure: Annotated[
        bool,
        of_addresses(
            "Listen beyond loopback on ports that don't ask clients who they are: any client that "
            "reaches such a port can read and write everything."
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
            "the environment, by `cluster_secret_file`, or in a settings file that only the server "
            "reads.",
            secret=True,
        ),
    ] = ""
    cluster_secret_file: Annotated[
        str,
        of_cluster(
            "File that holds `cluster_secret` alone; it goes before that setting. It is looked at "
            "every second. While the secret is being changed it has two lines: the first is sent, "
            "both are taken (docs/security.md)."
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

    compaction: Annotated[
        Literal["", "self"],
        of_storage(
            "`self`: this server compacts by itself, in a child process of the lowest priority, "
            "with threads and without Spark (docs/compaction.md); of a host's workers the first "
            "one has the child. Empty: `penstock pipeline run` compacts."
        ),
    ] = ""
    compaction_interval_ms: Annotated[
        int,
        of_storage("How often the server looks for something to compact, with `self`.", 1_000),
    ] = 60_000
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
