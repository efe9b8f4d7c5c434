"""Retention plans what to delete from rows and settings. Pure: commands' items come out."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.topic_configs import TopicSettings
from penstock.state.read.queries import StoredRun


@dataclass(frozen=True, slots=True)
class Held:
    """A partition's contents: offsets [log_start, next_offset), and the bytes of its runs."""

    log_start: int
    next_offset: int
    bytes_total: int

    @property
    def offsets(self) -> int:
        """Return the number of offsets; a cleaning may have emptied some."""
        return self.next_offset - self.log_start


def new_log_start(
    runs: Sequence[StoredRun],
    settings: TopicSettings,
    held: Held,
    *,
    now_ms: int | None,
) -> int | None:
    """The log start offset that retention by time, size and count asks for.

    Whole runs leave, oldest first, as whole segments do in Kafka: by time when the newest record
    of a run is older than `retention.ms`, by size while what would remain is still at least
    `retention.bytes`. A run none of whose records has a timestamp (-1) is never too old, nor do
    runs behind it leave by time before it does: Kafka takes the time at which the segment's file
    was last written, and nothing here keeps one. By count what leaves is exact: all
    offsets but the newest `penstock.retention.messages`. The new start may be within a run, and
    beyond the runs that are given.

    Args:
        runs: the partition's oldest ones, ascending.
        held: what the whole partition holds.
        now_ms: None: no clock is believed, and nothing leaves by time.

    Returns:
        The offset, or None when nothing has expired. Compact-only topics never expire.
    """
    if not settings.deletes:
        return None
    start: int | None = None
    bytes_total = held.bytes_total
    for run in runs:
        expired = (
            now_ms is not None
            and run.max_timestamp >= 0
            and 0 <= settings.retention_ms < now_ms - run.max_timestamp
        )
        too_many = (
            settings.retention_bytes >= 0 and bytes_total - run.length >= settings.retention_bytes
        )
        if not (expired or too_many):
            break
        start = run.end_offset
        bytes_total -= run.length
    if 0 <= settings.retention_messages < held.offsets:
        start = max(start or 0, held.next_offset - settings.retention_messages)
    return start
