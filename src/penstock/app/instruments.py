"""The instruments of the Kafka face and of the log, on the metrics of the observability package."""

from typing import Final

from penstock.log.append.flight import Flight
from penstock.log.append.lane import Delivery
from penstock.log.damage import DamageKind
from penstock.observability.histogram import Histogram
from penstock.observability.metrics import Metrics

_STAGES: Final = {
    "request": "penstock_request_duration_seconds",
    "parse": "penstock_parse_duration_seconds",
}
_EVENTS: Final = {
    "connections_opened": "penstock_connections_opened_total",
    "connections_closed": "penstock_connections_closed_total",
    "reply_bytes": "penstock_reply_bytes_total",
    "malformed_requests": "penstock_malformed_requests_total",
    "stalled_connections": "penstock_stalled_connections_total",
    "refused_connections": "penstock_refused_connections_total",
}


class _Histograms(dict[str, Histogram]):
    """By stage, made when a stage is first seen: afterwards a plain dictionary look-up."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def __missing__(self, stage: str) -> Histogram:
        kind, _, label = stage.partition(":")
        histogram = self[stage] = self._metrics.histogram(_STAGES[kind], label)
        return histogram


class KafkaInstruments:
    """Implements `penstock.kafka.instruments.Instruments`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histograms = _Histograms(metrics)
        # An acknowledgement is a Produce's reply and a fetch's answer a Fetch's: the same
        # observations under a second name cost nothing.
        for api, name in (
            ("Produce", "penstock_ack_duration_seconds"),
            ("Fetch", "penstock_fetch_duration_seconds"),
        ):
            metrics.histograms[name][""] = self._histograms[f"request:{api}"]

    def observe(self, stage: str, seconds: float) -> None:
        """One duration."""
        self._histograms[stage].observe(seconds)

    def count(self, event: str, amount: int = 1) -> None:
        """Something happened."""
        self._metrics.add(_EVENTS[event], amount)


class LogInstruments:
    """Implements `penstock.log.instruments.LogInstruments`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._wal = metrics.histogram("penstock_wal_duration_seconds")
        self._journal = metrics.histogram("penstock_journal_duration_seconds")
        self._put = metrics.histogram("penstock_flush_put_duration_seconds")

    def committed(self, delivery: Delivery) -> None:
        """A group commit is over."""
        if delivery.error is not None:
            self._metrics.add("penstock_append_errors_total")
            return
        self._metrics.add("penstock_group_commits_total")
        self._journal.observe(delivery.journal_s)
        if delivery.appends:
            self._wal.observe(delivery.wal_s)
            self._metrics.add("penstock_appends_total", len(delivery.appends))
            stored_bytes = sum(request.length for request in delivery.appends)
            self._metrics.add("penstock_append_bytes_total", stored_bytes)

    def flushed(self, flight: Flight) -> None:
        """A flush is over."""
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
        """Stored bytes were found damaged or missing."""
        self._metrics.add("penstock_damage_total", 1, kind.value)

    def healed(self) -> None:
        """Bytes that came damaged were right when they were read once more."""
        self._metrics.add("penstock_damage_healed_total")

    def read_failed(self, kind: str) -> None:
        """A fetch got an error of a partition."""
        self._metrics.add("penstock_fetch_errors_total", 1, kind)
