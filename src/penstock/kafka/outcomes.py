"""Outcomes of the items of a request: each is done or refused by itself. Pure."""

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple, TypeVar

from penstock.kafka.errors import ErrorCode
from penstock.model.steps import Steps
from penstock.state.answers import AnyAnswer

Item = TypeVar("Item", bound=Hashable)

STEP_ITEMS: Final = 1_000
CHEAP: Final = 10
"""So many of these count as one item that something is done with."""


class Outcome(NamedTuple):
    """The outcome of one item of a request. `message` is for the client's user."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    answer: AnyAnswer | None = None


class ItemError(Exception):
    """One item of a request is refused; the others go on."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(error, message)
        self.outcome = Outcome(error, message)


def duplicates(items: Iterable[Item]) -> Steps[set[Item]]:
    """The items that are there more than once."""
    seen: set[Item] = set()
    twice: set[Item] = set()
    add = seen.add
    for item in items:
        if item in seen:
            twice.add(item)
        add(item)
        if not len(seen) % STEP_ITEMS:
            yield STEP_ITEMS // CHEAP
    return twice
