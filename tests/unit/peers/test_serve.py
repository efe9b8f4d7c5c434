"""Answers to peers: each range when it is ready, what is wrong by its kind, and beats meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.peers import BlockRange
from penstock.peers.codec import FrameKind, WalRange, frame
from penstock.peers.serve import BEAT_S, serve_blocks, serve_wal
from penstock.ports.objects import Versioned
from support.simulated.virtual_loop import VirtualLoop

BEAT, END = frame(FrameKind.BEAT), frame(FrameKind.END)
WANTED = [BlockRange("k", 0, 4), BlockRange("k", 4, 8), BlockRange("k", 8, 12)]


class Own:
    """Blocks that become ready when they are let go; an error is raised in their place."""

    def __init__(self) -> None:
        self.ready = {wanted.start: asyncio.Event() for wanted in WANTED}
        self.version: str | None = "v"
        self.error: PenstockError | None = None
        self.data = b"data"
        self.reading = 0

    async def read(self, wanted: BlockRange, *, may_refuse: bool = False) -> Versioned:
        assert may_refuse, "a peer can read the store itself"
        self.reading += 1
        try:
            await self.ready[wanted.start].wait()
        finally:
            self.reading -= 1
        if self.error is not None:
            raise self.error
        return Versioned(self.data, self.version)

    def let_go(self, *indices: int) -> None:
        for index in indices:
            self.ready[WANTED[index].start].set()


@pytest.fixture
def loop(virtual_loop: VirtualLoop) -> VirtualLoop:
    return virtual_loop


async def all_of(frames: AsyncIterator[Any]) -> bytes:
    return b"".join([bytes(part) async for part in frames])


def answer_of(kind: FrameKind, payload: bytes, index: int = 0) -> bytes:
    return frame(kind, index, len(payload)) + payload


async def test_each_range_is_answered_when_it_is_ready_with_its_version_before_it(
    loop: VirtualLoop,
) -> None:
    own: Any = Own()
    own.let_go(2)
    frames = serve_blocks(own, WANTED)
    assert await anext(frames) == BEAT
    said = [bytes(await anext(frames)) for _ in range(4)]
    assert b"".join(said) == answer_of(FrameKind.VERSION, b"v", 2) + answer_of(
        FrameKind.DATA, b"data", 2
    )
    own.let_go(0, 1)
    rest = b"".join(
        answer_of(FrameKind.VERSION, b"v", index) + answer_of(FrameKind.DATA, b"data", index)
        for index in (0, 1)
    )
    assert await all_of(frames) == rest + END


async def test_one_that_knows_no_versions_is_said_none(loop: VirtualLoop) -> None:
    own: Any = Own()
    own.let_go(0)
    found = await all_of(serve_blocks(own, WANTED[:1], versions=False))
    assert found == BEAT + answer_of(FrameKind.DATA, b"data") + END


async def test_a_store_without_versions_says_an_empty_one(loop: VirtualLoop) -> None:
    own: Any = Own()
    own.version, own.data = None, b""
    own.let_go(0)
    found = await all_of(serve_blocks(own, WANTED[:1]))
    nothing = frame(FrameKind.VERSION, 0, 0) + frame(FrameKind.DATA, 0, 0)
    assert found == BEAT + nothing + END


async def test_while_nothing_is_ready_it_beats(loop: VirtualLoop) -> None:
    own: Any = Own()
    frames = serve_blocks(own, WANTED[:1])
    assert await anext(frames) == BEAT
    assert loop.time() < BEAT_S, "the first at once"
    for count in (1, 2, 3):
        assert await anext(frames) == BEAT
        assert loop.time() == pytest.approx(count * BEAT_S, abs=0.01)
    await frames.aclose()  # type: ignore[attr-defined]


async def test_reads_for_one_that_has_gone_are_let_go(loop: VirtualLoop) -> None:
    own: Any = Own()
    frames = serve_blocks(own, WANTED)
    await anext(frames)
    await anext(frames)
    assert own.reading == 3
    await frames.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)
    assert own.reading == 0


@pytest.mark.parametrize(
    "error",
    [OverloadedError("read", "k", "64 blocks"), NotFoundError("get", "k", "gone")],
)
async def test_a_block_that_cannot_be_read_is_refused(
    loop: VirtualLoop, error: PenstockError
) -> None:
    own: Any = Own()
    own.error = error
    own.let_go(0)
    found = await all_of(serve_blocks(own, WANTED[:1]))
    assert found == BEAT + answer_of(FrameKind.REFUSED, str(error).encode()) + END


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CorruptDataError("read", "WAL", "CRC-32C differs"), FrameKind.DAMAGED),
        (RetryableError("read", "WAL", "the run has moved"), FrameKind.MOVED),
        (NotFoundError("read", "WAL", "of another agent"), FrameKind.REFUSED),
        (CorruptDataError("read", "WAL", "x" * 5_000), FrameKind.DAMAGED),
    ],
)
async def test_what_is_wrong_with_a_run_of_the_wal_is_told_by_its_kind(
    loop: VirtualLoop, error: PenstockError, kind: FrameKind
) -> None:
    """Damage is an error of its partition; what has moved is looked up again."""

    async def read(wanted: WalRange) -> bytes:
        raise error

    wanted: Any = "wanted"
    found = await all_of(serve_wal(read, wanted))
    assert found == BEAT + answer_of(kind, str(error).encode()[:1000]) + END


async def test_a_run_of_the_wal_is_one_frame(loop: VirtualLoop) -> None:
    async def read(wanted: WalRange) -> bytes:
        assert wanted == "wanted"
        return b"run"

    wanted: Any = "wanted"
    assert await all_of(serve_wal(read, wanted)) == BEAT + answer_of(FrameKind.DATA, b"run") + END
