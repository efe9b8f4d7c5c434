"""What the object store is asked, as metrics: each request counts, retries too, as on the bill."""

from typing import Final

from penstock.observability.histogram import Histogram
from penstock.observability.metrics import Metrics

_MOVING: Final = ("put", "get")


class StoreInstruments:
    """Implements `penstock.objects.StoreMeter`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._durations: dict[str, Histogram] = {}

    def measured(self, *, operation: str, outcome: str, seconds: float, bytes_count: int) -> None:
        """One request ended."""
        durations = self._durations.get(operation)
        if durations is None:
            durations = self._durations[operation] = self._metrics.histogram(
                "penstock_store_duration_seconds", operation
            )
        durations.observe(seconds)
        self._metrics.add("penstock_store_requests_total", 1, operation)
        if outcome != "ok":
            self._metrics.add("penstock_store_errors_total", 1, outcome)
        elif operation in _MOVING:
            self._metrics.add("penstock_store_bytes_total", bytes_count, operation)
