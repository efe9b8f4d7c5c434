"""What a running server's /metrics says."""

from __future__ import annotations

import re
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from penstock.observability.metrics import CATALOGUE, MetricKind

_SAMPLE = re.compile(r'^([a-z_]+)(?:\{[a-z]+="([^"]*)"\})? ([0-9.e+-]+)$', re.MULTILINE)


def scrape(address: str, *, timeout_seconds: float = 60.0) -> dict[tuple[str, str], float]:
    """Values of counters and gauges by name and the value of their label ("": none).

    Args:
        address: host:port of the HTTP port.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=timeout_seconds) as answer:
        text = answer.read().decode()
    return {(name, label): float(value) for name, label, value in _SAMPLE.findall(text)}


def families_without_start(address: str) -> set[str]:
    """What a server's /metrics lacks: families without HELP and TYPE, and counters and histograms
    whose known series aren't there. A gauge may be of a part that the server doesn't have.

    Args:
        address: host:port of the HTTP port.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60.0) as answer:
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    lacking = set()
    for metric in CATALOGUE.values():
        family = families.get(metric.name.removesuffix("_total"))
        may_be_empty = metric.kind is MetricKind.GAUGE or metric.open_label
        if family is None or not (family.samples or may_be_empty):
            lacking.add(metric.name)
    return lacking
