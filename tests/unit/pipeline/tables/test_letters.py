"""What a letter says of its record is enough to have the record again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.tables.letters import LEFT_OUT, letter_headers, originals
from penstock.pipeline.tables.rows import RECORD_SCHEMA

TOPIC_ID = "0f" * 16
names = st.sampled_from(["mine", "penstock.reason", "penstock.offset", "penstock.timestamp"])
rows = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=3),
        "value": st.none() | st.binary(max_size=3),
        "partition": st.integers(0, 2**31 - 1),
        "offset": st.integers(0, 2**63 - 1),
        "timestamp": st.none() | st.integers(-(10**12), 10**13).map(lambda ms: ms * 1000),
        "headers": st.lists(
            st.fixed_dictionaries({"key": names, "value": st.none() | st.binary(max_size=3)}),
            max_size=3,
        ),
    }
)


def letter(row: dict[str, Any], reason: str = "not JSON", **named: str) -> dict[str, Any]:
    said = {"topic": "flights", "topic_id": TOPIC_ID} | named
    own = letter_headers({**row, "reason": reason}, **said)
    headers = [*row["headers"], *({"key": key, "value": value} for key, value in own)]
    return {**row, "partition": 0, "offset": 7, "timestamp": None, "headers": headers}


def table(letters: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(letters, schema=RECORD_SCHEMA)


@given(st.lists(rows, max_size=4))
def test_a_record_is_what_it_was(given: list[dict[str, Any]]) -> None:
    found = originals(table([letter(row) for row in given]), TOPIC_ID)
    assert found.others == 0
    assert found.records.equals(table(given))


ROW: dict[str, Any] = {
    "key": b"k",
    "value": b"v",
    "partition": 3,
    "offset": 40,
    "timestamp": 5_000,
    "headers": [],
}


@pytest.mark.parametrize(
    "given",
    [
        letter(ROW, topic_id="ab" * 16),
        letter(ROW, "its timestamp is beyond the years 1 to 9999"),
        letter(ROW, "offsets 4 to 9, of a batch from 4 to 9 that can't be decoded: lz4"),
        {**ROW, "headers": [{"key": "mine", "value": b"x"}]},
        {**letter(ROW), "headers": [*letter(ROW)["headers"], {"key": LEFT_OUT, "value": b"9"}]},
        {**letter(ROW), "headers": letter(ROW)["headers"][:3]},
    ],
)
def test_letters_without_one_record_of_the_topic_are_passed_over(given: dict[str, Any]) -> None:
    found = originals(table([given, letter(ROW)]), TOPIC_ID)
    assert (found.records.num_rows, found.others) == (1, 1)
