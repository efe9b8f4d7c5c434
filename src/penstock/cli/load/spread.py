"""A spread says how measured durations are distributed. Pure."""

import math
from collections.abc import Iterable, Sequence

import msgspec

_NS_PER_MS = 1e6


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of durations in ms, by nearest rank; 0 if nothing was measured."""

    count: int
    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    max_ms: float


def spread(durations_ns: Iterable[int]) -> Spread:
    """Sort durations and take their percentiles.

    Args:
        durations_ns: nanoseconds, in any order.
    """
    ordered = sorted(durations_ns)
    return Spread(
        count=len(ordered),
        p50_ms=percentile_ms(ordered, 50),
        p99_ms=percentile_ms(ordered, 99),
        p99_9_ms=percentile_ms(ordered, 99.9),
        max_ms=percentile_ms(ordered, 100),
    )


def percentile_ms(ordered_ns: Sequence[int], percent: float) -> float:
    """Return the smallest duration that `percent` of all durations don't exceed.

    Args:
        ordered_ns: nanoseconds, ascending.
        percent: above 0, at most 100.
    Returns:
        Milliseconds, to the microsecond; 0 where there are no durations.
    Source: the nearest-rank method.
    """
    if not ordered_ns:
        return 0.0
    rank = math.ceil(len(ordered_ns) * percent / 100)
    return round(ordered_ns[max(rank, 1) - 1] / _NS_PER_MS, 3)
