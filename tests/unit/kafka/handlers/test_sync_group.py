"""SyncGroup over all versions."""

from __future__ import annotations

from typing import Any

import pytest

from support.parsing import versions_of

ALL = versions_of("sync_group")


@pytest.mark.parametrize("version", ALL)
async def test_the_leaders_assignment_is_handed_out(face: Any, version: int) -> None:
    joined = await face.join(5)
    synced = await face.sync(version, joined)
    assert synced.error_code.value == 0
    assert synced.assignment == b"all"
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", ALL)
async def test_refusals_have_kafkas_codes(face: Any, version: int) -> None:
    joined = await face.join(5)

    async def error(group_id: str = "g", **changes: Any) -> str:
        synced = await face.sync(version, joined, group_id, **changes)
        assert synced.assignment == b""
        name: str = synced.error_code.name
        return name

    assert await error("") == "invalid_group_id"
    assert await error("none") == "unknown_member_id"
    assert await error(member_id="nobody") == "unknown_member_id"
    assert await error(generation_id=7) == "illegal_generation"
    if version >= 3:
        assert await error(group_instance_id="one") == "unknown_member_id"
    if version >= 5:
        assert await error(protocol_name="sticky") == "inconsistent_group_protocol"
        assert await error(protocol_type="connect") == "inconsistent_group_protocol"
