"""A follower looks whether the journal still holds what was applied, before it goes on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.model.errors import JournalOlderError, RetryableError
from penstock.ports.journal import JournalHead, JournalRow
from penstock.replica.marks import RowMark
from unit.replica.followers import Following, HeldReplica

AT_ONCE_S = 0.5
"""Before the first head that is read without being asked for."""


async def test_a_replica_goes_on_after_its_last_row(rig: Following) -> None:
    await rig.append(b"a", b"b", b"c")
    rig.start(HeldReplica(position=2, mark=rig.mark(2)))
    await asyncio.sleep(AT_ONCE_S)
    assert rig.bodies == [b"c"]


@pytest.mark.parametrize("field", ["stamp_ms", "crc"])
async def test_another_row_in_the_place_of_the_last_one_ends_following(
    rig: Following, field: str
) -> None:
    await rig.append(b"a", b"b", b"c")
    mark = rig.mark(2)
    other = replace(mark, **{field: getattr(mark, field) + 1})
    await refused(rig, HeldReplica(position=2, mark=other), "another row is at position 2")


@pytest.mark.parametrize("has_mark", [True, False])
async def test_a_head_before_the_last_row_ends_following(rig: Following, *, has_mark: bool) -> None:
    """A replica of an older release has no mark."""
    await rig.append(b"a", b"b")
    mark = RowMark(3, 5, 7) if has_mark else None
    await refused(rig, HeldReplica(position=3, mark=mark), "its head is 2")


async def test_a_replica_without_a_mark_goes_on_at_the_head(rig: Following) -> None:
    await rig.append(b"a", b"b")
    rig.start(HeldReplica(position=2))
    await asyncio.sleep(AT_ONCE_S)
    await rig.append(b"c")
    await asyncio.sleep(AT_ONCE_S)
    assert rig.bodies == [b"c"]


@pytest.mark.parametrize("trimmed", [0, 1])
async def test_no_row_where_none_was_trimmed_ends_following(rig: Following, trimmed: int) -> None:
    """The journal came back older, and has grown past the place, which became a gap."""
    await rig.append(b"a")
    rig.leave_gap()
    await rig.append(b"c", b"d")
    await rig.connection.trim(trimmed)
    assert rig.journal.first == trimmed + 1
    replica = HeldReplica(position=2, mark=RowMark(2, 5, 7))
    await refused(rig, replica, "no row is at position 2")


async def test_a_last_row_that_was_trimmed_is_no_loss(rig: Following) -> None:
    await rig.append(b"a", b"b", b"c")
    mark = rig.mark(2)
    await rig.connection.trim(2)
    rig.start(HeldReplica(position=2, mark=mark))
    await asyncio.sleep(AT_ONCE_S)
    assert rig.bodies == [b"c"]


async def refused(rig: Following, replica: HeldReplica, match: str) -> None:
    follower = rig.start(replica)
    assert rig.running is not None
    with pytest.raises(JournalOlderError, match=match):
        await rig.running
    assert rig.loop.time() < AT_ONCE_S
    assert not rig.bodies
    with pytest.raises(JournalOlderError):
        await follower.heads.confirm(1)


async def test_after_each_failure_it_is_looked_again(rig: Following) -> None:
    await rig.append(b"a", b"b", b"c")
    rig.start()
    await asyncio.sleep(AT_ONCE_S)
    assert len(rig.bodies) == 3
    rig.journal.come_back_older(2)
    await rig.append(b"x", b"y")
    assert rig.running is not None
    with pytest.raises(JournalOlderError, match="another row is at position 3"):
        await rig.running
    assert len(rig.bodies) == 3


async def test_rows_that_were_read_before_a_failure_are_read_again(rig: Following) -> None:
    """Those behind a gap were not applied: where the journal came back older they are lost, and
    others have their positions."""
    await rig.append(b"a", b"b")
    rig.start()
    await asyncio.sleep(AT_ONCE_S)
    rig.leave_gap()
    await rig.append(b"lost")
    while not rig.follower._ahead:
        await asyncio.sleep(0.001)
    rig.journal.come_back_older(2)
    await rig.append(b"x", b"y")
    await asyncio.sleep(AT_ONCE_S)
    assert rig.bodies == [b"a", b"b", b"x", b"y"]


class SlowLook:
    """The journal's answers to the look wait until they are let go; nothing else is answered."""

    def __init__(self, rig: Following) -> None:
        self._row = rig.connection.row
        self.count = 0
        self.go = asyncio.Event()
        rig.connection.row = self.row
        rig.connection.read = self.read

    async def row(self, position: int) -> JournalRow | None:
        self.count += 1
        row: JournalRow | None = await self._row(position)
        await self.go.wait()
        return row

    async def read(self, after: int, limit: int) -> list[JournalRow]:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("is_same", [True, False])
async def test_no_head_is_confirmed_before_the_look_and_one_is_with_it(
    rig: Following, *, is_same: bool
) -> None:
    """A journal that came back older may have grown to the replica's position again."""
    await rig.append(b"a", b"b")
    look = SlowLook(rig)
    mark = rig.mark(2) if is_same else RowMark(2, 5, 7)
    follower = rig.start(HeldReplica(position=2, mark=mark))
    asker = asyncio.ensure_future(follower.heads.confirm(60))
    await asyncio.sleep(5.5)
    assert not asker.done()
    assert follower.heads.confirmed_s == float("-inf")
    look.go.set()
    assert (await asyncio.wait([asker], timeout=0.1))[0], "not by the head that is read next"
    if is_same:
        await asker
    else:
        with pytest.raises(JournalOlderError):
            await asker


async def test_a_look_during_which_the_journal_failed_counts_for_nothing(rig: Following) -> None:
    """What answered it may be another database than the one that answers from now on."""
    await rig.append(b"a", b"b")
    look = SlowLook(rig)
    follower = rig.start(HeldReplica(position=2, mark=rig.mark(2)))
    await asyncio.sleep(0.1)
    head: Any = rig.connection.head

    async def fail() -> JournalHead:
        raise RetryableError("read head", "journal", "it went away")

    rig.connection.head = fail
    with pytest.raises(RetryableError):
        await follower.heads.confirm(1)
    rig.connection.head = head
    look.go.set()
    look.go = asyncio.Event()
    rig.connection.read = type(rig.connection).read.__get__(rig.connection)
    asker = asyncio.ensure_future(follower.heads.confirm(60))
    await asyncio.sleep(5)
    assert look.count == 2
    assert not asker.done()
    look.go.set()
    await asker


async def test_a_read_during_which_the_journal_was_doubted_confirms_no_head(rig: Following) -> None:
    """A journal that came back older may have grown to the replica's position again, so that such
    a read finds nothing past it."""
    await rig.append(b"a", b"b")
    follower = rig.start(HeldReplica(position=2, mark=rig.mark(2)))
    await asyncio.sleep(AT_ONCE_S)
    read, began, go = rig.connection.read, asyncio.Event(), asyncio.Event()

    async def slow(after: int, limit: int) -> list[JournalRow]:
        began.set()
        rows: list[JournalRow] = await read(after, limit)
        await go.wait()
        return rows

    rig.connection.read = slow
    await began.wait()
    look = SlowLook(rig)
    confirmed_s = follower.heads.confirmed_s
    follower.doubt()
    go.set()
    await asyncio.sleep(5)
    assert look.count == 1
    assert follower.heads.confirmed_s == confirmed_s
    look.go.set()
    await asyncio.sleep(0.1)
    assert follower.heads.confirmed_s > confirmed_s, "by heads that were read meanwhile"
