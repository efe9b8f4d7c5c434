"""What the journal has of a member gives the member back; damage is an error that names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.consumer.member import (
    ConsumerMember,
    MemberState,
    Subscription,
    decode_member,
    encode_member,
)
from penstock.model.errors import CorruptDataError

sets = st.dictionaries(
    st.binary(min_size=16, max_size=16), st.frozensets(st.integers(0, 9), min_size=1), max_size=2
)
members = st.builds(
    ConsumerMember,
    member_id=st.just("m"),
    instance_id=st.none() | st.text(min_size=1, max_size=4),
    client_id=st.text(max_size=4),
    client_host=st.text(max_size=4),
    rebalance_timeout_ms=st.integers(-1, 1 << 31),
    subscription=st.builds(
        Subscription,
        topics=st.lists(st.text(max_size=4)).map(tuple),
        regex=st.text(max_size=4),
        assignor=st.text(max_size=4),
        rack=st.text(max_size=4),
    ),
    epoch=st.integers(-2, 1 << 31),
    previous_epoch=st.integers(-2, 1 << 31),
    state=st.sampled_from(MemberState),
    assigned=sets,
    revoking=sets,
    target=sets,
)


@given(member=members)
def test_a_member_comes_back(member: ConsumerMember) -> None:
    assert decode_member("m", encode_member(member), group_id="g") == member


@given(member=members, data=st.data())
def test_damage_is_named(member: ConsumerMember, data: st.DataObject) -> None:
    body = encode_member(member)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(CorruptDataError, match="member m of group g"):
        decode_member("m", body[:cut], group_id="g")


def test_an_unknown_version_says_what_to_do() -> None:
    with pytest.raises(CorruptDataError, match="version 9, this release knows 1"):
        decode_member("m", b"\x09", group_id="g")
