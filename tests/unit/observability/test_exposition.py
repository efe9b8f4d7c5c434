"""What Prometheus scrapes is what was counted, under names of the catalogue alone."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.observability.exposition import Exposition
from penstock.observability.metrics import CATALOGUE, MetricKind, Metrics


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = Exposition(metrics, version="1.2.3").text().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_histograms_and_gauges_appear_with_their_labels() -> None:
    metrics = Metrics()
    metrics.add("penstock_reply_bytes_total", 3)
    metrics.add("penstock_appends_total")
    metrics.histogram("penstock_request_duration_seconds", "Fetch").observe(0.2)
    metrics.histogram("penstock_wal_duration_seconds").observe(0.001)
    metrics.on_scrape(lambda: {"penstock_topics": 4, "penstock_block_cache_hits_total": 5})
    samples = scrape(metrics)
    fetch = ("api", "Fetch")
    assert samples["penstock_reply_bytes_total", ()] == 3
    assert samples["penstock_appends_total", ()] == 1
    assert samples["penstock_request_duration_seconds_bucket", (fetch, ("le", "0.1"))] == 0
    assert samples["penstock_request_duration_seconds_bucket", (fetch, ("le", "0.25"))] == 1
    assert samples["penstock_request_duration_seconds_bucket", (fetch, ("le", "+Inf"))] == 1
    assert samples["penstock_wal_duration_seconds_count", ()] == 1
    assert samples["penstock_topics", ()] == 4
    assert samples["penstock_block_cache_hits_total", ()] == 5
    assert samples["penstock_build_info", (("version", "1.2.3"),)] == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda metrics: metrics.add("penstock_unheard_of_total"),
        lambda metrics: metrics.add("penstock_topics"),
        lambda metrics: metrics.add("penstock_appends_total", 1, "label"),
        lambda metrics: metrics.histogram("penstock_wal_duration_seconds", "label"),
    ],
)
def test_a_name_kind_or_label_that_is_not_in_the_catalogue_is_our_own_bug(use: object) -> None:
    assert callable(use)
    with pytest.raises(AssertionError):
        use(Metrics())


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in CATALOGUE.values():
        assert re.fullmatch(r"penstock_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        if metric.kind is MetricKind.HISTOGRAM:
            assert metric.name.endswith("_seconds")
