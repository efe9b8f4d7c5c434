"""DeleteGroups over all versions."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from support.parsing import versions_of

ALL = versions_of("delete_groups")


@pytest.mark.parametrize("version", ALL)
async def test_groups_are_deleted_one_by_one(
    face: Any, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="penstock.kafka.admin.lines")
    await face.member()
    await face.commit(9, 1, "simple")
    reply = await face.call(
        "delete_groups", version, groups_names=("g", "simple", "none", "simple")
    )
    assert [(one.group_id, one.error_code.name) for one in reply.results] == [
        ("g", "non_empty_group"),
        ("simple", "none"),
        ("none", "group_id_not_found"),
    ]
    assert face.world.queries.group("simple") is None
    assert face.world.queries.group("g") is not None
    assert caplog.messages == ["client 'client' at 127.0.0.1 deleted group 'simple'"]
