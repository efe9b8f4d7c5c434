"""The local engine gives each item's result once, whatever happens to its threads or processes."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.pipeline import engine as engine_module
from penstock.pipeline.engine import Attempts, Engine, LocalEngine
from penstock.system.backoff import Backoff
from support.pipeline_tasks import always_dies, dies_once, squared
from support.waiting import eventually


class Fails:
    """Fails `times` for each item, then gives it back."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error = times, error
        self.calls: dict[int, int] = {}

    def __call__(self, item: int) -> int:
        self.calls[item] = self.calls.get(item, 0) + 1
        if self.calls[item] <= self.times:
            raise self.error
        return item


RETRYABLE = RetryableError("read", "object", "the store is away")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "REST", Backoff(first_s=1e-9, most_s=1e-9))


@pytest.mark.parametrize("processes", [False, True])
def test_each_item_has_its_result(processes: bool) -> None:
    engine: Engine = LocalEngine(2, processes=processes)
    assert dict(engine.run(squared, range(20))) == {n: n * n for n in range(20)}
    assert list(engine.run(squared, [])) == []


def test_items_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    results = LocalEngine(2).run(squared, items())
    next(results)
    assert len(taken) < 20
    results.close()


def test_what_fails_retriably_is_tried_again() -> None:
    task = Fails(2, RETRYABLE)
    assert dict(LocalEngine(2).run(task, range(3), attempts=3)) == {0: 0, 1: 1, 2: 2}
    assert task.calls == {0: 3, 1: 3, 2: 3}


def test_attempts_are_bounded() -> None:
    task = Fails(9, RETRYABLE)
    with pytest.raises(RetryableError, match="the store is away"):
        list(LocalEngine(1).run(task, [7], attempts=2))
    assert task.calls == {7: 2}


def test_other_errors_end_the_run_at_once() -> None:
    task = Fails(1, InvalidRequestError("read", "object", "never"))
    with pytest.raises(InvalidRequestError):
        list(LocalEngine(1).run(task, range(1000)))
    assert set(task.calls.values()) == {1}
    assert len(task.calls) < 10, "the others were cancelled"


@pytest.mark.slow
def test_a_lost_process_costs_nothing_but_time(tmp_path: Path) -> None:
    items = [str(tmp_path / str(number)) for number in range(3)]
    # Each death fails what else the pool holds, so each item may be lost three times.
    assert dict(LocalEngine(2, processes=True).run(dies_once, items, attempts=4)) == {
        0: 1,
        1: 1,
        2: 1,
    }


@pytest.mark.slow
def test_a_process_that_is_lost_while_nobody_looks_costs_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool is broken when the next item is handed to it, while a result is made use of."""
    pools: list[Executor] = []
    whole = LocalEngine._open

    def noted(engine: LocalEngine) -> Executor:
        pools.append(whole(engine))
        return pools[-1]

    def is_broken() -> bool:
        try:
            pools[0].submit(squared, 0)
        except BrokenProcessPool:
            return True
        return False

    monkeypatch.setattr(LocalEngine, "_open", noted)
    results = LocalEngine(1, processes=True).run(squared, range(20))
    found = [next(results)]
    for process in multiprocessing.active_children():
        process.kill()
    eventually(is_broken)
    assert dict([*found, *results]) == {n: n * n for n in range(20)}
    assert len(pools) == 2


@pytest.mark.slow
def test_an_item_that_always_kills_its_process_is_given_up() -> None:
    with pytest.raises(RetryableError, match="its worker ended each time"):
        list(LocalEngine(1, processes=True).run(always_dies, [1], attempts=2))


def test_attempts_give_what_the_last_one_gives() -> None:
    assert Attempts(Fails(1, RETRYABLE), 2)(5) == 5
    with pytest.raises(RetryableError):
        Attempts(Fails(1, RETRYABLE), 1)(5)
