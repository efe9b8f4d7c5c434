"""The counts of what the gates of HTTP ports report, as metrics."""

import enum
from collections.abc import Sequence

from penstock.app.http.gate import HttpEnding, HttpRefusal
from penstock.observability.metrics import Metrics


class HttpCounts:
    """Counts what the gates of the HTTP ports report.

    Args:
        ports: the names of the ports that this server has.
    """

    def __init__(self, metrics: Metrics, ports: Sequence[str]) -> None:
        self._metrics = metrics
        for port in ports:
            for happened in (*HttpEnding, *HttpRefusal):
                self.count(port, happened, 0)

    def count(self, port: str, happened: enum.StrEnum, amount: int = 1) -> None:
        """Count a connection that the gate closed, or a client that it turned away."""
        name = (
            "penstock_http_ended_connections_total"
            if isinstance(happened, HttpEnding)
            else "penstock_http_refused_total"
        )
        self._metrics.add(name, amount, f"{port} {happened.value}")
