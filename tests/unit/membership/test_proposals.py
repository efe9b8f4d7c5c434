"""How often an agent beats and proposes a fence, whatever becomes of those before."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.membership.membership import BEATS_MAX, FENCE_AGAIN_S, Membership
from penstock.membership.silence import Standing
from penstock.state.commands import Fence, Heartbeat
from support.simulated.clock import ManualClock


def proposing(
    patch: pytest.MonkeyPatch, test: Callable[[Membership, list[Any]], None]
) -> list[Any]:
    """The commands that are proposed; none of them is ever answered."""
    proposed: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        membership = Membership(
            me=1,
            epoch=1,
            order=None,  # type: ignore[arg-type]
            view=None,  # type: ignore[arg-type]
            clock=ManualClock(now_ms=5),
            on_fenced=lambda _: None,
        )

        def propose(what: str, command: Any) -> "asyncio.Future[None]":
            proposed.append(command)
            return loop.create_future()

        patch.setattr(membership, "_propose", propose)
        test(membership, proposed)

    asyncio.run(main())
    return proposed


def test_beats_that_are_not_answered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(membership: Membership, proposed: list[Any]) -> None:
        for number in range(20):
            membership._beat_when_due(float(number))
        assert len(proposed) == BEATS_MAX
        assert all(type(command) is Heartbeat for command in proposed)

    proposing(monkeypatch, test)


def test_a_beat_is_due_a_tick_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def test(membership: Membership, proposed: list[Any]) -> None:
        membership._beat_when_due(10.0)
        membership._beat_when_due(10.374)
        assert len(proposed) == 1
        membership._beat_when_due(10.375)
        assert len(proposed) == 2

    proposing(monkeypatch, test)


def test_one_fence_is_proposed_again_after_a_while_and_another_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = [Standing(2, 1, 7)]

    def test(membership: Membership, proposed: list[Any]) -> None:
        monkeypatch.setattr(membership, "_too_silent", lambda now_s: list(silent))
        membership._fence_silent(10.0)
        membership._fence_silent(10.0 + FENCE_AGAIN_S - 0.01)
        assert proposed == [Fence(agent=2, epoch=1, seen_position=7)]
        silent.append(Standing(3, 1, 8))
        membership._fence_silent(10.0 + FENCE_AGAIN_S - 0.01)
        assert [command.agent for command in proposed] == [2, 3]
        membership._fence_silent(10.0 + FENCE_AGAIN_S)
        assert [command.agent for command in proposed] == [2, 3, 2]

    proposing(monkeypatch, test)
