"""Keys spread over prefixes and are read back strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.segment import SegmentKey, object_key, parse_object_key

_NUMBERS = st.integers(0, 2**62)


@given(agent=_NUMBERS, epoch=_NUMBERS, n=_NUMBERS)
def test_a_key_is_read_back(agent: int, epoch: int, n: int) -> None:
    key = object_key(agent=agent, epoch=epoch, n=n)
    assert parse_object_key(key) == SegmentKey(agent=agent, epoch=epoch, n=n)


def test_a_key_looks_as_documented() -> None:
    key = object_key(agent=1, epoch=2, n=3)
    assert key.startswith("segments/")
    assert key.endswith("/1-2-3.seg")
    assert len(key.split("/")[1]) == 2


def test_keys_of_one_agent_spread_over_all_prefixes() -> None:
    prefixes = {object_key(agent=1, epoch=1, n=n).split("/")[1] for n in range(4000)}
    assert len(prefixes) == 256


@given(st.text())
def test_other_keys_are_not_taken_for_ours(text: str) -> None:
    parsed = parse_object_key(text)
    assert parsed is None or object_key(agent=parsed.agent, epoch=parsed.epoch, n=parsed.n) == text


@pytest.mark.parametrize("change", ["01-2-3", "1-2", "1-2-3-4", "-1-2-3", "1-2-x", "1-2-\u0663"])
def test_numbers_are_strict(change: str) -> None:
    key = object_key(agent=1, epoch=2, n=3)
    assert parse_object_key(key) is not None
    assert parse_object_key(key.replace("1-2-3", change)) is None
    assert parse_object_key(key + "x") is None
    assert parse_object_key("x" + key) is None
    wrong = "00" if key.split("/")[1] != "00" else "01"
    assert parse_object_key(f"segments/{wrong}/1-2-3.seg") is None
