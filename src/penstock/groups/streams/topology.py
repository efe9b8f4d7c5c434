"""The topology of a Kafka Streams program, as its members say it and the journal keeps it. Pure.

The journal has it as a row of the group's members under the empty member id: a version byte, then
a MessagePack array of `Topology`'s fields in their order. Fields are only ever added at the end,
with a default.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from penstock.groups.versioned_state import VersionedState
from penstock.model.topic_names import INTERNAL_TOPICS, name_problem

TOPOLOGY_ROW: Final = ""
"""The member id of the row; members have others."""
ROW_VERSION: Final = 1
TOPOLOGY_BYTES_MAX: Final = 512 << 10
"""Bytes of a topology in the journal: all of it is one row."""


class TopologyError(Exception):
    """A topology can't be used; Kafka's STREAMS_INVALID_TOPOLOGY. The text is for the client."""


class InternalTopic(Struct, frozen=True, array_like=True):
    """A topic that the server makes for the program."""

    name: str
    partitions: int = 0
    """0: what its sources ask for."""
    replication_factor: int = 0
    """0: the server's default."""
    configs: tuple[tuple[str, str], ...] = ()


class Copartitioned(Struct, frozen=True, array_like=True):
    """Topics of one subtopology that must have equally many partitions, by their places in its
    `sources` and `repartition_sources`."""

    sources: tuple[int, ...] = ()
    repartition_sources: tuple[int, ...] = ()


class Subtopology(Struct, frozen=True, array_like=True):
    """A part of the program that is joined with others by topics alone."""

    name: str
    sources: tuple[str, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartitioned: tuple[Copartitioned, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that it reads."""
        return (*self.sources, *(topic.name for topic in self.repartition_sources))


class Topology(Struct, frozen=True, array_like=True):
    """A program's subtopologies, sorted by name."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def required(self) -> frozenset[str]:
        """The topics without which no task runs."""
        return frozenset(
            name
            for one in self.subtopologies
            for name in (*one.inputs, *(topic.name for topic in one.changelogs))
        )

    @property
    def named(self) -> Iterator[str]:
        """All topics that it names; one may come twice."""
        for one in self.subtopologies:
            yield from one.inputs
            yield from one.repartition_sinks
            yield from (topic.name for topic in one.changelogs)

    def reader_of(self, topic: str) -> str | None:
        """The name of the subtopology that reads a topic."""
        found = None
        for one in self.subtopologies:
            if topic in one.inputs:
                found = one.name
        return found


_ROW: Final = VersionedState("topology", Topology, version=ROW_VERSION)


def encode_topology(topology: Topology) -> bytes:
    """Return the bytes to journal."""
    return _ROW.encode(topology)


def decode_topology(body: bytes, *, group_id: str) -> Topology:
    """Invert `encode_topology`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    return _ROW.decode(body, subject=f"topology of group {group_id}")


def check_names(topology: Topology) -> None:
    """Check the names of a topology's topics.

    Raises:
        TopologyError: one is a topic of the server's own, or can't be a topic's name.
    """
    names = list(dict.fromkeys(topology.named))
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        raise TopologyError(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is"
            " prohibited."
        )
    impossible = [name for name in names if name_problem(name) is not None]
    if impossible:
        raise TopologyError(f"Topic names {','.join(impossible)} are not valid topic names.")


def check_shape(topology: Topology) -> None:
    """Check what a topology says beyond names.

    Raises:
        TopologyError: a number of partitions can't be, a subtopology reads nothing or comes twice,
            or a topic that isn't there must be partitioned as another.
    """
    if topology.epoch < 0:
        raise TopologyError(f"Topology epoch is {topology.epoch}, but must not be negative.")
    for one in topology.subtopologies:
        for topic in one.changelogs:
            if topic.partitions:
                raise TopologyError(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it"
                    f" is set to {topic.partitions}."
                )
        for topic in one.repartition_sources:
            if topic.partitions < 0:
                raise TopologyError(
                    f"Repartition topic {topic.name} has {topic.partitions} partitions."
                )
        if not one.inputs:
            raise TopologyError(f"No source topics found for subtopology {one.name}")
        for group in one.copartitioned:
            places = (
                (group.sources, one.sources),
                (
                    group.repartition_sources,
                    one.repartition_sources,
                ),
            )
            if any(not 0 <= at < len(topics) for some, topics in places for at in some):
                raise TopologyError(
                    f"Subtopology {one.name} has a copartition group of topics that it does not"
                    " read."
                )
    names = [one.name for one in topology.subtopologies]
    if len(set(names)) < len(names):
        raise TopologyError("Two subtopologies have the same name.")
    size = len(encode_topology(topology))
    if size > TOPOLOGY_BYTES_MAX:
        raise TopologyError(f"The topology takes {size} bytes, {TOPOLOGY_BYTES_MAX} are allowed.")
