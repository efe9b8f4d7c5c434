"""What retention lets go of: whole runs, oldest first, by time and by size."""

from collections.abc import Sequence

import msgspec
import pytest

from penstock.log.retention.plan import Held, new_log_start
from penstock.model.topic_configs import topic_settings
from penstock.state.read.queries import StoredRun

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
    held = Held(0, len(rows), bytes_total=100 * len(rows))
    return new_log_start(rows, topic_settings(named, {}), held, now_ms=NOW)


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


def test_offsets_leave_by_count_exactly_whatever_the_runs() -> None:
    settings = topic_settings({"penstock.retention.messages": "7"}, {})
    rows = [msgspec.structs.replace(runs(NOW)[0], end_offset=100)]
    assert new_log_start(rows, settings, Held(0, 100, bytes_total=100), now_ms=NOW) == 93
    assert new_log_start(rows, settings, Held(90, 100, bytes_total=100), now_ms=None) == 93
    assert new_log_start(rows, settings, Held(93, 100, bytes_total=100), now_ms=NOW) is None
    beyond = Held(0, 5_000_000, bytes_total=10**9)
    assert new_log_start(rows, settings, beyond, now_ms=NOW) == 4_999_993


def test_the_rule_that_takes_most_decides() -> None:
    rows = runs(NOW - 3 * DAY, NOW - 2 * DAY, NOW, NOW)
    assert start(rows, retention_ms=str(DAY), penstock_retention_messages="3") == 2
    assert start(rows, retention_ms=str(DAY), penstock_retention_messages="1") == 3
    assert start(rows, retention_ms=str(DAY), penstock_retention_messages="0") == 4
    assert start(rows, retention_ms="-1", penstock_retention_messages="-1") is None


def test_a_topic_that_is_only_compacted_keeps_everything() -> None:
    limits = {"retention_ms": "1", "retention_bytes": "1", "penstock_retention_messages": "1"}
    assert start(runs(0, 0), **limits, cleanup_policy="compact") is None


def test_a_record_leaves_once_it_is_older_than_its_retention_not_before() -> None:
    assert start(runs(NOW - DAY), retention_ms=str(DAY)) is None
    assert start(runs(NOW - DAY - 1), retention_ms=str(DAY)) == 1
    assert start(runs(0), retention_ms=str(DAY)) == 1, "the first moment that there is"


def test_a_bound_of_no_bytes_lets_all_leave_and_none_lets_nothing() -> None:
    assert start(runs(NOW, NOW), retention_ms="-1", retention_bytes="0") == 2
    assert start(runs(NOW, NOW), retention_ms="-1", retention_bytes="-1") is None
