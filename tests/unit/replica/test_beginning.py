"""The row by which a restored journal says which snapshot it begins with."""

import asyncio
from typing import Any

import pytest

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.ports.journal import JournalHead, JournalRow
from penstock.replica.archive_format import SnapshotName
from penstock.replica.beginning import (
    Beginning,
    decode_beginning,
    encode_beginning,
    is_beginning,
    read_beginning,
)
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import Noop
from penstock.state.entries import Entry, decode_entry, encode_entry
from support.simulated.clock import ManualClock
from support.simulated.journal import SimulatedJournal
from support.simulated.randomness import SeededRandom

DIGEST = bytes(range(32))
BEGINNING = Beginning(cluster_id="restored-cluster-00001", position=1, digest=DIGEST)


def test_it_is_read_as_it_was_written_and_names_the_snapshot() -> None:
    body = encode_beginning(BEGINNING)
    assert is_beginning(body)
    assert decode_beginning(body, position=1) == BEGINNING
    assert BEGINNING.snapshot == SnapshotName(1, "0001020304050607")
    assert body[:2] == b"\xff\x01", "as docs/formats/cluster-journal.md says"


def test_entries_and_seals_are_none() -> None:
    entry = Entry(agent=1, epoch=1, n=0, stamp_ms=5, commands=[Noop()])
    assert not is_beginning(encode_entry(entry))
    assert not is_beginning(b"")


def test_a_newer_release_is_named() -> None:
    newer = b"\xff\x02" + encode_beginning(BEGINNING)[2:]
    with pytest.raises(InvalidRequestError, match="version 2, this release knows 1"):
        decode_beginning(newer, position=1)


@pytest.mark.parametrize("cut", [1, 2, 3, -1])
def test_a_cut_one_is_damaged(cut: int) -> None:
    with pytest.raises(CorruptDataError, match="position 1"):
        decode_beginning(encode_beginning(BEGINNING)[:cut], position=1)


def test_it_is_no_entry_and_is_never_applied() -> None:
    """What has none of the state would else pass over it, and go on with nothing."""
    body = encode_beginning(BEGINNING)
    with pytest.raises(CorruptDataError, match=BEGINNING.snapshot.key):
        decode_entry(body, position=1)
    with pytest.raises(CorruptDataError, match="not an entry"):
        LogMachine().apply(1, 5, body)


@pytest.mark.parametrize("is_restored", [False, True])
async def test_only_a_restored_journal_has_it(*, is_restored: bool) -> None:
    server = SimulatedJournal(random=SeededRandom(1), clock=ManualClock(now_ms=5))
    journal = server.connect()
    if is_restored:
        server.begin(BEGINNING)
    for number in range(3):
        await journal.append(encode_entry(entry_of(number)))
    found = await read_beginning(journal, await journal.head())
    assert found == (BEGINNING if is_restored else None)
    # A trim takes it like any other row, and it is no other row's either.
    while await journal.trim(1):
        pass
    assert await read_beginning(journal, await journal.head()) is None
    await journal.close()


class Rows:
    """A journal of given rows, in which only they can be read."""

    def __init__(self, *rows: JournalRow) -> None:
        self._rows = {row.position: row for row in rows}

    async def row(self, position: int) -> JournalRow | None:
        assert position == 1, "no other row says where the journal begins"
        return self._rows.get(position)


def read_of(journal: Rows, *, first: int) -> Beginning | None:
    rows: Any = journal
    return asyncio.run(read_beginning(rows, JournalHead(9, first, 5)))


def test_only_the_row_before_the_first_one_is_taken_for_it() -> None:
    body = encode_beginning(BEGINNING)
    named = Rows(JournalRow(1, 5, body))
    assert read_of(named, first=2) == BEGINNING
    assert read_of(named, first=1) is None, "a journal that holds all of its rows"
    assert read_of(named, first=3) is None, "one that was trimmed since"
    assert read_of(Rows(), first=2) is None
    for other in (b"", encode_entry(entry_of(0))):
        assert read_of(Rows(JournalRow(1, 5, other)), first=2) is None


def test_one_that_cannot_be_read_is_not_taken_for_none() -> None:
    """Taken for none, it would begin a restored cluster with nothing."""
    with pytest.raises(CorruptDataError, match="position 1: 2 bytes"):
        read_of(Rows(JournalRow(1, 5, b"\xff\x01")), first=2)


def entry_of(number: int) -> Entry:
    return Entry(agent=1, epoch=1, n=number, stamp_ms=5, commands=[Noop()])
