"""Heartbeat over all versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parsing import versions_of
from support.waiting import turns

ALL = versions_of("heartbeat")


@pytest.mark.parametrize("version", ALL)
async def test_a_heartbeat_is_told_how_the_group_is(face: Any, version: int) -> None:
    joined = await face.member(group_instance_id="one")

    async def beat(**changes: Any) -> str:
        fields = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": "one",
        }
        reply = await face.call("heartbeat", version, **(fields | changes))
        name: str = reply.error_code.name
        return name

    assert await beat() == "none"
    assert await beat(generation_id=0) == "illegal_generation"
    assert await beat(member_id="nobody") == (
        "fenced_instance_id" if version >= 3 else "unknown_member_id"
    )
    assert await beat(group_id="none") == "unknown_member_id"
    assert await beat(group_id="") == "invalid_group_id"
    newcomer = asyncio.create_task(face.join(5))
    await turns()
    assert await beat() == "rebalance_in_progress"
    newcomer.cancel()


@pytest.mark.parametrize("version", ALL)
async def test_heartbeats_keep_a_session_up(face: Any, version: int) -> None:
    joined = await face.member()
    fields = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
    }
    for _ in range(5):
        await asyncio.sleep(9)
        assert (await face.call("heartbeat", version, **fields)).error_code.value == 0
    await asyncio.sleep(10.1)
    reply = await face.call("heartbeat", version, **fields)
    assert reply.error_code.name == "unknown_member_id"
