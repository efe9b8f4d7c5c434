"""docs/metrics.md, made from the catalogue."""

from penstock.observability.histogram import SECONDS_BOUNDS
from penstock.observability.metrics import CATALOGUE

_HEAD = """\
# Metrics

Made from `penstock.observability.metrics`; `make docs` makes it anew.

A server's HTTP port answers `GET /metrics` in Prometheus' text format. Next to these there are
`process_*` (Linux) and `python_info` of the Prometheus client library. A series with a label
appears once it was first counted.
"""


def metrics_page() -> str:
    """The page as Markdown."""
    rows = ["| metric | kind | label | what it is |\n| --- | --- | --- | --- |\n"]
    for metric in CATALOGUE.values():
        label = f"`{metric.label}`" if metric.label else ""
        rows.append(f"| `{metric.name}` | {metric.kind} | {label} | {metric.text} |\n")
    bounds = ", ".join(f"{bound:g}" for bound in SECONDS_BOUNDS)
    return f"{_HEAD}\n{''.join(rows)}\nBounds of histograms, in seconds: {bounds}.\n"
