"""What retention lets go of: whole runs, oldest first, by time and by size."""

from collections.abc import Sequence

import pytest

from penstock.log.retention.plan import new_log_start
from penstock.metadata.queries import StoredRun
from penstock.model.topic_configs import topic_settings

NOW = 1_790_000_000_000
DAY = 86_400_000


def runs(*timestamps: int) -> list[StoredRun]:
    """One record and 100 bytes each."""
    return [
        StoredRun(
            partition_key=1,
            base_offset=offset,
            end_offset=offset + 1,
            generation=0,
            object_key="o",
            position=100 * offset,
            length=100,
            max_timestamp=timestamp,
            batch_count=1,
            object_bytes=10_000,
        )
        for offset, timestamp in enumerate(timestamps)
    ]


def start(rows: Sequence[StoredRun], **configs: str) -> int | None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return new_log_start(rows, topic_settings(named, {}), bytes_total=100 * len(rows), now_ms=NOW)


def test_runs_leave_by_time_oldest_first() -> None:
    rows = runs(NOW - 3 * DAY, NOW - 2 * DAY, NOW)
    assert start(rows, retention_ms=str(DAY)) == 2
    assert start(rows, retention_ms=str(4 * DAY)) is None
    assert start(rows, retention_ms="-1") is None


def test_runs_leave_by_size_while_enough_remains() -> None:
    rows = runs(NOW, NOW, NOW)
    assert start(rows, retention_bytes="200") == 1
    assert start(rows, retention_bytes="201") is None


@pytest.mark.parametrize("retention_ms", ["0", "1", str(DAY)])
def test_records_without_a_timestamp_never_leave_by_time(retention_ms: str) -> None:
    assert start(runs(-1, -1), retention_ms=retention_ms) is None
    assert start(runs(NOW - 2 * DAY, -1, NOW - 2 * DAY), retention_ms=retention_ms) == 1


def test_records_without_a_timestamp_leave_by_size() -> None:
    assert start(runs(-1, -1, -1), retention_bytes="100") == 2


def test_a_topic_that_is_only_compacted_keeps_everything() -> None:
    assert start(runs(0, 0), retention_ms="1", cleanup_policy="compact") is None
