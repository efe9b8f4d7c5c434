"""A peer is silent only while somebody listened."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from penstock.peers.silence import Silence


class Heard:
    """Stands for a loop: its timers ring when a test says so, however late."""

    def __init__(self) -> None:
        self.step: Callable[[], None] | None = None
        self.waits: list[float] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Heard":
        self.waits.append(delay)
        self.step = callback
        return self

    def cancel(self) -> None:
        self.step = None

    def pass_steps(self, count: int) -> None:
        for _ in range(count):
            step, self.step = self.step, None
            assert step is not None
            step()


def test_a_silence_is_told_once_after_all_of_it() -> None:
    loop, told = Heard(), []
    Silence(loop, 0.25, lambda: told.append(1))  # type: ignore[arg-type]
    loop.pass_steps(5)
    assert sum(loop.waits[:5]) == pytest.approx(0.25)
    assert not told
    loop.pass_steps(1)
    assert told == [1]
    assert loop.step is None


def test_what_is_heard_begins_it_anew() -> None:
    loop, told = Heard(), []
    silence = Silence(loop, 0.25, lambda: told.append(1))  # type: ignore[arg-type]
    for _ in range(3):
        loop.pass_steps(5)
        silence.heard()
    assert not told
    silence.stop()
    assert loop.step is None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_loop_that_stood_still_has_heard_no_silence(run: Callable[..., object]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[int] = []
        ours, theirs = [await asyncio.open_connection(sock=one) for one in socket.socketpair()]
        silence = Silence(loop, 0.5, lambda: told.append(1))
        theirs[1].write(b"x")
        await theirs[1].drain()
        time.sleep(0.8)
        assert await ours[0].read(1) == b"x"
        silence.heard()
        silence.stop()
        assert not told
        for _, writer in (ours, theirs):
            writer.close()

    run(main())
