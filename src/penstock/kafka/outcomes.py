"""Outcomes of the items of a request: each is done or refused by itself. Pure."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from penstock.kafka.errors import ErrorCode
from penstock.metadata.answers import AnyAnswer

Item = TypeVar("Item", bound=Hashable)


class Outcome(NamedTuple):
    """What became of one item of a request. `message` is for the client's user."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    answer: AnyAnswer | None = None


class ItemError(Exception):
    """One item of a request is refused; the others go on."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(error, message)
        self.outcome = Outcome(error, message)


def duplicates(items: Iterable[Item]) -> set[Item]:
    """The items that are there more than once."""
    return {item for item, count in Counter(items).items() if count > 1}
