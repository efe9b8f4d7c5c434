"""Which record of a key counts."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.tables.columns import TIMESTAMP
from penstock.pipeline.tables.newest import newest_rows

Place = tuple[bytes, int, int, int | None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"b", b"c"]),
            st.integers(0, 2),
            st.integers(0, 20),
            st.none() | st.integers(0, 3),
        ),
        unique_by=lambda place: (place[1], place[2]),
        max_size=40,
    )
)
def test_it_is_the_last_of_its_partition_and_the_latest_of_these(places: list[Place]) -> None:
    rows = pa.table(
        {
            "x_key": pa.array([place[0] for place in places], pa.binary()),
            "x_partition": pa.array([place[1] for place in places], pa.int32()),
            "x_offset": pa.array([place[2] for place in places], pa.int64()),
            "x_timestamp": pa.array([place[3] for place in places], pa.int64()).cast(TIMESTAMP),
        }
    )
    last: dict[tuple[bytes, int], Place] = {}
    for place in sorted(places, key=lambda place: place[2]):
        last[place[:2]] = place
    expected: dict[bytes, Place] = {}
    for place in last.values():
        rank = (-1 if place[3] is None else place[3], place[2], place[1])
        best = expected.get(place[0])
        if best is None or rank > (-1 if best[3] is None else best[3], best[2], best[1]):
            expected[place[0]] = place
    found = newest_rows(rows, prefix="x_")
    got = zip(
        found["x_key"].to_pylist(),
        found["x_partition"].to_pylist(),
        found["x_offset"].to_pylist(),
        strict=True,
    )
    assert sorted(got) == sorted(place[:3] for place in expected.values())
