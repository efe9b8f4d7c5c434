"""docs/metrics.md, made from the catalogue."""

from penstock.observability.histogram import SECONDS_BOUNDS
from penstock.observability.metrics import CATALOGUE

_HEAD = """\
# Metrics

Made from `penstock.observability.metrics` by `make docs`.

A server's HTTP port answers `GET /metrics` in Prometheus' text format. Next to these there are
`process_*` (Linux) and `python_info` of the Prometheus client library.

Each metric of this page is in the answer from the start: counters and histograms at 0, those with
a label once for each value of it, so that an alert on the first rise fires. Two exceptions have
their HELP and TYPE lines alone: a gauge of a part that the server does not have (the WAL of an
agent without one, the journal's head of an embedded server), and a label whose values are not
known at the start, for the reason that its row names.
"""


def metrics_page() -> str:
    """The page as Markdown."""
    rows = ["| metric | kind | label | what it is |\n| --- | --- | --- | --- |\n"]
    for metric in CATALOGUE.values():
        label = f"`{metric.label}`" if metric.label else ""
        text = f"{metric.text} ({metric.open_label})" if metric.open_label else metric.text
        rows.append(f"| `{metric.name}` | {metric.kind} | {label} | {text} |\n")
    bounds = ", ".join(f"{bound:g}" for bound in SECONDS_BOUNDS)
    return f"{_HEAD}\n{''.join(rows)}\nBounds of histograms, in seconds: {bounds}.\n"
