"""Sizes and durations read back as they are written, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.values import (
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    parse_switch,
)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_reads_back_as_it_is_shown(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(min_value=0, max_value=1 << 40))
def test_a_duration_reads_back_as_it_is_shown(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms), unit_ms=1) == duration_ms


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("512MiB", 512 << 20), ("1 kb", 1000), ("0", 0), ("1_000", 1000), ("2TiB", 2 << 40)],
)
def test_sizes_are_decimal_or_binary_by_their_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "unit_ms", "value"),
    [("250ms", 1, 250), ("10s", 1, 10_000), ("7d", 60_000, 10_080), ("90", 60_000, 90)],
)
def test_durations_come_in_the_settings_own_unit(text: str, unit_ms: int, value: int) -> None:
    assert parse_duration(text, unit_ms=unit_ms) == value


@pytest.mark.parametrize("text", ["", "-1", "1.5MiB", "MiB", "1MiBs", "0x10", "٣"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize("text", ["1500ms", "90s", "1y", "-1s"])
def test_a_duration_that_is_not_a_whole_number_of_minutes_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text, unit_ms=60_000)


def test_switches_are_words_of_yes_and_no() -> None:
    assert [parse_switch(text) for text in ("true", "YES", "on", "1")] == [True] * 4
    assert [parse_switch(text) for text in ("false", "No", "off", "0")] == [False] * 4
    with pytest.raises(ValueError):
        parse_switch("maybe")
