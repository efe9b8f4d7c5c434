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
    """One row of the catalogue. `label` is the name of its one label, or empty."""

    name: str
    kind: MetricKind
    text: str
    label: str = ""


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

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
    # Connections.
    Metric("penstock_connections", _G, "Open connections of Kafka clients."),
    Metric("penstock_connections_opened_total", _C, "Connections accepted."),
    Metric("penstock_connections_closed_total", _C, "Connections closed, by either side."),
    Metric("penstock_refused_connections_total", _C, "Connections above connections_max."),
    Metric("penstock_stalled_connections_total", _C, "Connections cut off after stall_timeout_ms."),
    Metric("penstock_inflight_bytes", _G, "Bytes of requests and unsent replies."),
    Metric("penstock_inflight_bytes_max", _G, "The setting inflight_bytes_max."),
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
        "penstock_lost_ranges",
        _G,
        "Ranges of offsets whose loss an operator accepted, and that are not trimmed; 1,000 at "
        "most are counted.",
    ),
    Metric(
        "penstock_scrubbed_bytes_total", _C, "Stored bytes that the scrubber has read and checked."
    ),
    Metric(
        "penstock_scrub_passes_total", _C, "Times that the scrubber has read all that is stored."
    ),
    Metric(
        "penstock_fetch_errors_total",
        _C,
        "Partitions that a Fetch, or a look-up by time, could not read, by type of error.",
        "kind",
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
    ),
    Metric("penstock_pipeline_job_failures_total", _C, "Runs that failed.", "job"),
    Metric("penstock_pipeline_job_duration_seconds", _H, "One run, well or not.", "job"),
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
        "is a 503 SlowDown; CancelledError gave way to a second request that was quicker.",
        "kind",
    ),
    Metric(
        "penstock_store_bytes_total",
        _C,
        "Bytes put into and got from the object store.",
        "operation",
    ),
    Metric("penstock_store_duration_seconds", _H, "One request to the object store.", "operation"),
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
)

CATALOGUE: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _TABLE}


class Metrics:
    """The values of one server. Histograms and counts are made when first named, which must be a
    name of the catalogue."""

    def __init__(self) -> None:
        self.histograms: dict[str, dict[str, Histogram]] = defaultdict(dict)
        """By metric, then by the value of its label ("" without one)."""
        self.counts: dict[str, dict[str, int]] = defaultdict(dict)
        self._gauges: list[Callable[[], Mapping[str, float]]] = []

    def histogram(self, name: str, label: str = "") -> Histogram:
        """The histogram of that name and label, made at first use; keep it where it is hot."""
        _check(name, MetricKind.HISTOGRAM, label)
        return self.histograms[name].setdefault(label, Histogram())

    def add(self, name: str, amount: int = 1, label: str = "") -> None:
        """Count. Costs two look-ups once the name is known."""
        values = self.counts[name]
        if label not in values:
            _check(name, MetricKind.COUNTER, label)
            values[label] = 0
        values[label] += amount

    def on_scrape(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Call `read` at each scrape for values of gauges and of counters that others keep."""
        self._gauges.append(read)

    def gauges(self) -> dict[str, float]:
        """What the readers say now, by name."""
        values: dict[str, float] = {}
        for read in self._gauges:
            values.update(read())
        return values


def _check(name: str, kind: MetricKind, label: str) -> None:
    metric = CATALOGUE.get(name)
    assert metric is not None, f"{name} is not in the catalogue"
    assert metric.kind is kind, f"{name} is a {metric.kind}"
    assert bool(metric.label) == bool(label), f"{name} has the label {metric.label!r}"
