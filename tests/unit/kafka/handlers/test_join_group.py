"""JoinGroup over all versions."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.model.errors import InvalidRequestError
from support.parsing import versions_of

ALL = versions_of("join_group")


@pytest.mark.parametrize("version", ALL)
async def test_a_first_member_leads_a_new_generation(face: Any, version: int) -> None:
    joined = await face.join(version)
    assert joined.error_code.value == 0
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("client-")
    assert joined.protocol_name == "range"
    assert [member.member_id for member in joined.members] == [joined.member_id]
    if version >= 7:
        assert joined.protocol_type == "consumer"


@pytest.mark.parametrize("version", ALL)
async def test_from_version_4_on_the_id_comes_first(face: Any, version: int) -> None:
    await face.join(version)
    assert face.world.random.count > 0
    known = await face.call(
        "join_group",
        version,
        group_id="other",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=60),
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(
            face.part(
                "join_group", version, "JoinGroupRequestProtocol", name="range", metadata=b""
            ),
        ),
        reason="because",
    )
    assert known.error_code.name == ("member_id_required" if version >= 4 else "none")


@pytest.mark.parametrize("version", range(5, 10))
async def test_a_static_member_that_comes_back_gets_its_generation(face: Any, version: int) -> None:
    joined = await face.member(group_instance_id="one")
    assert joined.member_id.startswith("one-")
    again = await face.join(version, group_instance_id="one")
    assert again.error_code.value == 0
    assert again.generation_id == joined.generation_id
    assert again.member_id != joined.member_id
    if version >= 9:
        # It leads, knows all members, and need not assign.
        assert again.leader == again.member_id
        assert again.skip_assignment
        assert [member.group_instance_id for member in again.members] == ["one"]
    else:
        assert again.leader == joined.member_id
        assert again.members == ()
    late = await face.join(version, group_instance_id="one", member_id=joined.member_id)
    assert late.error_code.name == "fenced_instance_id"


@pytest.mark.parametrize("version", ALL)
async def test_refusals_have_kafkas_codes(face: Any, version: int) -> None:
    async def error(**changes: Any) -> str:
        reply = await face.join(version, **changes)
        assert reply.generation_id == -1
        assert reply.protocol_name == (None if version >= 7 else "")
        name: str = reply.error_code.name
        return name

    assert await error(group_id="") == "invalid_group_id"
    assert await error(session_timeout=timedelta(seconds=5)) == "invalid_session_timeout"
    assert await error(session_timeout=timedelta(hours=1)) == "invalid_session_timeout"
    assert await error(member_id="nobody") == "unknown_member_id"
    assert await error(protocols=()) == "inconsistent_group_protocol"
    await face.member()
    assert await error(protocol_type="connect") == "inconsistent_group_protocol"
    assert await error(member_id="nobody") == "unknown_member_id"


async def test_version_0_rebalances_as_long_as_a_session_lasts(face: Any) -> None:
    first = await face.member()
    start_s = asyncio.get_running_loop().time()
    second = asyncio.create_task(face.join(0, session_timeout=timedelta(seconds=8)))
    # The first one lives and does not join: it is waited for as long as it has asked itself.
    for _ in range(12):
        await asyncio.sleep(5)
        await face.call(
            "heartbeat",
            0,
            group_id="g",
            generation_id=first.generation_id,
            member_id=first.member_id,
        )
    assert (await second).leader == (await second).member_id
    assert asyncio.get_running_loop().time() - start_s >= 60
    # Now alone in its group it would wait for its own time.
    described = face.world.groups._memory.groups["g"].machine.roster
    assert described.rebalance_timeout_ms == 8000


async def test_a_member_that_offers_too_many_protocols_is_refused(face: Any) -> None:
    one = face.part("join_group", 5, "JoinGroupRequestProtocol", name="range", metadata=b"")
    with pytest.raises(InvalidRequestError, match="101 protocols are offered, 100"):
        await face.join(5, protocols=(one,) * 101)


@pytest.mark.parametrize("version", [0, 9])
async def test_a_member_of_a_further_group_is_refused(face: Any, version: int) -> None:
    face.broker.groups._memory._room._groups_max = 1
    assert (await face.join(version, "first")).error_code.value == 0
    assert (await face.join(version, "second")).error_code.value == 44
    assert (await face.commit(8, 5, "third")).topics[0].partitions[0].error_code.value == 44
    assert (await face.join(version, "first")).error_code.value in (0, 79)
