"""The flusher over recorders: what is submitted when the order refuses, and what ends."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from penstock.log.append.flight import Flight
from penstock.log.append.flusher import Flusher
from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import PartitionAppend
from penstock.log.append.stored import Stored
from penstock.model.errors import (
    ElsewhereError,
    InDoubtError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.model.ids import PartitionKey
from penstock.records.batch import NewBatch
from penstock.state.answers import AnyAnswer, BatchStatus, RunsCommitted
from penstock.state.commands import AnyCommand, CommitRuns
from penstock.system.clock import SystemClock


def append(sequence: int, *, key: int = 1) -> PartitionAppend:
    """`sequence` -1: of a producer without an id."""
    producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    batch = NewBatch(memoryview(bytearray(100)), 100, 1, 5, *producer, -1, 9)
    return PartitionAppend(PartitionKey(key), batch)


class RecordingBytes:
    """Durable once the test says so."""

    flights_max = 8

    def __init__(self) -> None:
        self.gates: list[asyncio.Future[None]] = []
        self.over: list[bool] = []

    async def store(self, appends: Sequence[PartitionAppend]) -> Stored | None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return Stored(runs=[(PartitionKey(1), 0, appends)], object_key=f"k{len(self.over)}")

    def is_over(self, stored: Stored, *, named: bool) -> None:
        self.over.append(named)


class RecordingOrder:
    """Refuses at once what the test lists."""

    def __init__(self) -> None:
        self.submitted: list[list[int]] = []
        self.refuse: list[PenstockError | None] = []
        self.next_offset = 0

    def submit(self, commands: Sequence[AnyCommand]) -> asyncio.Future[list[AnyAnswer]]:
        (command,) = commands
        assert isinstance(command, CommitRuns)
        future: asyncio.Future[list[AnyAnswer]] = asyncio.get_running_loop().create_future()
        refusal = self.refuse.pop(0) if self.refuse else None
        if refusal is not None:
            future.set_exception(refusal)
            return future
        self.submitted.append([sequence for run in command.runs for sequence in run.batches[5::6]])
        runs = []
        for run in command.runs:
            flat: list[int] = []
            for _ in run.batches[::6]:
                flat += (BatchStatus.STORED, self.next_offset)
                self.next_offset += 1
            runs.append(flat)
        future.set_result([RunsCommitted(runs)])
        return future


class Bench:
    def __init__(self) -> None:
        self.bytes = RecordingBytes()
        self.order = RecordingOrder()
        self.delivered: list[Flight] = []
        self.over: list[Flight] = []
        self.flusher = Flusher(
            order=self.order,
            bytes_store=self.bytes,
            known_producer=lambda *_: None,
            clock=SystemClock(),
            flush_bytes=100,
            bytes_max=100,
            store_wait_s=5.0,
            unordered_max=8,
            deliver=self.delivered.append,
            over=self.over.append,
            on_fatal=_fatal,
        )

    def send(
        self, sequence: int = -1, *, source: int = 0, key: int = 1
    ) -> asyncio.Future[PenstockError | None]:
        answer: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        request = AppendRequest(
            [append(sequence, key=key)],
            100,
            SystemClock().monotonic_s() + 60,
            answer.set_result,
            source,
        )
        self.flusher.submit(request)
        return answer


def _fatal(error: BaseException) -> None:
    raise AssertionError(error)


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await asyncio.wait_for(test(bench), 60)
        await bench.flusher.close()

    asyncio.run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.wait([asyncio.ensure_future(_nothing())])


async def _nothing() -> None:
    return


def test_what_stands_behind_a_refused_commit_is_not_submitted_though_it_is_durable() -> None:
    async def test(bench: Bench) -> None:
        answers = [bench.send(sequence) for sequence in range(3)]
        await turns()
        bench.order.refuse = [OverloadedError("commit", "agent", "too much waits")]
        # The first becomes durable last: then all are submitted in one turn.
        for gate in reversed(bench.bytes.gates):
            gate.set_result(None)
        outcomes = [await answer for answer in answers]
        assert isinstance(outcomes[0], OverloadedError)
        assert [str(one) for one in outcomes[1:]] == [str(outcomes[1])] * 2
        assert "earlier batch" in str(outcomes[1])
        assert bench.order.submitted == []
        assert bench.bytes.over == [False, False, False]
        again = bench.send(0)
        await turns()
        bench.bytes.gates[-1].set_result(None)
        assert await again is None
        assert bench.order.submitted == [[0]]
        assert bench.flusher.waiting_bytes == 0
        assert len(bench.over) == 4

    run(test)


@pytest.mark.parametrize("durable", [0, 1])
def test_an_end_answers_what_nobody_has_answered_yet(durable: int) -> None:
    async def test(bench: Bench) -> None:
        answers = [bench.send(sequence) for sequence in range(2)]
        await turns()
        if durable:
            unresolved: asyncio.Future[list[AnyAnswer]] = asyncio.get_running_loop().create_future()
            bench.order.submit = lambda commands: unresolved  # type: ignore[method-assign]
            for gate in bench.bytes.gates:
                gate.set_result(None)
            await turns()
        assert not any(answer.done() for answer in answers)
        await bench.flusher.close()
        assert all(answer.done() and answer.result() is not None for answer in answers)
        late = bench.send(9)
        assert late.done()

    run(test)


@pytest.mark.parametrize("durable_last", [True, False])
def test_of_a_connection_without_a_producer_id_nothing_overtakes_what_failed(
    durable_last: bool,
) -> None:
    async def test(bench: Bench) -> None:
        first = bench.send(source=1)
        same = [bench.send(source=1), bench.send(source=1)]
        others = [bench.send(source=2), bench.send(source=1, key=2), bench.send(source=0)]
        await turns()
        gates = bench.bytes.gates
        failure = RetryableError("put", "object", "the bucket is away")
        if durable_last:
            gates[0].set_exception(failure)
            await turns()
        for gate in gates[1:]:
            gate.set_result(None)
        await turns()
        if not durable_last:
            gates[0].set_exception(failure)
        assert isinstance(await first, RetryableError)
        for answer in same:
            assert "earlier batch" in str(await answer)
        assert [await answer for answer in others] == [None, None, None]
        # Its client knows by now: what it sends from here on is in the order that it wants.
        again = [bench.send(source=1), bench.send(source=1)]
        await turns()
        for gate in gates[6:]:
            gate.set_result(None)
        assert [await answer for answer in again] == [None, None]
        assert len(bench.order.submitted) == 5

    run(test)


def test_what_is_let_go_is_not_submitted_nor_what_its_producer_sends_behind_it() -> None:
    async def test(bench: Bench) -> None:
        gone = ElsewhereError("append", "agent 1", "cut off")
        durable, storing = bench.send(0), bench.send(1)
        await turns()
        bench.bytes.gates[1].set_result(None)
        await turns()
        bench.flusher.let_go(gone)
        late = bench.send(2)
        await turns()
        assert [one.result() for one in (durable, storing, late)] == [gone] * 3
        # The second was durable: its bytes are named by nothing, and the store hears of that.
        assert bench.bytes.over == [False]
        assert bench.flusher.waiting_bytes == 0
        bench.flusher.let_go(None)
        behind = bench.send(3)
        await turns()
        bench.bytes.gates[-1].set_result(None)
        assert "earlier batch" in str(await behind)
        assert bench.order.submitted == []
        again = bench.send(0)
        await turns()
        bench.bytes.gates[-1].set_result(None)
        assert await again is None

    run(test)


def test_a_refused_first_batch_is_awaited_before_later_ones() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.let_go(ElsewhereError("append", "agent 1", "cut off"))
        assert await bench.send(0) is not None
        bench.flusher.let_go(None)
        behind = bench.send(1)
        await turns()
        bench.bytes.gates[-1].set_result(None)
        assert "earlier batch" in str(await behind)

    run(test)


def test_what_is_given_up_is_answered_once_and_taken_when_it_is_applied() -> None:
    async def test(bench: Bench) -> None:
        applied: asyncio.Future[list[AnyAnswer]] = asyncio.get_running_loop().create_future()
        bench.order.submit = lambda _: applied  # type: ignore[method-assign]
        answer = bench.send(0)
        await turns()
        bench.bytes.gates[0].set_result(None)
        await turns()
        doubt = InDoubtError("append", "agent 1", "ended")
        bench.flusher.give_up(doubt)
        assert await answer is doubt
        assert bench.bytes.over == [], "a copy may be applied yet"
        runs = RunsCommitted([[BatchStatus.STORED, 0]])
        applied.set_result([runs])
        await turns()
        assert bench.bytes.over == [True]
        assert len(bench.delivered) == 1

    run(test)
