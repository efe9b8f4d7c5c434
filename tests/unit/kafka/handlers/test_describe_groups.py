"""DescribeGroups over all versions."""

from __future__ import annotations

from typing import Any

import pytest

from support.parsing import versions_of

ALL = versions_of("describe_groups")


@pytest.mark.parametrize("version", ALL)
async def test_groups_are_described_one_by_one(face: Any, version: int) -> None:
    joined = await face.member(group_instance_id="one")
    await face.commit(9, 1, "simple")
    reply = await face.call(
        "describe_groups",
        version,
        groups=("g", "simple", "none"),
        include_authorized_operations=True,
    )
    group, simple, none = reply.groups
    assert (group.group_state, group.protocol_type) == ("Stable", "consumer")
    assert group.protocol_data == "range"
    (member,) = group.members
    assert member.member_id == joined.member_id
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    assert member.member_assignment == b"all"
    if version >= 4:
        assert member.group_instance_id == "one"
    assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", ())
    assert none.group_state == "Dead"
    if version >= 6:
        assert none.error_code.name == "group_id_not_found"
        assert none.error_message == "Group none not found."
    else:
        assert none.error_code.value == 0
    # What was asked of groups that are not there made none.
    assert face.world.queries.group("none") is None


@pytest.mark.parametrize("version", ALL)
async def test_a_coordinator_that_ended_says_so(face: Any, version: int) -> None:
    await face.world.groups.close()
    reply = await face.call(
        "describe_groups", version, groups=("g",), include_authorized_operations=False
    )
    assert reply.groups[0].error_code.name == "not_coordinator"


async def test_a_group_that_is_named_many_times_is_described_once(face: Any) -> None:
    await face.member()
    fields = {"groups": ("g", "other") * 100, "include_authorized_operations": False}
    answer = await face.call("describe_groups", 5, **fields)
    assert [group.group_id for group in answer.groups] == ["g", "other"]
