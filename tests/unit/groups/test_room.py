"""The cluster has so many groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.groups import room
from penstock.groups.room import COUNTED_EVERY_S, GroupRoom
from penstock.system import heard


class Counted:
    def __init__(self) -> None:
        self.stored = 0
        self.asked: list[int] = []

    def group_count(self, most: int) -> int:
        self.asked.append(most)
        return min(self.stored, most)


async def test_groups_begin_while_there_is_room_and_are_counted_anew(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard.forget()
    queries: Any = Counted()
    held = 0
    queries.stored = 2
    rooms = GroupRoom(queries, groups_max=4, held=lambda: held)
    assert [rooms.begin(f"g{number}") for number in range(4)] == [True, True, False, False]
    assert queries.asked == [4]
    # Others have gone, but these are in memory.
    queries.stored = 0
    monkeypatch.setattr(room, "COUNTED_EVERY_S", 0.0)
    assert rooms.begin("g4")
    held = 4
    assert not rooms.begin("g5")
    held = 3
    assert rooms.begin("g6")
    line = caplog.messages[0]
    assert "refused to begin group 'g2'" in line
    assert "there are 4 groups, groups_max = 4" in line


async def test_groups_that_are_stored_by_now_are_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    queries: Any = Counted()
    rooms = GroupRoom(queries, groups_max=4, held=lambda: 0)
    assert rooms.begin("g0")
    assert rooms.begin("g1")
    queries.stored = 2
    now_s += COUNTED_EVERY_S / 2
    assert rooms.begin("g2")
    assert len(queries.asked) == 1
    queries.stored = 3
    now_s += COUNTED_EVERY_S / 2
    assert rooms.begin("g3")
    assert len(queries.asked) == 2
    assert not rooms.begin("g4")


async def test_groups_are_counted_again_once_so_many_have_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So one agent begins BEGUN_MAX groups at most that others don't know of."""
    monkeypatch.setattr(room, "BEGUN_MAX", 3)
    queries: Any = Counted()
    rooms = GroupRoom(queries, groups_max=10, held=lambda: 0)
    assert all(rooms.begin(f"g{number}") for number in range(3))
    queries.stored = 9
    assert rooms.begin("g3")
    assert not rooms.begin("g4")
    assert len(queries.asked) == 2
