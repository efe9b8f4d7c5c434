"""Byte budgets: who waits, who is woken, who may go on above the limit."""

from penstock.kafka.budget import ByteBudget


class Reader:
    def __init__(self) -> None:
        self.woken = 0

    def budget_freed(self) -> None:
        self.woken += 1


def test_waiters_are_woken_once_there_is_room() -> None:
    budget, reader = ByteBudget(100), Reader()
    budget.take(150)
    assert budget.spent
    assert budget.room_bytes == 0
    budget.wait(reader)
    budget.take(-40)
    assert reader.woken == 0
    budget.take(-20)
    assert reader.woken == 1
    assert budget.room_bytes == 10
    budget.take(-20)
    assert reader.woken == 1


def test_one_may_go_on_above_the_limit_and_passes_that_on() -> None:
    budget, first, second = ByteBudget(10), Reader(), Reader()
    budget.take(50)
    assert budget.elect(first)
    assert budget.elect(first)
    assert not budget.elect(second)
    budget.wait(second)
    budget.release(first)
    assert second.woken == 1
    assert budget.elect(second)


def test_who_has_left_is_not_woken() -> None:
    budget, reader = ByteBudget(10), Reader()
    budget.take(20)
    budget.wait(reader)
    budget.release(reader)
    budget.take(-20)
    assert reader.woken == 0
