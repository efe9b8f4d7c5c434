"""A pass of retention need not look at some partitions again. Pure.

Retention by time depends on a partition's oldest run alone, and the oldest run changes rarely. What
a pass found is remembered, so that the next passes ask SQLite nothing about a partition whose
oldest run is still too young. Compaction may join the oldest run or take its newest record, which
moves its timestamp without a trace here: each partition is looked at again every RELOOK_PASSES
passes.
"""

from typing import Final

from penstock.log.retention.plan import Held
from penstock.model.topic_configs import TopicSettings
from penstock.state.read.queries import StoredRun

RELOOK_PASSES: Final = 12
"""An hour at the default of five minutes per pass."""


class OldestRuns:
    """The log start and the timestamp of the oldest run, by partition key."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._pass = 0

    def begin_pass(self) -> None:
        """Another pass over all partitions begins."""
        self._pass += 1

    def may_be_due(
        self,
        key: int,
        settings: TopicSettings,
        held: Held,
        *,
        now_ms: int | None,
    ) -> bool:
        """Return whether a partition has to be looked at. `now_ms` is as of `new_log_start`."""
        if not held.bytes_total:
            self._known.pop(key, None)
            return False
        if (
            0 <= settings.retention_bytes <= held.bytes_total
            or 0 <= settings.retention_messages < held.offsets
        ):
            return True
        known = self._known.get(key)
        if known is None or known[0] != held.log_start or (key + self._pass) % RELOOK_PASSES == 0:
            return True
        # As `new_log_start` judges the oldest run.
        return (
            now_ms is not None and known[1] >= 0 and 0 <= settings.retention_ms < now_ms - known[1]
        )

    def note(self, key: int, oldest: StoredRun | None, *, log_start: int) -> None:
        """Remember what a look found."""
        if oldest is not None:
            self._known[key] = (log_start, oldest.max_timestamp)

    def keep(self, keys: set[int]) -> None:
        """Forget all partitions but these."""
        for key in self._known.keys() - keys:
            del self._known[key]
