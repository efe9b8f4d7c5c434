"""Sets of snapshots: what is written is read again, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authz.state import snapshot_sets
from penstock.authz.state.snapshot_sets import SetName, SnapshotSet
from penstock.model.errors import CorruptDataError

digests = st.integers(0, (1 << 64) - 1).map(lambda number: f"{number:016x}")
positions = st.integers(0, (1 << 63) - 1)
sets = st.builds(
    SnapshotSet,
    st.text(max_size=20),
    positions,
    st.tuples(positions, digests),
    st.tuples(positions, positions, st.integers(0, (1 << 32) - 1)),
    st.lists(st.tuples(st.text(max_size=10), positions, digests), max_size=3),
)


@given(sets)
def test_a_set_is_read_as_it_was_written(found):
    assert snapshot_sets.decode(snapshot_sets.encode(found), key=found.name.key) == found
    assert SetName.parse(found.name.key) == found.name


@given(sets, st.data())
def test_a_cut_and_a_flipped_bit_are_noticed(found, data):
    body = bytearray(snapshot_sets.encode(found))
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    with pytest.raises(CorruptDataError):
        snapshot_sets.decode(bytes(body), key=found.name.key)


@given(sets, sets)
def test_a_set_under_the_key_of_another_is_refused(found, other):
    if found.name == other.name:
        return
    with pytest.raises(CorruptDataError, match="it is sets/"):
        snapshot_sets.decode(snapshot_sets.encode(found), key=other.name.key)


@pytest.mark.parametrize("key", ["", "sets/1-a", "sets/" + "0" * 20, "shard/" + "0" * 20])
def test_other_keys_are_none(key):
    assert SetName.parse(key) is None
