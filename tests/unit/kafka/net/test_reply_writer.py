"""How replies are handed to the transport, and what is waited for before they have left."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.kafka.net import reply_writer
from penstock.kafka.net.piece_sender import PieceSender
from penstock.kafka.net.reply_writer import ReplyWriter
from penstock.kafka.replies import JOIN_BYTES_MAX, Piece, PiecedReply
from penstock.log.fetch.regions import FileRegion
from penstock.system.turns import Turns
from support.async_tests import options_of
from support.waiting import turns


class Transport:
    """Keeps what it is given; `buffered`: what the peer has not taken."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.vectors: list[list[bytes]] = []
        self.buffered = 0
        self.holds = False
        """Whether what is written stays in the buffer."""

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        self.buffered += len(data) if self.holds else 0

    def writelines(self, parts: list[bytes]) -> None:
        self.vectors.append(list(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, name: str) -> Any:
        return None


class Files:
    """Stands in for a `FileSender`."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self.busy = False
        self.stays_busy = False
        self.unsent_bytes = 0
        self.calls: list[str] = []

    def send(self, parts: list[Any]) -> None:
        self.sent.append(list(parts))
        self.busy = self.stays_busy

    def resume(self) -> None:
        self.calls.append("resume")

    def clear(self) -> None:
        self.calls.append("clear")


class Rig:
    def __init__(self, *, items_max: int = 1000) -> None:
        self.transport = Transport()
        self.lefts = 0
        self.failures: list[BaseException] = []
        self.turns = Turns(items_max=items_max)
        self.writer = ReplyWriter(
            self.transport,  # type: ignore[arg-type]
            self.turns,
            left=self._left,
            failed=self.failures.append,
        )

    def _left(self) -> None:
        assert not self.writer.is_held_up
        self.lefts += 1

    def with_files(self) -> Files:
        files: Any = Files()
        self.writer._files = files
        assert isinstance(files, Files)
        return files


@pytest.fixture
async def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(**options_of(request))


class Made:
    """A reply in pieces of three bytes; `count`: how many were made."""

    def __init__(self, pieces: int = 3, *, more: int = 0, held_bytes: int = 77) -> None:
        self.count = 0
        self._pieces = pieces
        self.reply = PiecedReply(self._make(), byte_count=3 * pieces + more, held_bytes=held_bytes)

    def _make(self) -> Iterator[Piece]:
        for _ in range(self._pieces):
            self.count += 1
            yield b"abc", 1


# -- small replies -----------------------------------------------------------------------------


async def test_small_replies_leave_together_in_order(rig: Rig) -> None:
    writer = rig.writer
    assert writer.is_empty
    writer.add(b"1", [b"one"], 4)
    writer.add(b"2", [b"t", b"wo"], 4)
    assert not writer.is_empty
    assert (writer.out_bytes, writer.given_bytes) == (8, 0)
    assert writer.flush() == 8
    assert rig.transport.writes == [b"1one2two"]
    assert writer.is_empty
    assert (writer.out_bytes, writer.given_bytes) == (0, 8)
    writer.add(b"3", [b"x"], 2)
    assert writer.flush() == 2
    assert writer.given_bytes == 10
    assert not writer.is_held_up
    assert not writer.is_busy
    assert not writer.takes_files
    assert not rig.lefts


@pytest.mark.parametrize(("over", "is_vectored"), [(0, False), (1, True)])
async def test_long_replies_are_not_joined_where_the_transport_bounds_vectors(
    rig: Rig, over: int, *, is_vectored: bool
) -> None:
    """asyncio's own `writelines` doesn't, in some releases."""
    for vectored in (False, True):
        rig.writer._vectored = vectored
        rig.writer.add(b"h", [bytes(JOIN_BYTES_MAX)], JOIN_BYTES_MAX + over)
        rig.writer.flush()
    assert len(rig.transport.vectors) == is_vectored
    assert len(rig.transport.writes) == 2 - is_vectored


async def test_what_waits_is_what_the_transport_has(rig: Rig) -> None:
    rig.transport.buffered = 5
    assert rig.writer.buffered_bytes == 5
    assert rig.writer.unsent_bytes == 5
    assert rig.writer.held_bytes == 0
    rig.writer.is_held_up = True
    rig.writer.resume()
    assert rig.lefts == 1
    assert not rig.writer.is_held_up


# -- regions of files --------------------------------------------------------------------------


def region() -> FileRegion:
    return FileRegion(None, 0, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("stays_busy", [True, False])
async def test_replies_with_regions_go_past_the_transport(rig: Rig, *, stays_busy: bool) -> None:
    files, writer = rig.with_files(), rig.writer
    assert writer.takes_files
    writer.add(b"0", [b"none"], 5)
    writer.flush()
    assert not files.sent, "without regions it is the transport's"
    files.stays_busy = stays_busy
    part = region()
    writer.add(b"1", [b"a", part], 12)
    writer.add(b"2", [b"b"], 2)
    assert writer.flush() == 14
    assert files.sent == [[b"1", b"a", part, b"2", b"b"]]
    assert writer.is_held_up is writer.is_busy is stays_busy
    writer.add(b"3", [b"c"], 2)
    writer.flush()
    assert len(files.sent) == 1 + stays_busy, "what follows waits behind it, and no longer"
    files.unsent_bytes, rig.transport.buffered = 7, 5
    assert writer.unsent_bytes == 12


async def test_regions_have_left_once_the_transport_is_empty_too(rig: Rig) -> None:
    files, writer = rig.with_files(), rig.writer
    files.busy = writer.is_held_up = True
    writer.resume()
    assert files.calls == ["resume"]
    assert not rig.lefts
    files.busy = False
    rig.transport.buffered = 1
    writer._all_given()
    assert not rig.lefts
    assert writer.is_held_up
    rig.transport.buffered = 0
    writer._all_given()
    assert rig.lefts == 1


async def test_a_transport_that_fits_takes_files(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fits(Files):
        def __init__(self, transport: Any, *, emptied: Any, failed: Any) -> None:
            super().__init__()

        fits = staticmethod(lambda transport: True)

    monkeypatch.setattr(reply_writer, "FileSender", Fits)
    assert Rig().writer.takes_files


# -- replies in pieces -------------------------------------------------------------------------


async def test_a_reply_in_pieces_follows_its_header_and_holds_the_others_up(rig: Rig) -> None:
    writer, made = rig.writer, Made()
    writer.add(b"0", [b"zero"], 5)
    writer.add(b"head", made.reply, 13)
    assert writer.flush() == 18
    assert rig.transport.writes == [b"0zerohead"]
    assert writer.is_held_up
    assert writer.is_busy
    assert writer.held_bytes == 77
    assert writer.unsent_bytes == 9
    await turns()
    assert rig.transport.writes[1:] == [b"abc"] * 3
    assert rig.lefts == 1
    assert not writer.is_busy
    assert (writer.held_bytes, writer.unsent_bytes) == (0, 0)
    writer.add(b"1", [b"x"], 2)
    writer.flush()
    assert len(rig.transport.writes) == 5, "it is sent once"


async def test_each_piece_is_made_once_the_peer_has_taken_those_before_it(rig: Rig) -> None:
    writer, transport, made = rig.writer, rig.transport, Made()
    transport.holds, transport.buffered = True, 4
    writer.add(b"", made.reply, 9)
    writer.flush()
    for count in range(4):
        await turns()
        assert made.count == count
        assert writer.unsent_bytes == transport.buffered + 9 - 3 * count
        writer.resume()
        await turns()
        assert made.count == count, "it is not empty: a wake-up too early"
        assert not rig.lefts
        transport.buffered = 0
        writer.resume()
        writer.resume()
    await turns()
    assert rig.lefts == 1


@pytest.mark.options(items_max=2)
async def test_long_replies_give_way_to_others(rig: Rig) -> None:
    made = Made(pieces=50)
    rig.writer.add(b"", made.reply, 150)
    rig.writer.flush()
    await turns(10)
    assert 5 < made.count < 50
    await turns(100)
    assert rig.lefts == 1


@pytest.mark.parametrize("more", [-1, 1])
async def test_a_reply_of_another_length_than_its_header_says_fails(rig: Rig, more: int) -> None:
    made = Made(more=more)
    rig.writer.add(b"", made.reply, 9)
    rig.writer.flush()
    await turns()
    assert [type(error) for error in rig.failures] == [AssertionError]
    assert b"".join(rig.transport.writes) == b"abc" * (3 if more > 0 else 2)
    assert not rig.lefts
    assert not rig.writer.is_busy


async def test_of_a_connection_that_is_gone_nothing_is_made_or_said(rig: Rig) -> None:
    files, made = rig.with_files(), Made()
    rig.transport.holds = True
    rig.writer.add(b"", made.reply, 9)
    rig.writer.flush()
    await turns()
    assert made.count == 1
    rig.writer.add(b"1", Made().reply, 9)
    rig.writer.clear()
    assert rig.writer.is_empty
    assert files.calls == ["clear"]
    assert (rig.writer.held_bytes, rig.writer._pieces.unmade) == (0, 0)
    rig.transport.buffered = 0
    rig.writer._pieces.resume()
    await turns()
    assert made.count == 1
    assert not rig.lefts
    assert not rig.failures
    rig.writer.flush()
    assert not rig.writer.is_busy, "what waited is gone, too"


async def test_a_connection_that_goes_as_its_reply_ends_is_told_nothing(rig: Rig) -> None:
    rig.writer.add(b"", Made().reply, 9)
    rig.writer.flush()
    task = rig.writer._pieces._task
    assert task is not None
    while not task.done():
        await asyncio.sleep(0)
    rig.writer.clear()
    await turns()
    assert not rig.lefts
    assert not rig.failures


async def test_a_sender_that_never_sent_can_be_cleared_and_resumed(rig: Rig) -> None:
    sender = PieceSender(
        rig.transport,  # type: ignore[arg-type]
        rig.turns,
        left=lambda: None,
        failed=rig.failures.append,
    )
    sender.resume()
    sender.clear()
    assert not sender.is_busy
    assert not rig.failures
