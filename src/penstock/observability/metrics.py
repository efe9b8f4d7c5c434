"""The catalogue of metrics and the values behind them.

`CATALOGUE` is the one list of names: docs/metrics.md is made from it, and the exposition refuses
whatever is not in it. Names follow Prometheus' conventions: unit in the name, `_total` for
counters. What moves on the hot path is a `Histogram` or an integer here; what can be read when a
scrape asks (cache sizes, the WAL's use) is a gauge that `Metrics.gauges` reads then.
"""

import enum
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.observability.histogram import Histogram


class MetricKind(enum.StrEnum):
    """Prometheus' kinds that are used."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue.

    `label`: the name of its one label, or empty. `open_label`: why not every value of the label is
    known when a server starts; empty where each value has its series from the start.
    """

    name: str
    kind: MetricKind
    text: str
    label: str = ""
    open_label: str = ""


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_OF_PIPELINE_RUN: Final = (
    "`penstock pipeline run` has it, and a server with `compaction` `self`, for each of their jobs "
    "from the start"
)
_OF_TABLES: Final = (
    "`penstock pipeline run` alone has it, for each table that topics' configs ask for"
)

_OF_AUTHZ: Final = "`penstock authz serve` alone has it"

_TABLE: Final = (
    Metric("penstock_build_info", _G, "Always 1; the label is the version.", "version"),
    Metric("penstock_uptime_seconds", _G, "Seconds since the server was ready."),
    # Requests.
    Metric(
        "penstock_request_duration_seconds",
        _H,
        "From a request's last byte received until its reply is handed to the socket; a Fetch "
        "includes its waiting. Its count is the number of requests.",
        "api",
    ),
    Metric("penstock_reply_bytes_total", _C, "Bytes of replies handed to sockets."),
    Metric("penstock_malformed_requests_total", _C, "Requests that closed their connection."),
    Metric(
        "penstock_unserved_requests_total",
        _C,
        "Requests for what is not served, by kind: an API, a version of one, transactions, or a "
        "coordinator of something else. The log has who asked.",
        "what",
    ),
    Metric(
        "penstock_late_transaction_requests_total",
        _C,
        "Requests of transactions that closed their connection, since it was older than the "
        'transaction: their clients send them again (docs/transactions.md, "Late requests").',
    ),
    # Connections.
    Metric("penstock_connections", _G, "Open connections of Kafka clients."),
    Metric("penstock_connections_opened_total", _C, "Connections accepted."),
    Metric("penstock_connections_closed_total", _C, "Connections closed, by either side."),
    Metric(
        "penstock_refused_connections_total",
        _C,
        "Connections of Kafka clients that were not accepted, by the setting that allows no more; "
        "`tls_handshakes`: too many were under way; `draining`: the server was ending.",
        "reason",
    ),
    Metric(
        "penstock_ended_connections_total",
        _C,
        "Connections of Kafka clients that this server closed: `idle` for connections_max_idle_ms, "
        "`room` for another client at connections_max, `stalled` for stall_timeout_ms, "
        "`late_request` after request_receive_timeout_ms, `unauthenticated` after "
        "authentication_timeout_ms, `revoked` when their user's credential was deleted; "
        "`slow_request` and `slow_reply`: the "
        "slowest, while inflight_bytes_max was reached; `connection_rate` for a quota.",
        "reason",
    ),
    Metric("penstock_authentications_total", _C, "Clients that authenticated by SASL."),
    Metric(
        "penstock_failed_authentications_total",
        _C,
        "Clients that failed to authenticate by SASL, and whose connection was closed.",
    ),
    Metric(
        "penstock_failed_tls_handshakes_total",
        _C,
        "Connections that were closed in the handshake of TLS: no common version, a client's "
        "certificate that isn't taken, or authentication_timeout_ms was over.",
    ),
    Metric(
        "penstock_throttled_total",
        _C,
        "Requests, and connections, above a quota, by its key: their clients must wait "
        "(docs/quotas.md).",
        "key",
    ),
    Metric(
        "penstock_refused_batches_total",
        _C,
        "Produced batches that were refused: damaged, invalid, or against the topic's limits.",
    ),
    Metric(
        "penstock_handed_over_batches_total",
        _C,
        "Produced batches that this agent refused while it is being drained: their producers send "
        "them to the agents that lead the partitions.",
    ),
    Metric(
        "penstock_limited_topics_total",
        _C,
        "Topics that clients asked for by name and that were not created: beyond "
        "auto_create_topics_per_s, topics_max or partitions_max.",
    ),
    Metric(
        "penstock_http_ended_connections_total",
        _C,
        "Connections that the port (`http`, `peer`) closed: `head` and `body` came too slowly, "
        "`stalled` took nothing of an answer, `room` for another client, `malformed` sent other "
        "bytes than HTTP.",
        "reason",
    ),
    Metric(
        "penstock_http_refused_total",
        _C,
        "What the port turned away. Since none could make room: `connections`, `requests` (503), "
        "`bodies` (503: too many bytes of them in memory). For who sent it: `host` (403: a web "
        "page, or a foreign Host), `credentials` (401), `denied` (403: no access rule allows it).",
        "reason",
    ),
    Metric("penstock_audit_entries", _G, "Entries of the audit log that were written."),
    Metric(
        "penstock_audit_entries_lost",
        _G,
        "Entries of the audit log that could not be written, or found no room in memory.",
    ),
    Metric(
        "penstock_inflight_bytes",
        _G,
        "Bytes of requests beyond 4 KiB of each connection, of unsent replies, and of large "
        "answers in the making.",
    ),
    Metric("penstock_inflight_bytes_max", _G, "The setting inflight_bytes_max."),
    Metric(
        "penstock_group_inflight_bytes",
        _G,
        "Bytes of group calls, counted as those of penstock_inflight_bytes.",
    ),
    Metric("penstock_group_inflight_bytes_max", _G, "The setting group_inflight_bytes_max."),
    Metric(
        "penstock_inflight_waiting",
        _G,
        "Connections that wait for room below inflight_bytes_max or group_inflight_bytes_max.",
    ),
    Metric(
        "penstock_inflight_longest_wait_seconds",
        _G,
        "Of the connections that wait for room now: how long the first of them has waited.",
    ),
    Metric(
        "penstock_inflight_waits_total",
        _C,
        "Waits for that room: `request` to receive the rest of a request, `answer` to begin work "
        "on an answer of more than 64 KiB, `fetch` to begin a Fetch.",
        "lane",
    ),
    # Stages.
    Metric("penstock_parse_duration_seconds", _H, "Decoding of a Produce or Fetch request.", "api"),
    Metric(
        "penstock_wal_duration_seconds",
        _H,
        "Write and sync of one WAL frame, which holds all that waited.",
    ),
    Metric(
        "penstock_flush_put_duration_seconds",
        _H,
        "Making one object of what waited and putting it, all tries together (durability object).",
    ),
    Metric(
        "penstock_journal_duration_seconds",
        _H,
        "One journal entry and its applying, in one transaction.",
    ),
    Metric(
        "penstock_ack_duration_seconds",
        _H,
        "From a Produce request's last byte received until its acknowledgement.",
    ),
    Metric(
        "penstock_fetch_duration_seconds",
        _H,
        "From a Fetch request's last byte received until its reply, waiting included.",
    ),
    # The log.
    Metric("penstock_group_commits_total", _C, "Group commits: one journal entry each."),
    Metric("penstock_appends_total", _C, "Produce requests whose batches were stored."),
    Metric("penstock_append_bytes_total", _C, "Bytes of record batches stored."),
    Metric("penstock_append_errors_total", _C, "Group commits that were refused retriably."),
    Metric("penstock_wal_pending_bytes", _G, "Bytes in the own WAL that no segment holds yet."),
    Metric("penstock_wal_free_bytes", _G, "Bytes that it can still take."),
    Metric("penstock_wal_bytes_max", _G, "The setting wal_bytes_max; all three: if it has a WAL."),
    Metric("penstock_segments_stored_total", _C, "Segment objects stored since the start."),
    Metric(
        "penstock_foreign_objects_total",
        _C,
        "Segments that met another writer's object under their key, and were put under the next.",
    ),
    Metric(
        "penstock_state_checks_total",
        _C,
        "How often the state was compared with what the journal gives, and was right.",
    ),
    Metric(
        "penstock_state_unchecked_entries",
        _G,
        "Journal entries since the position at which the state was compared last.",
    ),
    Metric(
        "penstock_state_rebuilt",
        _G,
        "1: this start has set metadata.sqlite aside and made it again of the journal.",
    ),
    Metric("penstock_append_waiting_bytes", _G, "Bytes handed to the commit lane, unanswered."),
    # What went wrong.
    Metric(
        "penstock_background_task_failures_total",
        _C,
        "Failures of background work (uploader, retention, archive, following the journal), "
        "by name; `/v1/status` (`background_failures`) has the last error of each.",
        "task",
    ),
    Metric(
        "penstock_swallowed_errors_total",
        _C,
        "Errors after which the server goes on, by what could not be done; each cause has a log "
        "line at most once a minute.",
        "cause",
    ),
    # Damage.
    Metric(
        "penstock_damage_total",
        _C,
        "Findings of stored bytes that are damaged or missing, each time that a read or a move "
        "meets them.",
        "kind",
    ),
    Metric(
        "penstock_damage_healed_total",
        _C,
        "Blocks that came damaged, from a peer or a cache, and were right when they were read "
        "once more from the object store.",
    ),
    Metric(
        "penstock_damaged_ranges", _G, "Ranges of offsets that are known to be damaged or missing."
    ),
    Metric(
        "penstock_damaged_wal_frames",
        _G,
        "Damaged stretches of WAL files that a start or a takeover found, in which records lie.",
    ),
    Metric(
        "penstock_lost_ranges",
        _G,
        "Ranges of offsets whose loss an operator accepted, and that are not trimmed.",
    ),
    Metric(
        "penstock_rebuilt_ranges",
        _G,
        "Ranges of offsets whose records were encoded again from a table, and that are not "
        "trimmed.",
    ),
    Metric(
        "penstock_scrubbed_bytes_total", _C, "Stored bytes that the scrubber has read and checked."
    ),
    Metric(
        "penstock_scrub_passes_total", _C, "Times that the scrubber has read all that is stored."
    ),
    Metric(
        "penstock_transactions_timed_out_total",
        _C,
        "Transactions that this agent aborted since their time-out had passed.",
    ),
    Metric(
        "penstock_transactional_ids_forgotten_total",
        _C,
        "Transactional ids that this agent forgot after transactional_id_expiration_ms.",
    ),
    Metric(
        "penstock_fetch_errors_total",
        _C,
        "Partitions that a Fetch, or a look-up by time, could not read, by type of error.",
        "kind",
        open_label="an unforeseen error adds its type",
    ),
    # Caches.
    Metric("penstock_tail_cache_bytes", _G, "Bytes of newest records in memory."),
    Metric("penstock_block_cache_bytes", _G, "Bytes of segment blocks in memory."),
    Metric("penstock_block_cache_hits_total", _C, "Block reads answered from memory."),
    Metric("penstock_block_cache_loads_total", _C, "Blocks read from the object store."),
    # The pipeline.
    Metric(
        "penstock_pipeline_calls_total",
        _C,
        "Calls of jobs to the pipeline's API, by name and HTTP status.",
        "call",
    ),
    Metric(
        "penstock_compaction_backlog_runs",
        _G,
        "Runs shorter than 16 MiB, of partitions that have 13 or more, which compaction would "
        "join: of the newest 256 of each partition. Every agent tells the whole cluster's.",
    ),
    Metric("penstock_compaction_backlog_bytes", _G, "The same in bytes."),
    # `penstock pipeline run --http`.
    Metric(
        "penstock_pipeline_job_runs_total",
        _C,
        "Runs of a job of the pipeline that ended well.",
        "job",
        open_label=_OF_PIPELINE_RUN,
    ),
    Metric(
        "penstock_pipeline_job_failures_total",
        _C,
        "Runs that failed.",
        "job",
        open_label=_OF_PIPELINE_RUN,
    ),
    Metric(
        "penstock_pipeline_job_duration_seconds",
        _H,
        "One run, well or not.",
        "job",
        open_label=_OF_PIPELINE_RUN,
    ),
    Metric(
        "penstock_pipeline_engine_up",
        _G,
        "1 while the engine process of jobs takes them, else 0.",
    ),
    Metric(
        "penstock_pipeline_engine_starts_total",
        _C,
        "Engine processes that were started: more than one means that one has ended.",
    ),
    Metric(
        "penstock_pipeline_table_behind_records",
        _G,
        "Offsets of the topic that the table doesn't hold yet.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_behind_seconds",
        _G,
        "Seconds since the oldest of these records was seen, by the clock of the process that "
        "looks; 0: there is none.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_rows",
        _G,
        "Rows of the table's newest snapshot, as its job last knew it.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_files",
        _G,
        "Data files of that snapshot.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_snapshots",
        _G,
        "Snapshots of the table that are not expired.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_bad_records",
        _G,
        "Records that ever became dead letters of the table.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_bad_share",
        _G,
        "Their share of the records that the table has followed since releases count both, 0 to 1.",
        "table",
        open_label=_OF_TABLES,
    ),
    Metric(
        "penstock_pipeline_table_commit_conflicts",
        _G,
        "Commits of the table's jobs that another commit was ahead of.",
        "table",
        open_label=_OF_TABLES,
    ),
    # The object store.
    Metric(
        "penstock_store_requests_total",
        _C,
        "Requests to the object store, tries again included.",
        "operation",
    ),
    Metric(
        "penstock_store_errors_total",
        _C,
        "Requests to the object store that failed, by kind; most are tried again. OverloadedError "
        "is a 503 SlowDown; CancelledError: a second request was quicker.",
        "kind",
        open_label="an unforeseen error adds its type",
    ),
    Metric(
        "penstock_store_bytes_total",
        _C,
        "Bytes put into and got from the object store.",
        "operation",
    ),
    Metric("penstock_store_duration_seconds", _H, "One request to the object store.", "operation"),
    # The authorization service.
    Metric(
        "penstock_authz_call_duration_seconds",
        _H,
        "From an authorization call's last byte received until its answer is handed to the socket. "
        "Its count is the number of calls.",
        "call",
        open_label=_OF_AUTHZ,
    ),
    Metric(
        "penstock_authz_failed_calls_total",
        _C,
        "Authorization calls that were answered by an error, by status.",
        "status",
        open_label=_OF_AUTHZ,
    ),
    Metric(
        "penstock_authz_compared_decisions_total",
        _C,
        "Decisions of clients' own code (ParityHandle), by whether the service had decided the "
        "`same` or `different`.",
        "decision",
        open_label=_OF_AUTHZ,
    ),
    Metric("penstock_authz_environments", _G, "Environments of the authorization service."),
    Metric(
        "penstock_authz_journal_confirmed_seconds",
        _G,
        "Time since an authorization service last found that it has applied all of its shared "
        "journal: the most that its answers are old.",
    ),
    Metric(
        "penstock_authz_journal_position",
        _G,
        "Position of the shared journal that an authorization service has applied.",
    ),
    Metric(
        "penstock_authz_logged_decisions_total",
        _C,
        "Questions that an authorization service has written to its log of decisions.",
    ),
    Metric(
        "penstock_authz_dropped_decisions_total",
        _C,
        "Questions that are missing in that log: its queue was full, or its file could not be "
        "written.",
    ),
    Metric(
        "penstock_authz_snapshot_position",
        _G,
        "Position of the shared journal at which the newest set of snapshots was taken, as far as "
        "this authorization service knows.",
    ),
    Metric(
        "penstock_authz_snapshots_total",
        _C,
        "Sets of snapshots that this authorization service has taken.",
    ),
    Metric(
        "penstock_authz_position",
        _G,
        "Position of the last applied entry of an environment that is open.",
        "environment",
        open_label=_OF_AUTHZ,
    ),
    # State.
    Metric("penstock_topics", _G, "Topics."),
    Metric("penstock_partitions", _G, "Partitions of all topics."),
    Metric("penstock_journal_position", _G, "Position of the last applied journal entry."),
    # Several agents.
    Metric(
        "penstock_journal_confirmed_seconds",
        _G,
        "Age of the last head of the journal that this agent has reached.",
    ),
    Metric(
        "penstock_clock_in_doubt",
        _G,
        "1 while nothing is deleted or expired by age, since a clock isn't believed; else 0.",
    ),
    Metric(
        "penstock_clock_off_seconds",
        _G,
        "How far this host's clock is ahead of the believed one (below 0: behind); 0: believed.",
    ),
    Metric(
        "penstock_replica_unstored_bytes",
        _G,
        "Bytes of journal entries that are applied in memory alone, since there is no space on the "
        "disk of the agent's replica. Above 32 MiB records are refused.",
    ),
    Metric(
        "penstock_clock_skew_seconds",
        _G,
        "How far this host's clock is ahead of the journal's (below 0: behind); 0: within 5 s.",
    ),
    Metric(
        "penstock_journal_time_ahead_seconds",
        _G,
        "How far journal time stands ahead of this host's believed clock.",
    ),
    Metric("penstock_agents", _G, "Agents whose epoch isn't over."),
    Metric(
        "penstock_lost_histories",
        _G,
        "Histories that the journal has lost and no operator has closed (penstock repair).",
    ),
    Metric("penstock_group_shards", _G, "Shards of groups that this agent coordinates, of 64."),
    Metric(
        "penstock_digest_position",
        _G,
        "Position of the last state of this agent that was found equal to the majority's.",
    ),
    Metric(
        "penstock_digest_split",
        _G,
        "1 while the agents' states differ without a majority, so that nothing is written.",
    ),
    Metric(
        "penstock_digests_equal_total",
        _C,
        "Comparisons of states in which this agent was of the majority, or alone.",
    ),
    Metric(
        "penstock_digests_differed_total",
        _C,
        "Comparisons of states in which other agents differed from the majority.",
    ),
    Metric(
        "penstock_digests_failed_total",
        _C,
        "States of this agent that could not be hashed.",
    ),
    Metric(
        "penstock_snapshots_refused_total",
        _C,
        "Snapshots that this agent did not archive, since the archive gives another state for their"
        " position: its replica, or the archive, is damaged.",
    ),
    Metric(
        "penstock_snapshots_uncompared_total",
        _C,
        "Snapshots that this agent archived without comparing them, since nothing whole in the"
        " archive leads there.",
    ),
)

CATALOGUE: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _TABLE}


class Metrics:
    """The values of one server. Histograms and counts are made when first named, which must be a
    name of the catalogue. What counts by a label names its values at the start (`add` of 0), so
    that an alert on the first rise fires; families without a label need no such call."""

    def __init__(self) -> None:
        self.histograms: dict[str, dict[str, Histogram]] = defaultdict(dict)
        """Histograms by metric, then by the value of its label ("" without one)."""
        self.counts: dict[str, Mapping[str, int]] = {}
        self._own_counts: dict[str, dict[str, int]] = defaultdict(dict)
        self._gauges: list[Callable[[], Mapping[str, float]]] = []
        self._labelled: list[Callable[[], Mapping[str, Mapping[str, float]]]] = []

    def histogram(self, name: str, label: str = "") -> Histogram:
        """The histogram of that name and label, made at first use; keep it where it is hot."""
        _check(name, MetricKind.HISTOGRAM, label)
        return self.histograms[name].setdefault(label, Histogram())

    def add(self, name: str, amount: int = 1, label: str = "") -> None:
        """Count. Costs two look-ups once the name is known."""
        values = self._own_counts[name]
        if label not in values:
            _check(name, MetricKind.COUNTER, label)
            self.counts[name] = values
            values[label] = 0
        values[label] += amount

    def share(self, name: str, counts: Mapping[str, int]) -> None:
        """Show counts by label that another part keeps."""
        assert name not in self.counts, f"{name} is counted here"
        for label in counts:
            _check(name, MetricKind.COUNTER, label)
        self.counts[name] = counts

    def on_scrape(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Call `read` at each scrape for values of gauges and of counters that others keep."""
        self._gauges.append(read)

    def on_scrape_by_label(self, read: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        """Call `read` at each scrape for values by metric and label."""
        self._labelled.append(read)

    def labelled(self) -> dict[str, Mapping[str, float]]:
        """Read all values that have a label, by name."""
        values: dict[str, Mapping[str, float]] = {}
        for read in self._labelled:
            values.update(read())
        return values

    def gauges(self) -> dict[str, float]:
        """Read all gauges, by name."""
        values: dict[str, float] = {}
        for read in self._gauges:
            values.update(read())
        return values


def _check(name: str, kind: MetricKind, label: str) -> None:
    metric = CATALOGUE.get(name)
    assert metric is not None, f"{name} is not in the catalogue"
    assert metric.kind is kind, f"{name} is a {metric.kind}"
    assert bool(metric.label) == bool(label), f"{name} has the label {metric.label!r}"
