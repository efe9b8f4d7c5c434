"""FindCoordinator over all versions."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.state.schema import TRANSACTIONS_LEVEL
from support.parsing import versions_of

ALL = versions_of("find_coordinator")


async def find(face: Any, version: int, key_type: int) -> tuple[str, int, str, int]:
    reply = await face.call(
        "find_coordinator", version, key="g", key_type=key_type, coordinator_keys=("g", "h")
    )
    if version >= 4:
        assert [one.key for one in reply.coordinators] == ["g", "h"]
        reply = reply.coordinators[1]
    return reply.error_code.name, int(reply.node_id), reply.host, int(reply.port)


@pytest.mark.parametrize("version", ALL)
async def test_this_broker_coordinates_groups(face: Any, version: int) -> None:
    assert await find(face, version, 0) == ("none", 7, "broker.example", 9092)


@pytest.mark.parametrize("version", range(1, 7))
async def test_this_broker_coordinates_transactional_ids(face: Any, version: int) -> None:
    assert await find(face, version, 1) == ("none", 7, "broker.example", 9092)


@pytest.mark.parametrize("version", range(1, 7))
async def test_what_is_not_coordinated_is_refused_for_good_with_one_line_a_minute(
    face: Any, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    face.broker.view.feature_level = TRANSACTIONS_LEVEL - 1
    assert await find(face, version, 1) == (
        "transactional_id_authorization_failed",
        -1,
        "",
        -1,
    )
    assert await find(face, version, 3) == ("invalid_request", -1, "", -1)
    await find(face, version, 1)
    lines = [line for line in caplog.messages if "which this server does not serve" in line]
    assert len(lines) == 2
    assert "asked for transactions, which this server does not serve" in lines[0]


async def test_a_share_partition_is_where_its_group_is(face: Any) -> None:
    topic_id = "AAAAAAAAAAAAAAAAAAAAAA"
    keys = (f"g:{topic_id}:0", f"with:colons:{topic_id}:1", "g", f":{topic_id}:0")
    reply = await face.call("find_coordinator", 6, key="", key_type=2, coordinator_keys=keys)
    assert [one.error_code.name for one in reply.coordinators] == [
        "none",
        "none",
        "invalid_request",
        "invalid_request",
    ]
    assert [int(one.node_id) for one in reply.coordinators] == [7, 7, -1, -1]
