"""LeaveGroup over all versions."""

from __future__ import annotations

from typing import Any

import pytest

from support.parsing import versions_of

ALL = versions_of("leave_group")


async def leave(face: Any, version: int, group_id: str, *leavers: tuple[str, str | None]) -> Any:
    fields: dict[str, Any] = {"group_id": group_id, "member_id": leavers[0][0]}
    if version >= 3:
        fields["members"] = tuple(
            face.part(
                "leave_group",
                version,
                "MemberIdentity",
                member_id=member_id,
                group_instance_id=instance_id,
                reason=None,
            )
            for member_id, instance_id in leavers
        )
    return await face.call("leave_group", version, **fields)


def error_of(reply: Any, version: int) -> str:
    """The one leaver's error, where the version has it."""
    if version >= 3:
        assert reply.error_code.value == 0
        (member,) = reply.members
        reply = member
    name: str = reply.error_code.name
    return name


@pytest.mark.parametrize("version", ALL)
async def test_a_member_leaves_once(face: Any, version: int) -> None:
    joined = await face.member()
    leaver = (joined.member_id, None)
    assert error_of(await leave(face, version, "none", leaver), version) == "unknown_member_id"
    assert error_of(await leave(face, version, "g", leaver), version) == "none"
    assert error_of(await leave(face, version, "g", leaver), version) == "unknown_member_id"
    assert (await leave(face, version, "", leaver)).error_code.name == "invalid_group_id"


@pytest.mark.parametrize("version", range(3, 6))
async def test_many_leave_at_once_each_with_its_own_outcome(face: Any, version: int) -> None:
    joined = await face.member(group_instance_id="one")
    reply = await leave(
        face,
        version,
        "g",
        ("nobody", "one"),
        ("", "two"),
        ("", "one"),
        (joined.member_id, None),
    )
    assert [(m.member_id, m.group_instance_id, m.error_code.name) for m in reply.members] == [
        ("nobody", "one", "fenced_instance_id"),
        ("", "two", "unknown_member_id"),
        ("", "one", "none"),
        (joined.member_id, None, "unknown_member_id"),
    ]
