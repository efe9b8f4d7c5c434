"""The text that Prometheus scrapes, made from `Metrics` and the process's own numbers.

Imports prometheus_client, so it is itself imported only once a server already serves.
"""

from collections.abc import Iterator, Mapping
from typing import Final

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

from penstock.observability.histogram import Histogram
from penstock.observability.metrics import CATALOGUE, MetricKind, Metrics
from penstock.observability.metrics import Metric as CatalogueRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_VERSION: Final = "penstock_build_info"


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
        # All of the catalogue, counted or not: an alert on a counter's first rise needs the 0
        # before it.
        read = {_VERSION: {self._version: 1.0}}
        read |= {name: {"": value} for name, value in self._metrics.gauges().items()}
        read |= {name: dict(values) for name, values in self._metrics.labelled().items()}
        for about in CATALOGUE.values():
            if about.kind is MetricKind.HISTOGRAM:
                yield _histogram(about, self._metrics.histograms.get(about.name, {}))
            else:
                values = read.get(about.name) or self._metrics.counts.get(about.name, {})
                yield _plain(about, values)


def _histogram(about: CatalogueRow, by_label: Mapping[str, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(about.name, about.text, labels=_labels(about))
    if not about.label:
        by_label = by_label or {"": Histogram()}
    for label, histogram in list(by_label.items()):
        family.add_metric([label] if label else [], histogram.cumulative(), histogram.sum)
    return family


def _plain(about: CatalogueRow, values: Mapping[str, float]) -> Metric:
    """A counter starts at 0; a gauge that this server doesn't read has no value to show."""
    family: CounterMetricFamily | GaugeMetricFamily
    if about.kind is MetricKind.COUNTER:
        family = CounterMetricFamily(about.name, about.text, labels=_labels(about))
        if not about.label:
            values = values or {"": 0}
    else:
        family = GaugeMetricFamily(about.name, about.text, labels=_labels(about))
    for label, value in list(values.items()):
        family.add_metric([label] if label else [], value)
    return family


def _labels(about: CatalogueRow) -> list[str]:
    return [about.label] if about.label else []
