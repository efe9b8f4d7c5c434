"""Every metric that the code can emit is in the answer of a fresh server, counters at 0."""

import ast
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from penstock.observability.exposition import Exposition
from penstock.observability.metrics import CATALOGUE, MetricKind, Metrics
from support.api_server import ApiServer
from support.metrics import families_without_start

SOURCE = Path(__file__).parents[3] / "src" / "penstock"
NO_METRIC = {"penstock_simulated_node", "penstock_stored", "penstock_deleted"}
"""Strings that look like metrics."""
CATALOGUE_MODULE = SOURCE / "observability" / "metrics.py"


def named_in_source() -> set[str]:
    """Metrics' names in code, outside of the catalogue."""
    texts = (path.read_text("utf-8") for path in SOURCE.rglob("*.py") if path != CATALOGUE_MODULE)
    return {
        node.value
        for text in texts
        if re.search(r"[\"']penstock_[a-z_]+[\"']", text)  # parsing all of the source takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"penstock_[a-z_]+", node.value)
    }


def test_the_catalogue_holds_what_the_code_emits_and_nothing_else() -> None:
    assert named_in_source() - NO_METRIC == set(CATALOGUE)


def test_metrics_without_a_single_count_give_every_family() -> None:
    assert all(metric.label for metric in CATALOGUE.values() if metric.open_label)
    text = Exposition(Metrics(), version="1").text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in CATALOGUE.values():
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind.value
        assert family.documentation
        if metric.kind is not MetricKind.GAUGE and not metric.label:
            assert family.samples, metric.name
            assert {sample.value for sample in family.samples} == {0.0}


def test_a_fresh_embedded_server_shows_every_family_from_the_start(api: ApiServer) -> None:
    assert families_without_start(api.server.http_address) == set()
