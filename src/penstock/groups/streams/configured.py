"""Decides how many tasks a topology has, and which topics it lacks, of those that exist. Pure.

Repartition topics that name no number get that of what is written to them: the most partitions that
a subtopology that writes to one reads. Copartitioned ones are then made equal. A changelog has a
partition per task.

Source: InternalTopicManager of Kafka 4.3.1, whose texts clients show.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.groups.consumer.messages import TopicShape
from penstock.groups.streams.topology import (
    InternalTopic,
    Subtopology,
    Topology,
    TopologyError,
)

Shape = Callable[[str], TopicShape | None]
"""Looks a topic up by name; None: it does not exist."""
NAMES_SHOWN: Final = 3


class StatusCode(enum.IntEnum):
    """The things that members hear besides their tasks; the numbers are Kafka's."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """One such thing, with its text."""

    code: StatusCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A topology with the topics that there are."""

    subtopologies: Mapping[str, Subtopology]
    """They are sorted by name; their internal topics have their numbers of partitions. Empty:
    topics that it reads are missing, or partitioned otherwise."""
    tasks: Mapping[str, int]
    """Numbers of tasks by subtopology."""
    missing: tuple[InternalTopic, ...] = ()
    """Internal topics that are to be made."""
    status: Status | None = None
    """Why no task can run; None: all can."""

    @property
    def is_ready(self) -> bool:
        """Whether tasks can run."""
        return self.status is None


class _NotReadyError(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, shape: Shape) -> Configured:
    """Decide numbers of partitions and tasks.

    Raises:
        TopologyError: they can't be decided whatever topics there are.
    """
    try:
        return _configure(topology, shape)
    except _NotReadyError as error:
        return Configured(subtopologies={}, tasks={}, status=error.status)


def _configure(topology: Topology, shape: Shape) -> Configured:
    missing = sorted(
        {name for one in topology.subtopologies for name in one.sources if shape(name) is None}
    )
    if missing:
        raise _NotReadyError(
            StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_some(missing)} are missing."
        )
    decided = _repartition_counts(topology, shape)

    def count(name: str) -> int:
        found = shape(name)
        return decided[name] if found is None else found.partitions

    _copartition(topology, decided, count)
    tasks = {
        one.name: max(map(count, one.inputs))
        for one in sorted(topology.subtopologies, key=lambda one: one.name)
    }
    subtopologies = {}
    for one in sorted(topology.subtopologies, key=lambda one: one.name):
        subtopologies[one.name] = replace(
            one,
            repartition_sources=tuple(
                topic if topic.partitions else replace(topic, partitions=decided[topic.name])
                for topic in one.repartition_sources
            ),
            changelogs=tuple(
                replace(topic, partitions=tasks[one.name]) for topic in one.changelogs
            ),
        )
    lacking = tuple(_missing(subtopologies.values(), shape))
    status = None
    if lacking:
        names = _some([topic.name for topic in lacking])
        status = Status(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}")
    return Configured(subtopologies=subtopologies, tasks=tasks, missing=lacking, status=status)


def _repartition_counts(topology: Topology, shape: Shape) -> dict[str, int]:
    sources = {
        topic.name: topic for one in topology.subtopologies for topic in one.repartition_sources
    }
    decided = {name: topic.partitions for name, topic in sources.items() if topic.partitions}
    undecided = True
    while undecided:
        undecided = has_moved = False
        for one in topology.subtopologies:
            for sink in one.repartition_sinks:
                if sink in decided:
                    continue
                known = [
                    decided[topic.name]
                    for topic in one.repartition_sources
                    if topic.name in decided
                ]
                known += [
                    found.partitions for name in one.sources if (found := shape(name)) is not None
                ]
                if known:
                    decided[sink] = max(known)
                    has_moved = True
                else:
                    undecided = True
        if undecided and not has_moved:
            raise TopologyError(
                "Failed to compute number of partitions for all repartition topics. There may be"
                " loops in the topology that cannot be resolved."
            )
    if sources.keys() - decided.keys():
        raise TopologyError(
            "Failed to compute number of partitions for all repartition topics, because a"
            " repartition source topic is never used as a sink topic."
        )
    return decided


def _copartition(topology: Topology, decided: dict[str, int], count: Callable[[str], int]) -> None:
    """Make copartitioned repartition topics equal to what they are read with."""
    fixed = {
        topic.name
        for one in topology.subtopologies
        for topic in one.repartition_sources
        if topic.partitions
    }
    flexible = {
        topic.name for one in topology.subtopologies for topic in one.repartition_sources
    } - fixed
    for one in topology.subtopologies:
        for group in one.copartitioned:
            names = {one.sources[at] for at in group.sources}
            names |= {one.repartition_sources[at].name for at in group.repartition_sources}
            if not names:
                continue
            repartition = {name: count(name) for name in names if name in fixed | flexible}
            others = {name: count(name) for name in names - repartition.keys()}
            if others:
                used = _same(others)
            elif fixed:
                used = _same({name: count(name) for name in fixed}, shown=repartition)
            else:
                used = max(repartition.values())
            for name in sorted(repartition):
                if name in fixed and repartition[name] != used:
                    raise _NotReadyError(
                        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Number of partitions [{repartition[name]}] of repartition topic"
                        f" [{name}] doesn't match number of partitions [{used}] of the source"
                        " topic.",
                    )
                decided[name] = used


def _same(counts: Mapping[str, int], *, shown: Mapping[str, int] | None = None) -> int:
    if len(set(counts.values())) > 1:
        pairs = ", ".join(f"{name}={number}" for name, number in sorted((shown or counts).items()))
        raise _NotReadyError(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{pairs}}}]",
        )
    return next(iter(counts.values()))


def _missing(subtopologies: Iterable[Subtopology], shape: Shape) -> Iterable[InternalTopic]:
    wanted = {
        topic.name: topic
        for one in subtopologies
        for topic in (*one.repartition_sources, *one.changelogs)
    }
    for name, topic in sorted(wanted.items()):
        found = shape(name)
        if found is None:
            yield topic
        elif found.partitions != topic.partitions:
            raise _NotReadyError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected"
                f" {topic.partitions}, found {found.partitions}",
            )


def _some(names: list[str]) -> str:
    """Name up to three of them."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} additional topics" if more > 0 else "")
