"""ListGroups over all versions."""

from __future__ import annotations

from typing import Any

import pytest

from support.parsing import versions_of

ALL = versions_of("list_groups")


async def listed(face: Any, version: int, **filters: Any) -> list[str]:
    fields = {"states_filter": (), "types_filter": ()} | filters
    reply = await face.call("list_groups", version, **fields)
    assert reply.error_code.value == 0
    for group in reply.groups:
        if version >= 4:
            assert group.group_state == ("Stable" if group.group_id == "g" else "Empty")
        if version >= 5:
            assert group.group_type == "classic"
        assert group.protocol_type == ("consumer" if group.group_id == "g" else "")
    return sorted(group.group_id for group in reply.groups)


@pytest.mark.parametrize("version", ALL)
async def test_groups_are_listed_and_filtered_where_the_version_can(
    face: Any, version: int
) -> None:
    await face.member()
    await face.commit(9, 1, "simple")
    assert await listed(face, version) == ["g", "simple"]
    if version >= 4:
        assert await listed(face, version, states_filter=("stable",)) == ["g"]
        assert await listed(face, version, states_filter=("Empty", "Dead")) == ["simple"]
        assert await listed(face, version, states_filter=("Dead",)) == []
    if version >= 5:
        assert await listed(face, version, types_filter=("Classic",)) == ["g", "simple"]
        assert await listed(face, version, types_filter=("consumer",)) == []


@pytest.mark.parametrize("version", ALL)
async def test_a_coordinator_that_ended_says_so(face: Any, version: int) -> None:
    await face.world.groups.close()
    reply = await face.call("list_groups", version, states_filter=(), types_filter=())
    assert reply.error_code.name == "not_coordinator"
