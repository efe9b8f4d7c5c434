"""The floor of epochs: seconds since 2020. Pure.

An epoch that is counted on from what a state knows recurs when the state is older than what was
given out: after a restore, or a failover to a database that lacks the last rows. Time doesn't
recur. So no agent opens an epoch, and no restore begins a leader epoch, below the seconds that have
passed since 2020 (until 2088 they fit in 31 bits, the leader epoch's on Kafka's wire).
"""

from typing import Final

EPOCH_ORIGIN_MS: Final = 1_577_836_800_000
"""2020-01-01, UTC, in ms since 1970."""
_FLOOR_MAX: Final = (1 << 30) + (1 << 29)
"""In 2071: a clock that claims to be past it is wrong, and must not use up the int32 that leader
epochs are."""


def epoch_floor(now_ms: int) -> int:
    """The least epoch that may begin at a time; 0 before 2020, as of a clock that was never set."""
    return min(max(0, (now_ms - EPOCH_ORIGIN_MS) // 1000), _FLOOR_MAX)
