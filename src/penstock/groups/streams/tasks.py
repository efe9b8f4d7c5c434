"""Sets of tasks by subtopology: what a member of a streams group runs, or is to. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from penstock.groups.consumer import partitions

TaskIds = Mapping[str, frozenset[int]]
"""Partition numbers by subtopology. A task is one partition of one subtopology."""
Task = tuple[str, int]
IsFree = Callable[[str, int], bool]

NO_TASKS: Final[TaskIds] = {}


class Tasks(Struct, frozen=True):
    """Tasks in their roles. No task is in two roles of one member."""

    active: TaskIds = NO_TASKS
    """They read, compute and write."""
    standby: TaskIds = NO_TASKS
    """They keep a copy of an active task's state."""
    warmup: TaskIds = NO_TASKS
    """They bring a state to this member before the active task moves. No server of Kafka 4.3 gives
    any out."""

    @property
    def roles(self) -> tuple[TaskIds, TaskIds, TaskIds]:
        """The three sets in the order of their fields."""
        return self.active, self.standby, self.warmup

    @property
    def count(self) -> int:
        """The number of tasks in all roles."""
        return sum(map(partitions.count, self.roles))

    def minus(self, other: "Tasks") -> "Tasks":
        """Return what is not in `other` in the same role."""
        return _each(partitions.minus, self, other)

    def common(self, other: "Tasks") -> "Tasks":
        """Return what is in both in the same role."""
        return _each(partitions.common, self, other)

    def union(self, other: "Tasks") -> "Tasks":
        """Return what is in either."""
        return _each(partitions.union, self, other)

    def __bool__(self) -> bool:
        return any(self.roles)


NONE: Final = Tasks()


def each_task(tasks: TaskIds) -> Iterator[Task]:
    """Iterate over single tasks."""
    for subtopology, numbers in tasks.items():
        for number in numbers:
            yield subtopology, number


def _each(change: Callable[[TaskIds, TaskIds], TaskIds], left: Tasks, right: Tasks) -> Tasks:
    return Tasks(*(change(one, other) for one, other in zip(left.roles, right.roles, strict=True)))
