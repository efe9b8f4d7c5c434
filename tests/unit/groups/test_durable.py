"""The journaled state: encoding, versions, and damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.durable import (
    STATE_VERSION,
    DurableGroup,
    DurableMember,
    decode_state,
    encode_state,
)
from penstock.model.errors import CorruptDataError

MEMBERS = st.builds(
    DurableMember,
    st.text(),
    st.none() | st.text(),
    st.text(),
    st.text(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(st.text(), st.binary())),
    st.binary(),
)
GROUPS = st.builds(DurableGroup, st.text(), st.text(), st.lists(MEMBERS, max_size=3))


@given(GROUPS)
def test_what_is_encoded_is_decoded(group: DurableGroup) -> None:
    assert decode_state(encode_state(group), group_id="g") == group


def test_no_bytes_are_a_group_of_offsets_alone() -> None:
    assert decode_state(b"", group_id="g").members == []


def test_a_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(CorruptDataError, match=f"version {STATE_VERSION + 1}"):
        decode_state(bytes([STATE_VERSION + 1]) + b"\x90", group_id="g")


@given(GROUPS, st.data())
def test_a_cut_state_is_an_error_that_names_the_group(
    group: DurableGroup, data: st.DataObject
) -> None:
    encoded = encode_state(group)
    cut = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(CorruptDataError, match="my-group"):
        decode_state(encoded[:cut], group_id="my-group")


def test_a_state_of_version_1_is_read_for_ever() -> None:
    """Bytes as the first release wrote them."""
    state = bytes.fromhex(
        "0193a572616e6765a16d9198a16dc0a163aa2f3132372e302e302e31cd2710cdea609192a572616e6765c4016dc40161"
    )
    assert decode_state(state, group_id="g") == DurableGroup(
        "range",
        "m",
        [DurableMember("m", None, "c", "/127.0.0.1", 10_000, 60_000, [("range", b"m")], b"a")],
    )
