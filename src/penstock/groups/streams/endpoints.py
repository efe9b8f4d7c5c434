"""Endpoints where a program answers queries of its state, with the partitions that its tasks read.
Pure."""

from collections.abc import Iterable, Iterator

from penstock.groups.consumer.messages import Catalog
from penstock.groups.streams.configured import Configured
from penstock.groups.streams.member import StreamsMember
from penstock.groups.streams.messages import EndpointPartitions, TopicPartitions
from penstock.groups.streams.tasks import TaskIds


def endpoint_partitions(
    members: Iterable[StreamsMember], configured: Configured, catalog: Catalog
) -> Iterator[EndpointPartitions]:
    """Iterate over the members that have an endpoint."""
    for member in members:
        if member.about.endpoint is not None:
            yield EndpointPartitions(
                member.about.endpoint,
                tuple(_read(member.assigned.active, configured, catalog)),
                tuple(_read(member.assigned.standby, configured, catalog)),
            )


def _read(tasks: TaskIds, configured: Configured, catalog: Catalog) -> Iterator[TopicPartitions]:
    for name, numbers in sorted(tasks.items()):
        subtopology = configured.subtopologies.get(name)
        for topic in () if subtopology is None else sorted(subtopology.inputs):
            shape = catalog.shape(topic)
            if shape is not None:
                # A topic of fewer partitions than the subtopology's others has the first ones.
                yield TopicPartitions(topic, tuple(sorted(numbers)[: shape.partitions]))
