"""What has outlived its topic's retention. Pure: rows and settings in, commands' items out."""

from collections.abc import Sequence

from penstock.metadata.queries import StoredRun
from penstock.model.topic_configs import TopicSettings


def new_log_start(
    runs: Sequence[StoredRun], settings: TopicSettings, *, bytes_total: int, now_ms: int | None
) -> int | None:
    """The log start offset that retention by time and size asks for.

    Whole runs leave, oldest first, as whole segments do in Kafka: by time when the newest record
    of a run is older than `retention.ms`, by size while what would remain is still at least
    `retention.bytes`. A run none of whose records has a timestamp (-1) is never too old, nor do
    runs behind it leave by time before it does: Kafka takes the time at which the segment's file
    was last written, and nothing here keeps one.

    Args:
        runs: the partition's oldest ones, ascending.
        bytes_total: of all the partition's runs.
        now_ms: None: no clock is believed, and nothing leaves by time.

    Returns:
        The offset, or None when nothing has expired. Compact-only topics never expire.
    """
    if not settings.deletes:
        return None
    start: int | None = None
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
    return start
