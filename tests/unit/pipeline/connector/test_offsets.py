"""The JSON in checkpoints. A golden file per version: what a release wrote, all later ones read."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.pipeline.connector.offsets import (
    OFFSETS_VERSION,
    StreamOffsets,
    TableOffsets,
    TopicOffsets,
    from_json,
    to_json,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "connector"

VERSION_1 = StreamOffsets(
    topics={
        "flights": TopicOffsets(
            topic_id="0f" * 16,
            partitions={0: 123, 1: 0, 10: 2**62},
            begun={0: 100, 10: 0},
            lost=7,
        ),
        "empty": TopicOffsets(topic_id="a0" * 16, partitions={}),
    },
    initial=True,
)

VERSION_2 = StreamOffsets(
    topics={
        "flights": TopicOffsets(
            topic_id="0f" * 16, partitions={0: 123, 10: 2**62}, begun={10: 0}, lost=7
        )
    },
    table=TableOffsets(
        name="penstock.flights",
        snapshot_id=2**63 - 1,
        files=12,
        files_sum=2**32 - 1,
        read=5,
        pin=71,
    ),
)
GOLDEN_OFFSETS = {1: VERSION_1, 2: VERSION_2}

numbers = st.dictionaries(st.integers(0, 2000), st.integers(0, 2**63 - 1), max_size=5)
offsets = st.builds(
    StreamOffsets,
    topics=st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.builds(
            TopicOffsets,
            topic_id=st.text("0123456789abcdef", min_size=32, max_size=32),
            partitions=numbers,
            begun=numbers,
            lost=st.integers(0, 2**63),
        ),
        max_size=4,
    ),
    initial=st.booleans(),
    table=st.none()
    | st.builds(
        TableOffsets,
        name=st.text(min_size=1, max_size=8),
        snapshot_id=st.integers(0, 2**63 - 1),
        files=st.integers(5, 2**40),
        files_sum=st.integers(0, 2**32 - 1),
        read=st.integers(0, 5),
        pin=st.integers(0, 2**63 - 1),
    ),
)


@pytest.mark.parametrize("version", GOLDEN_OFFSETS)
def test_each_version_is_written_and_read_as_it_was(version):
    text = (GOLDEN / f"offsets-v{version}.json").read_text()
    assert json.dumps(to_json(GOLDEN_OFFSETS[version]), indent=1) + "\n" == text
    assert from_json(json.loads(text)) == GOLDEN_OFFSETS[version]
    assert json.loads(text)["version"] == version


def test_every_known_version_has_a_golden_file():
    names = {f"offsets-v{version}.json" for version in range(1, OFFSETS_VERSION + 1)}
    assert {path.name for path in GOLDEN.glob("offsets-*")} == names
    assert len(GOLDEN_OFFSETS) == OFFSETS_VERSION


@given(offsets)
def test_what_is_written_is_read(value):
    text = json.dumps(to_json(value))
    assert from_json(json.loads(text)) == value


@given(offsets)
def test_the_text_is_the_same_after_spark_had_it(value):
    """Spark compares texts to see whether there is anything new."""
    text = json.dumps(to_json(value))
    assert json.dumps(json.loads(text)) == text
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


@pytest.mark.parametrize("version", [0, 3, "1", None, True])
def test_an_unknown_version_is_refused(version):
    value = to_json(VERSION_1) | {"version": version}
    with pytest.raises(InvalidRequestError, match="unknown; this release knows 1 and 2"):
        from_json(value)


@pytest.mark.parametrize(
    "value",
    [
        [],
        "text",
        {"version": 1},
        {"version": 1, "topics": []},
        {"version": 1, "topics": {"t": {}}},
        {"version": 1, "topics": {"t": {"id": 5, "partitions": {}}}},
        {"version": 1, "topics": {"t": {"id": "x", "partitions": {"a": 1}}}},
        {"version": 1, "topics": {"t": {"id": "x", "partitions": {"0": "1"}}}},
        {"version": 1, "topics": {"t": {"id": "x", "partitions": {"0": -1}}}},
        {"version": 1, "topics": {"t": {"id": "x", "partitions": {"0": 1.5}}}},
        {"version": 1, "topics": {"t": {"id": "x", "partitions": {"0": 1}, "from": 3}}},
    ],
)
def test_what_no_version_wrote_is_refused(value):
    with pytest.raises(CorruptDataError):
        from_json(value)


@pytest.mark.parametrize(
    "changes",
    [{"name": 5}, {"snapshot": -1}, {"files": "2"}, {"read": 13}, {"sum": None}, {"pin": 1.5}],
)
def test_a_table_that_no_version_wrote_is_refused(changes):
    value = to_json(VERSION_2)
    with pytest.raises(CorruptDataError):
        from_json(value | {"table": value["table"] | changes})
    for missing in ({}, {"table": None}, {"table": []}):
        with pytest.raises(CorruptDataError):
            from_json({"version": 2, "topics": {}} | missing)
