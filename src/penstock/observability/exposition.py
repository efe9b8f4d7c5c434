"""The text that Prometheus scrapes, made from `Metrics` and the process's own numbers.

Imports prometheus_client, so it is itself imported only once a server already serves.
"""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.observability.metrics import CATALOGUE, MetricKind, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Writes one server's metrics as text."""

    def __init__(self, metrics: Metrics, *, version: str) -> None:
        # A registry of its own: the library's global one would be shared by servers of one test.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(metrics, version))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, metrics: Metrics, version: str) -> None:
        self._metrics = metrics
        self._version = version

    def collect(self) -> Iterator[Metric]:
        yield _labelled_gauge("penstock_build_info", self._version, 1)
        for name, by_label in list(self._metrics.histograms.items()):
            about = CATALOGUE[name]
            labels = [about.label] if about.label else []
            family = HistogramMetricFamily(name, about.text, labels=labels)
            for label, histogram in list(by_label.items()):
                family.add_metric([label] if label else [], histogram.cumulative(), histogram.sum)
            yield family
        for name, counts in list(self._metrics.counts.items()):
            about = CATALOGUE[name]
            counter = CounterMetricFamily(
                name, about.text, labels=[about.label] if about.label else []
            )
            for label, count in list(counts.items()):
                counter.add_metric([label] if label else [], count)
            yield counter
        for name, value in self._metrics.gauges().items():
            about = CATALOGUE[name]
            if about.kind is MetricKind.COUNTER:
                yield CounterMetricFamily(name, about.text, value=value)
            else:
                yield GaugeMetricFamily(name, about.text, value=value)


def _labelled_gauge(name: str, label: str, value: float) -> GaugeMetricFamily:
    about = CATALOGUE[name]
    family = GaugeMetricFamily(name, about.text, labels=[about.label])
    family.add_metric([label], value)
    return family
