"""What expires, and when: Kafka's rule as a table."""

import pytest

from penstock.groups.plan import expired_of
from penstock.state.rows import GroupRow, OffsetRow

DAY_MS = 24 * 3600 * 1000
RETENTION_MS = 7 * DAY_MS
NOW_MS = 100 * DAY_MS
READ, UNREAD = b"read" * 4, b"not-" * 4


def expired(protocol_type: str, empty_days: int | None, ages_days: dict[bytes, int]) -> object:
    empty_since_ms = None if empty_days is None else NOW_MS - empty_days * DAY_MS
    plan = expired_of(
        GroupRow("g", 3, protocol_type, empty_since_ms, b""),
        {
            (topic_id, 0): OffsetRow(5, -1, "", NOW_MS - days * DAY_MS)
            for topic_id, days in ages_days.items()
        },
        now_ms=NOW_MS,
        retention_ms=RETENTION_MS,
        is_read=lambda topic_id: topic_id == READ,
    )
    return "group" if plan.whole_group else [topic_id for topic_id, _ in plan.offsets]


@pytest.mark.parametrize(
    ("protocol_type", "empty_days", "ages_days", "result"),
    [
        # A simple consumer's offsets count from their commit.
        ("", 50, {READ: 8, UNREAD: 6}, [READ]),
        ("", 50, {READ: 8, UNREAD: 7}, "group"),
        ("", 1, {READ: 8}, "group"),
        # A group that had members: from when it became empty, however old the commits.
        ("consumer", 6, {READ: 50, UNREAD: 7}, []),
        ("consumer", 7, {READ: 50, UNREAD: 1}, "group"),
        ("connect", 7, {READ: 50}, "group"),
        # Without offsets there is nothing to keep an empty group for.
        ("consumer", 0, {}, "group"),
        ("", 0, {}, "group"),
        # With members: only what nobody reads.
        ("consumer", None, {READ: 50, UNREAD: 8}, [UNREAD]),
        ("consumer", None, {READ: 50, UNREAD: 6}, []),
        ("consumer", None, {}, []),
    ],
)
def test_expiry(
    protocol_type: str, empty_days: int | None, ages_days: dict[bytes, int], result: object
) -> None:
    assert expired(protocol_type, empty_days, ages_days) == result
