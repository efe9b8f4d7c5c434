"""The oracle accepts what the rules allow and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.ports.journal import JournalRow
from penstock.segment import SEGMENTS_PREFIX, object_key
from penstock.state.commands import (
    AnyCommand,
    CondemnObjects,
    CreateTopic,
    DeleteTopic,
    ForgetObjects,
    RegisterAgent,
)
from penstock.state.entries import Entry, encode_entry
from sim.history import ViolationError
from sim.oracle import Oracle

AGENT = 101
START_MS = 1_700_000_000_000
KEY = object_key(agent=AGENT, epoch=1, n=41)
OTHER = object_key(agent=AGENT, epoch=1, n=42)


def _violate(kind: str, detail: str) -> None:
    raise ViolationError(kind, detail)


class _Journal:
    """Rows of one agent's epoch, a second apart."""

    def __init__(self) -> None:
        self._rows: dict[int, JournalRow] = {}
        self.append(
            RegisterAgent(
                agent=AGENT, labels={}, software="", endpoint="", peer="", level_max=1, token=b""
            )
        )

    def append(self, command: AnyCommand) -> None:
        n = len(self._rows)
        stamp_ms = START_MS + 1_000 * n
        entry = Entry(agent=AGENT, epoch=1, n=n, stamp_ms=stamp_ms, commands=[command])
        self._rows[n + 1] = JournalRow(n + 1, stamp_ms, encode_entry(entry))

    def row_ever(self, position: int) -> JournalRow | None:
        return self._rows.get(position)


@pytest.fixture
def world() -> Any:
    world = SimpleNamespace(
        journal=_Journal(),
        bucket=SimpleNamespace(ever_condemned={}, ever_put={KEY, OTHER}),
        history=SimpleNamespace(violate=_violate),
        clock=SimpleNamespace(now_ms=lambda: START_MS + 60_000),
        clocks=SimpleNamespace(may_be_wrong=False),
        segments_prefix=SEGMENTS_PREFIX,
        grace_ms=2_000,
        restore_window_ms=2_000,
        skew_allowed_ms=0,
        is_older=False,
    )
    world.oracle = Oracle(world)
    return world


def test_a_condemned_object_may_be_deleted_and_no_other(world: Any) -> None:
    world.journal.append(CondemnObjects(keys=[KEY]))
    world.oracle.deleting(KEY)
    with pytest.raises(ViolationError, match=f"^deleted-uncondemned: {OTHER}"):
        world.oracle.deleting(OTHER)


def test_a_late_delete_may_take_an_object_that_was_put_after_it_was_forgotten(world: Any) -> None:
    """The first delete met nothing, since the put that its caller had given up was later still."""
    world.journal.append(CondemnObjects(keys=[KEY]))
    world.journal.append(ForgetObjects(keys=[KEY, OTHER]))
    world.oracle.deleting(KEY)
    with pytest.raises(ViolationError, match=f"^deleted-uncondemned: {OTHER}"):
        world.oracle.deleting(OTHER)


def test_it_may_also_where_the_orphan_was_condemned_again(world: Any) -> None:
    world.journal.append(CondemnObjects(keys=[KEY]))
    world.journal.append(ForgetObjects(keys=[KEY]))
    world.journal.append(CondemnObjects(keys=[KEY, OTHER]))
    world.clock = SimpleNamespace(now_ms=lambda: START_MS + 3_500)
    world.oracle.deleting(KEY)
    with pytest.raises(ViolationError, match=f"^deleted-early: {OTHER}"):
        world.oracle.deleting(OTHER)


def test_what_a_lost_entry_condemned_may_be_deleted_late(world: Any) -> None:
    world.journal.append(CondemnObjects(keys=[KEY]))
    world.oracle.catch_up()
    world.journal = _Journal()
    oracle = Oracle(world)
    oracle.deleting(KEY)
    with pytest.raises(ViolationError, match=f"^deleted-uncondemned: {OTHER}"):
        oracle.deleting(OTHER)


def test_all_partitions_are_those_of_the_topics_that_are_left(world: Any) -> None:
    world.journal.append(CreateTopic(name="b", topic_id=bytes(16), partitions=2))
    world.journal.append(CreateTopic(name="a", topic_id=bytes(15) + b"a", partitions=1))
    world.journal.append(CreateTopic(name="c", topic_id=bytes(15) + b"c", partitions=1))
    world.journal.append(DeleteTopic(topic_id=bytes(15) + b"c"))
    world.oracle.catch_up()
    assert world.oracle.places() == [("a", 0), ("b", 0), ("b", 1)]
