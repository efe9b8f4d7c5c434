"""Where a table's offsets are found, and their format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.tables.offsets import (
    OFFSETS_PROPERTY,
    decode_offsets,
    encode_offsets,
    find_held,
    is_property_current,
)
from penstock.model.errors import CorruptDataError

GOLDEN = '{"version":1,"topics":{"aa":{"0":5,"2":0,"10":7},"bb":{}}}'


def test_the_format_stays() -> None:
    topics = {"bb": {}, "aa": {10: 7, 0: 5, 2: 0}}
    assert encode_offsets(topics) == GOLDEN
    assert decode_offsets(GOLDEN, subject="") == topics


@given(st.dictionaries(st.text(), st.dictionaries(st.integers(0), st.integers(0, 2**62))))
def test_what_goes_in_comes_out(topics: dict[str, dict[int, int]]) -> None:
    assert decode_offsets(encode_offsets(topics), subject="") == topics


@pytest.mark.parametrize(
    "text", ["", "{", '{"version":2,"topics":{}}', '{"version":1,"topics":{"a":{"x":1}}}', "[]"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="read a table's offsets t"):
        decode_offsets(text, subject="t")


def offsets(number: int) -> dict[str, str]:
    return {OFFSETS_PROPERTY: encode_offsets({"t": {0: number}})}


@pytest.mark.parametrize(
    ("summaries", "whole", "properties", "progress", "found", "source"),
    [
        ([offsets(3), offsets(2)], True, offsets(9), {0: 9}, {0: 3}, "snapshot"),
        ([{}, offsets(2)], True, offsets(9), {0: 9}, {0: 2}, "snapshot"),
        # A rollback to before the first commit: whatever else says, the table holds nothing.
        ([{}], True, offsets(9), {0: 9}, {}, ""),
        ([], True, offsets(9), {0: 9}, {}, ""),
        ([{}], False, offsets(9), {0: 1}, {0: 9}, "property"),
        ([{}], False, {}, {0: 1}, {0: 1}, "progress"),
        ([{}], False, {}, None, {}, ""),
    ],
)
def test_the_nearest_snapshot_that_says_it_is_believed(
    summaries: list[dict[str, str]],
    whole: bool,
    properties: dict[str, str],
    progress: dict[int, int] | None,
    found: dict[int, int],
    source: str,
) -> None:
    held = find_held(
        "t",
        table="x",
        summaries=summaries,
        is_ancestry_whole=whole,
        properties=properties,
        progress=progress,
    )
    assert (held.offsets, held.source) == (found, source)


def test_offsets_of_another_topic_are_none_of_this_one() -> None:
    summary = {OFFSETS_PROPERTY: encode_offsets({"old": {0: 3}})}
    held = find_held(
        "new",
        table="x",
        summaries=[summary],
        is_ancestry_whole=True,
        properties={},
        progress=None,
    )
    assert held.offsets == {}
    assert held.topics == {"old": {0: 3}}


@pytest.mark.parametrize(
    ("summaries", "whole", "properties", "is_current"),
    [
        ([{}, offsets(3), offsets(2)], True, offsets(3), True),
        ([{}, offsets(2)], True, offsets(3), False),
        ([offsets(2)], False, {}, False),
        # Rolled back to before the first commit.
        ([{}], True, offsets(3), False),
        ([{}], True, {}, True),
        ([{}], False, offsets(3), True),
    ],
)
def test_whether_snapshots_may_go_since_the_property_says_the_same(
    summaries: list[dict[str, str]], whole: bool, properties: dict[str, str], is_current: bool
) -> None:
    found = is_property_current(summaries=summaries, is_ancestry_whole=whole, properties=properties)
    assert found == is_current
    if not found:
        return
    before, after = (
        find_held(
            "t",
            table="t",
            summaries=left,
            is_ancestry_whole=is_whole,
            properties=properties,
            progress=None,
        ).offsets
        for left, is_whole in ((summaries, whole), (summaries[:1], False))
    )
    assert before == after
