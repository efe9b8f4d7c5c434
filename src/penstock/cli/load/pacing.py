"""Calls are made at a steady rate, however long each call takes: an open loop.

A closed loop waits for each answer before the next request, so a server that stalls gets fewer
requests while it stalls, and its percentiles look better than what a user would have seen.
Source: G. Tene, "How NOT to Measure Latency", 2013 (coordinated omission).
"""

import time
from collections.abc import Callable

_NS_PER_S = 1_000_000_000
_HEAD_START_NS = 1_000_000


def paced(
    send: Callable[[int], None],
    *,
    rate_per_s: float,
    count: int,
    now_ns: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Call `send(index)` for each index below `count`, the n-th call n / `rate_per_s` s later.

    A call that is late is made at once, and the calls after it keep to the plan.

    Args:
        now_ns: a monotonic clock, in nanoseconds.
        sleep: takes seconds.

    Returns:
        The greatest number of nanoseconds by which a call missed its plan. If this is many
        milliseconds, the client was too slow for the rate, and measured itself.
    """
    step_ns = _NS_PER_S / rate_per_s
    start_ns = now_ns() + _HEAD_START_NS
    late_ns_max = 0
    for index in range(count):
        due_ns = start_ns + int(index * step_ns)
        wait_ns = due_ns - now_ns()
        if wait_ns > 0:
            sleep(wait_ns / _NS_PER_S)
        late_ns_max = max(late_ns_max, now_ns() - due_ns)
        send(index)
    return late_ns_max
