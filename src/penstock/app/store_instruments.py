"""Each request to the object store counts in the metrics, and so do retries, as on the bill."""

import asyncio
from typing import Final

from penstock.model.errors import (
    ConflictError,
    NotFoundError,
    OverloadedError,
    RetryableError,
    StorageFullError,
)
from penstock.observability.metrics import Metrics

_MOVING: Final = ("put", "get")
_OPERATIONS: Final = (*_MOVING, "size", "delete", "list")
_ERRORS: Final = (
    RetryableError,
    OverloadedError,
    StorageFullError,
    ConflictError,
    NotFoundError,
    asyncio.CancelledError,
)
"""The kinds of error that adapters' calls can end in (`penstock.objects.translate`)."""


class StoreInstruments:
    """Implements `penstock.objects.StoreMeter`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # The series exist from the start: an alert sees the first rise only from a known 0.
        self._durations = {
            operation: metrics.histogram("penstock_store_duration_seconds", operation)
            for operation in _OPERATIONS
        }
        for operation in _OPERATIONS:
            metrics.add("penstock_store_requests_total", 0, operation)
        for operation in _MOVING:
            metrics.add("penstock_store_bytes_total", 0, operation)
        for error in _ERRORS:
            metrics.add("penstock_store_errors_total", 0, error.__name__)

    def measured(self, *, operation: str, outcome: str, seconds: float, bytes_count: int) -> None:
        """Record a request that has ended."""
        self._durations[operation].observe(seconds)
        self._metrics.add("penstock_store_requests_total", 1, operation)
        if outcome != "ok":
            self._metrics.add("penstock_store_errors_total", 1, outcome)
        elif operation in _MOVING:
            self._metrics.add("penstock_store_bytes_total", bytes_count, operation)
