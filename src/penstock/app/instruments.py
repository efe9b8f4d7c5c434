"""These instruments turn events of the Kafka face and of the log into metrics."""

from typing import Final

from penstock.kafka.net.lanes import Lane
from penstock.kafka.net.movement import Ending
from penstock.kafka.net.unserved import Unserved
from penstock.kafka.registry import APIS
from penstock.log.append.flight import Flight
from penstock.log.append.group_commit import GroupCommit
from penstock.log.findings import DamagedError, DamageKind
from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    OverloadedError,
    RetryableError,
    StorageFullError,
)
from penstock.observability.histogram import Histogram
from penstock.observability.metrics import Metrics
from penstock.security.quota import KEYS

_STAGES: Final = {
    "request": "penstock_request_duration_seconds",
    "parse": "penstock_parse_duration_seconds",
}
_EVENTS: Final = {
    "connections_opened": "penstock_connections_opened_total",
    "connections_closed": "penstock_connections_closed_total",
    "reply_bytes": "penstock_reply_bytes_total",
    "malformed_requests": "penstock_malformed_requests_total",
    "refused_batches": "penstock_refused_batches_total",
    "handed_over_batches": "penstock_handed_over_batches_total",
    "late_transaction_requests": "penstock_late_transaction_requests_total",
    "authentications": "penstock_authentications_total",
    "failed_authentications": "penstock_failed_authentications_total",
    "failed_tls_handshakes": "penstock_failed_tls_handshakes_total",
    "limited_topics": "penstock_limited_topics_total",
}
_LABELLED_EVENTS: Final = {
    "refused": (
        "penstock_refused_connections_total",
        ("connections_max", "max_connections_per_ip", "tls_handshakes", "draining"),
    ),
    "ended": ("penstock_ended_connections_total", tuple(Ending)),
    "waited": ("penstock_inflight_waits_total", tuple(Lane)),
    "throttled": ("penstock_throttled_total", KEYS),
    "unserved": ("penstock_unserved_requests_total", tuple(Unserved)),
}
"""The metric that counts an event, and the values of its label, by the event's first word."""
_PARSED: Final = ("Produce", "Fetch")
_READ_ERRORS: Final = (
    DamagedError,
    CorruptDataError,
    NotFoundError,
    RetryableError,
    OverloadedError,
    StorageFullError,
)
"""The kinds of error that a fetch's read can end in; each has a series from the start."""


class _Histograms(dict[str, Histogram]):
    """The histograms by stage, each made when its stage is first seen."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def __missing__(self, stage: str) -> Histogram:
        return self.make(stage)

    def make(self, stage: str) -> Histogram:
        """Make the histogram of a stage, which every scrape shows from now on."""
        kind, _, label = stage.partition(":")
        histogram = self[stage] = self._metrics.histogram(_STAGES[kind], label)
        return histogram


class KafkaInstruments:
    """Implements `penstock.kafka.instruments.Instruments`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histograms = _Histograms(metrics)
        self._counters = {event: (name, "") for event, name in _EVENTS.items()}
        for kind, (name, labels) in _LABELLED_EVENTS.items():
            self._counters |= {f"{kind}:{label}": (name, str(label)) for label in labels}
        for name, label in self._counters.values():
            # The series exist from the start: an alert sees the first rise only from a known 0.
            metrics.add(name, 0, label)
        stages = [api.stage for api in APIS.values()]
        for stage in (*stages, *(f"parse:{name}" for name in _PARSED)):
            self._histograms.make(stage)
        # An acknowledgement is the reply of a Produce, and a fetch's answer that of a Fetch: both
        # names share one histogram, so the second name costs nothing.
        for api, name in (
            ("Produce", "penstock_ack_duration_seconds"),
            ("Fetch", "penstock_fetch_duration_seconds"),
        ):
            metrics.histograms[name][""] = self._histograms[f"request:{api}"]

    def observe(self, stage: str, seconds: float) -> None:
        """Record one duration of a stage."""
        self._histograms[stage].observe(seconds)

    def count(self, event: str, amount: int = 1) -> None:
        """Count an event."""
        name, label = self._counters[event]
        self._metrics.add(name, amount, label)


class LogInstruments:
    """Implements `penstock.log.instruments.LogInstruments`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._wal = metrics.histogram("penstock_wal_duration_seconds")
        self._journal = metrics.histogram("penstock_journal_duration_seconds")
        self._put = metrics.histogram("penstock_flush_put_duration_seconds")
        for kind in DamageKind:
            metrics.add("penstock_damage_total", 0, kind.value)
        for error in _READ_ERRORS:
            metrics.add("penstock_fetch_errors_total", 0, error.__name__)

    def committed(self, group: GroupCommit) -> None:
        """Record a group commit that is over."""
        if group.error is not None:
            self._metrics.add("penstock_append_errors_total")
            return
        self._metrics.add("penstock_group_commits_total")
        self._journal.observe(group.journal_s)
        if group.appends:
            self._wal.observe(group.wal_s)
            self._metrics.add("penstock_appends_total", len(group.appends))
            stored_bytes = sum(request.length for request in group.appends)
            self._metrics.add("penstock_append_bytes_total", stored_bytes)

    def flushed(self, flight: Flight) -> None:
        """Record a flush that is over."""
        if flight.error is not None:
            self._metrics.add("penstock_append_errors_total")
            return
        if flight.stored is None or flight.plan is None:
            return
        self._metrics.add("penstock_group_commits_total")
        (self._wal if flight.stored.wal else self._put).observe(flight.stored_s)
        self._journal.observe(flight.applied_s)
        self._metrics.add("penstock_appends_total", len(flight.waiting))
        self._metrics.add("penstock_append_bytes_total", flight.length)

    def damaged(self, kind: DamageKind) -> None:
        """Count stored bytes that were found damaged or missing."""
        self._metrics.add("penstock_damage_total", 1, kind.value)

    def healed(self) -> None:
        """Count bytes that a first read gave damaged and a second read gave right."""
        self._metrics.add("penstock_damage_healed_total")

    def read_failed(self, kind: str) -> None:
        """Count an error that a fetch got for a partition."""
        self._metrics.add("penstock_fetch_errors_total", 1, kind)
