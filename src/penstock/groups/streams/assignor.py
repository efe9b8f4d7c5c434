"""The sticky assignor says which member of a streams group shall run which task. Pure.

A member keeps its active tasks, or makes its standbys active, up to its even share; the rest goes
to the program with the least tasks per member. Standbys then go to programs that don't have the
task: to a former holder within its share first. Equal choices are made by name, where Kafka's
depend on Java's hashes.

Source: StickyTaskAssignor of Kafka 4.3.1, its only one.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.groups.consumer import partitions
from penstock.groups.streams.tasks import Task, Tasks, each_task

ASSIGNOR: Final = "sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A member as the assignor sees it."""

    member_id: str
    process_id: str
    before: Tasks
    """The tasks that the last target gave the member."""


@dataclass(slots=True)
class _Process:
    """A program: members by their numbers of tasks."""

    process_id: str
    counts: dict[str, int] = field(default_factory=dict)
    tasks: set[Task] = field(default_factory=set)
    total: int = 0

    @property
    def load(self) -> float:
        return self.total / len(self.counts)

    def least(self) -> str:
        return min(self.counts, key=lambda member_id: (self.counts[member_id], member_id))


class _Quota:
    """The even share of members that are not full yet; it is made again as members become full."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.share = _share(tasks, members)

    def filled(self, count: int) -> None:
        """A member has so many tasks now."""
        if count == self.share:
            self._members -= 1
            self._tasks -= count
            self.share = _share(self._tasks, self._members)


def _share(tasks: int, members: int) -> int:
    return -(-tasks // members) if members else 0


def assign_tasks(
    workers: Sequence[Worker],
    tasks: Mapping[str, int],
    *,
    is_stateful: Callable[[str], bool],
    standby_replicas: int,
) -> dict[str, Tasks]:
    """Return each member's tasks.

    Args:
        tasks: numbers of tasks by subtopology.
        is_stateful: whether a subtopology, by name, has a state to stand by with.
    """
    if not workers:
        return {}
    return _Assignment(workers, tasks, is_stateful, standby_replicas).made()


class _Assignment:
    def __init__(
        self,
        workers: Sequence[Worker],
        tasks: Mapping[str, int],
        is_stateful: Callable[[str], bool],
        standby_replicas: int,
    ) -> None:
        self._workers = sorted(workers, key=lambda worker: worker.member_id)
        self._replicas = standby_replicas
        self._all = [(name, at) for name, count in sorted(tasks.items()) for at in range(count)]
        self._stateful = [task for task in self._all if is_stateful(task[0])]
        total = len(self._all) + standby_replicas * len(self._stateful)
        self._active_quota = _Quota(len(self._all), len(workers))
        self._quota = _Quota(total, len(workers))
        self._active: dict[str, list[Task]] = {one.member_id: [] for one in self._workers}
        self._standby: dict[str, list[Task]] = {one.member_id: [] for one in self._workers}
        self._processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._was_active: dict[Task, str] = {}
        self._was_standby: dict[Task, list[str]] = {}
        for worker in self._workers:
            process = self._processes.setdefault(worker.process_id, _Process(worker.process_id))
            process.counts[worker.member_id] = 0
            self._process_of[worker.member_id] = process
            for task in each_task(worker.before.active):
                self._was_active[task] = worker.member_id
            for task in each_task(worker.before.standby):
                self._was_standby.setdefault(task, []).append(worker.member_id)

    def made(self) -> dict[str, Tasks]:
        """Assign all."""
        self._assign_active()
        if self._replicas:
            self._assign_standby()
        return {
            worker.member_id: Tasks(
                active=_as_ids(self._active[worker.member_id]),
                standby=_as_ids(self._standby[worker.member_id]),
            )
            for worker in self._workers
        }

    def _give(self, member_id: str, task: Task, given: dict[str, list[Task]]) -> int:
        process = self._process_of[member_id]
        given[member_id].append(task)
        process.tasks.add(task)
        process.total += 1
        process.counts[member_id] += 1
        self._quota.filled(process.counts[member_id])
        return process.counts[member_id]

    def _give_active(self, member_id: str, task: Task) -> None:
        self._active_quota.filled(self._give(member_id, task, self._active))

    def _count(self, member_id: str) -> int:
        return self._process_of[member_id].counts[member_id]

    def _assign_active(self) -> None:
        left = []
        # By partition first: what one program had, it had of all subtopologies alike.
        for task in sorted(self._all, key=lambda task: (task[1], task[0])):
            member_id = self._was_active.get(task)
            if member_id is not None and self._count(member_id) < self._active_quota.share:
                self._give_active(member_id, task)
            else:
                left.append(task)
        rest = []
        for task in left:
            member_id = self._least_loaded(self._was_standby.get(task, ()))
            if member_id is not None and self._count(member_id) < self._active_quota.share:
                self._give_active(member_id, task)
            else:
                rest.append(task)
        heap = self._heap()
        for task in sorted(rest):
            process = self._processes[heap[0][1]]
            self._give_active(process.least(), task)
            heapq.heapreplace(heap, (process.load, process.process_id))

    def _assign_standby(self) -> None:
        rest: list[tuple[Task, int]] = []
        for task in sorted(self._stateful, key=lambda task: (task[1], task[0]), reverse=True):
            for made in range(self._replicas):
                member_id = self._former_holder(task)
                if member_id is None:
                    rest.append((task, self._replicas - made))
                    break
                self._give(member_id, task, self._standby)
        heap = self._heap()
        for task, replicas in sorted(rest, reverse=True):
            for _ in range(replicas):
                if not self._give_standby(heap, task):
                    break

    def _former_holder(self, task: Task) -> str | None:
        """A member that had the task, in a program that doesn't have it now, within its share."""
        was_active = self._was_active.get(task)
        if (
            was_active is not None
            and task not in self._process_of[was_active].tasks
            and self._count(was_active) < self._quota.share
        ):
            return was_active
        others = [
            one
            for one in self._was_standby.get(task, ())
            if task not in self._process_of[one].tasks
        ]
        found = self._least_loaded(others)
        return found if found is not None and self._count(found) < self._quota.share else None

    def _give_standby(self, heap: list[tuple[float, str]], task: Task) -> bool:
        """Give a copy to the least loaded program without the task; false: all have it."""
        passed = []
        found = None
        while heap and found is None:
            least = heapq.heappop(heap)
            if task in self._processes[least[1]].tasks:
                passed.append(least)
            else:
                found = self._processes[least[1]]
        for one in passed:
            heapq.heappush(heap, one)
        if found is None:
            return False
        self._give(found.least(), task, self._standby)
        heapq.heappush(heap, (found.load, found.process_id))
        return True

    def _least_loaded(self, member_ids: Sequence[str]) -> str | None:
        return min(
            member_ids,
            key=lambda one: (self._process_of[one].load, self._count(one), one),
            default=None,
        )

    def _heap(self) -> list[tuple[float, str]]:
        heap = [(one.load, one.process_id) for one in self._processes.values()]
        heapq.heapify(heap)
        return heap


def _as_ids(tasks: Sequence[Task]) -> Mapping[str, frozenset[int]]:
    return partitions.of((name, (at,)) for name, at in tasks)
