"""Times that options name."""

import pytest

from penstock.cli.options import parse_time
from penstock.model.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        (str((1 << 63) - 1), (1 << 63) - 1),
        ("1970-01-01", 0),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00+02:00", 1_769_853_600_000),
    ],
)
def test_a_time_is_a_number_or_iso(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "-2",
        str(1 << 63),
        "9" * 5000,
        "1969-12-31T23:59:59.999",
        "1969-12-31T23:59:59.9999",
        "1970-01-01T00:00:00+00:01",
        "0001-01-01T00:00:00+23:59",
        "yesterday",
        "",
    ],
    ids=lambda text: text[:30],
)
def test_what_no_record_can_have_as_its_time_is_refused(text: str) -> None:
    """-1 and -2 would be asked of a server as its latest and earliest offset."""
    with pytest.raises(InvalidRequestError, match="read time"):
        parse_time(text)
