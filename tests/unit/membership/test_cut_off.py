"""An agent that the journal is away from: what it asks others, lets go and gives up. By a clock
that the test turns."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.membership.cut_off import CutOff
from penstock.model.errors import ElsewhereError, InDoubtError, PenstockError, RetryableError
from penstock.peers.client import PeerAwayError
from penstock.peers.receive import AnswerReader
from penstock.peers.standing import STANDING_PATH, Asked, Standing, decode_asked, serve_standing
from penstock.state.rows import AgentStatus


class Rig:
    """Agent 1 in epoch 5, beside agent 2, which answers `told`; None: it is away."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.head_s = 100.0
        self.told: Standing | None = Standing(10, is_over=False)
        self.answers_after_s = 0.0
        self.called: list[str] = []
        self.asked: list[Asked] = []
        self.let_go: list[RetryableError | None] = []
        self.given_up: list[PenstockError] = []
        self.status, self.epoch = AgentStatus.LIVE, 5
        self.cut_off = CutOff(
            me=1,
            epoch=5,
            head_confirmed_s=lambda: self.head_s,
            view=self,  # type: ignore[arg-type]
            calls=self,
            clock=self,  # type: ignore[arg-type]
            let_go=self.let_go.append,
            give_up=self.given_up.append,
        )

    def monotonic_s(self) -> float:
        return self.now_s

    def agents(self) -> list[Any]:
        return [self.agent(1), self.agent(2)]

    def agent(self, number: int) -> Any:
        live = self.status is not AgentStatus.FENCED
        return SimpleNamespace(
            agent_id=number, peer="a:1", status=self.status, epoch=self.epoch, live=live
        )

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[..., None],
        payload_bytes_max: list[int],
    ) -> None:
        assert path == STANDING_PATH
        self.asked.append(decode_asked(body))
        self.called.append(address)
        self.now_s += self.answers_after_s
        if self.told is None:
            raise PeerAwayError("ask peer", address, "refused")
        data = b"".join([bytes(part) async for part in serve_standing(self.told)])
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        reader = AnswerReader(on_frame, payload_bytes_max)
        for byte in head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data):
            reader.buffer()[:1] = bytes([byte])
            reader.received(reader.buffer(), 1)

    async def look(self, age_s: float) -> None:
        self.now_s += 0.1
        self.head_s = self.now_s - age_s
        self.cut_off._look()
        for _ in range(5):
            await asyncio.wait([asyncio.ensure_future(_nothing())])


async def _nothing() -> None:
    return


async def test_nothing_is_asked_while_the_journal_answers() -> None:
    rig = Rig()
    await rig.look(0.39)
    assert (rig.asked, rig.let_go) == ([], [])


async def test_what_was_not_sent_is_let_go_while_another_agent_reaches_the_journal() -> None:
    rig = Rig()
    await rig.look(0.5)
    assert rig.asked == [Asked(1, 5)]
    await rig.look(0.74)
    assert rig.let_go == []
    await rig.look(0.8)
    assert isinstance(rig.let_go[0], ElsewhereError)
    assert rig.given_up == [], "what was sent waits for the end of the epoch"
    await rig.look(0.1)
    assert rig.let_go[-1] is None


@pytest.mark.parametrize("told", [None, Standing(751, is_over=False)])
async def test_nothing_is_let_go_where_no_other_agent_reaches_the_journal(
    told: Standing | None,
) -> None:
    rig = Rig()
    rig.told = told
    for _ in range(20):
        await rig.look(2.0)
    assert (rig.let_go, rig.given_up) == ([], [])


async def test_nothing_is_let_go_where_the_journal_has_just_gone_away_from_all() -> None:
    """The others' heads are young then, too, and no later than this agent's."""
    rig = Rig()
    for _ in range(5):
        rig.told = Standing(400, is_over=False)
        await rig.look(0.5)
        rig.told = Standing(700, is_over=False)
        await rig.look(0.8)
    assert (rig.let_go, rig.given_up) == ([], [])


async def test_an_answer_counts_for_a_second() -> None:
    rig = Rig()
    await rig.look(0.8)
    await rig.look(0.8)
    assert rig.let_go[-1] is not None
    rig.told = None
    for _ in range(12):
        await rig.look(0.8)
    assert rig.let_go[-1] is None


async def test_an_answer_counts_for_a_second_also_where_no_head_is_read_since() -> None:
    rig = Rig()
    await rig.look(0.8)
    await rig.look(0.9)
    assert rig.cut_off.is_alone
    rig.told = None
    for tenths in range(10, 18):
        await rig.look(tenths / 10)
        assert rig.cut_off.is_alone
    for tenths in range(18, 22):
        await rig.look(tenths / 10)
    assert not rig.cut_off.is_alone


async def test_the_head_of_an_answer_that_comes_late_is_as_old_as_when_it_was_asked_for() -> None:
    rig = Rig()
    rig.told, rig.answers_after_s = Standing(400, is_over=False), 0.5
    await rig.look(0.5)
    rig.told, rig.answers_after_s = None, 0.0
    await rig.look(1.1)
    assert rig.let_go == []


async def test_all_agents_that_are_not_fenced_are_asked_by_turns() -> None:
    def agent(number: int, status: AgentStatus, peer: str) -> Any:
        return SimpleNamespace(agent_id=number, peer=peer, status=status, epoch=1, live=True)

    rig = Rig()
    rig.told = None
    agents = [agent(1, AgentStatus.LIVE, "a:1"), agent(9, AgentStatus.FENCED, "a:9")]
    agents += [agent(number, AgentStatus.LIVE, f"a:{number}") for number in range(2, 7)]
    rig.agents = lambda: agents  # type: ignore[method-assign]
    await rig.look(0.5)
    assert rig.called == ["a:2", "a:3", "a:4"]
    await rig.look(0.6)
    assert rig.called[3:] == ["a:5", "a:6", "a:2"]


async def test_an_epoch_that_is_over_stays_over_though_nobody_answers_any_more() -> None:
    rig = Rig()
    rig.told = Standing(10, is_over=True)
    await rig.look(0.8)
    rig.told = None
    for tenths in range(9, 40):
        await rig.look(tenths / 10)
    assert len(rig.given_up) >= 31
    assert rig.cut_off.is_alone


async def test_an_epoch_goes_on_if_a_later_head_does_not_hold_its_end() -> None:
    """The journal came back older: the fence is in what it has lost."""
    rig = Rig()
    rig.told = Standing(10, is_over=True)
    await rig.look(0.8)
    assert rig.given_up
    # Read before the end was heard of, so that it may come after that head.
    await rig.look(0.2)
    rig.told = None
    rig.given_up.clear()
    await rig.look(0.8)
    assert rig.given_up
    await rig.look(0.0)
    rig.given_up.clear()
    # The journal is away from all.
    for tenths in range(1, 40):
        await rig.look(tenths / 10)
    assert rig.given_up == []
    assert rig.let_go[-1] is None
    assert not rig.cut_off.is_alone


async def test_the_end_that_was_taken_back_is_not_believed_of_an_agent_that_is_away() -> None:
    """It still holds the fence of the lost history, and has read no head since."""
    rig = Rig()
    rig.told = Standing(10, is_over=True)
    await rig.look(0.8)
    rig.now_s += 60
    await rig.look(0.05)
    await rig.look(0.05)
    rig.given_up.clear()
    rig.let_go.clear()
    rig.told = Standing(61_000, is_over=True)
    rig.now_s += 1
    for tenths in range(5, 20):
        await rig.look(tenths / 10)
    assert rig.given_up == []
    assert rig.let_go == []
    assert not rig.cut_off.is_alone


async def test_an_epoch_that_the_later_head_ends_stays_over() -> None:
    rig = Rig()
    rig.told = Standing(10, is_over=True)
    await rig.look(0.8)
    rig.told, rig.epoch = None, 6
    await rig.look(0.0)
    rig.given_up.clear()
    await rig.look(0.8)
    assert rig.given_up


async def test_what_was_sent_is_given_up_once_another_agent_has_seen_the_end_of_the_epoch() -> None:
    rig = Rig()
    rig.told = Standing(10, is_over=True)
    await rig.look(0.8)
    await rig.look(0.8)
    assert isinstance(rig.given_up[0], InDoubtError)
    assert not isinstance(rig.given_up[0], ElsewhereError)


@pytest.mark.parametrize(
    ("status", "epoch", "is_over"),
    [
        (AgentStatus.LIVE, 5, False),
        (AgentStatus.DRAINING, 5, False),
        (AgentStatus.FENCED, 5, True),
        (AgentStatus.LIVE, 6, True),
        (AgentStatus.FENCED, 4, False),
    ],
)
def test_what_another_agent_is_told_of_its_epoch(
    status: AgentStatus, epoch: int, is_over: bool
) -> None:
    rig = Rig()
    rig.status, rig.epoch = status, epoch
    rig.head_s = rig.now_s - 0.25
    assert rig.cut_off.standing_of(Asked(2, 5)) == Standing(250, is_over=is_over)


class Asking:
    """An agent 2 that asks agent 1."""

    def __init__(self) -> None:
        self.rig = Rig()

    def ask(self, *, after_s: float, epoch: int = 5, own_age_s: float = 0.1) -> bool:
        rig = self.rig
        rig.now_s += after_s
        rig.head_s = rig.now_s - own_age_s
        rig.cut_off.standing_of(Asked(2, epoch))
        return rig.cut_off.says_it_is_alone(2, 5)


def test_an_agent_that_goes_on_asking_says_that_it_is_alone() -> None:
    asking = Asking()
    assert [asking.ask(after_s=0.125) for _ in range(4)] == [False, False, False, True]
    asking.rig.now_s += 1.0
    assert asking.rig.cut_off.says_it_is_alone(2, 5)
    assert not asking.rig.cut_off.says_it_is_alone(3, 5)
    assert not asking.rig.cut_off.says_it_is_alone(2, 6)
    # Its word is over, and so is what it said before.
    asking.rig.now_s += 0.5
    assert not asking.rig.cut_off.says_it_is_alone(2, 5)
    assert not asking.ask(after_s=0.125)


def test_what_is_asked_where_no_head_is_read_either_says_nothing() -> None:
    asking = Asking()
    assert not any(asking.ask(after_s=0.125, own_age_s=0.375) for _ in range(8))
    # The journal was away from all: it takes as long from now on.
    assert [asking.ask(after_s=0.125) for _ in range(4)] == [False, False, False, True]


def test_what_was_asked_in_another_epoch_says_nothing_of_this_one() -> None:
    asking = Asking()
    assert not any(asking.ask(after_s=0.125, epoch=4) for _ in range(8))
    assert not asking.ask(after_s=0.125)


async def test_what_others_say_is_acted_on_as_soon_as_they_have_said_it() -> None:
    rig = Rig()
    await rig.look(0.8)
    # The first look had no word yet; the answer came after it.
    assert rig.cut_off.is_alone
    rig.told = Standing(10, is_over=True)
    await rig.look(0.8)
    assert len(rig.given_up) == 1
