"""A write's driver and its tasks exchange these messages.

Nothing that computes is imported here: Spark commits each batch of a stream in a process that may
be new, and loading the compiler of kernels there took longer than the commit.
"""

import msgspec

from penstock.model.errors import NotFoundError
from penstock.model.topic_configs import topic_settings
from penstock.pipeline.api_messages import OutputObject, TopicState, WriteRun
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.connector.write_columns import WriteColumns
from penstock.pipeline.connector.write_options import WriteOptions


class TopicTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as writes need it; times in ms. Goes to executors."""

    name: str
    topic_id: str
    partition_count: int
    message_bytes_max: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    log_append_time: bool
    compacts: bool

    @classmethod
    def of(cls, topic: TopicState) -> "TopicTarget":
        """From what an agent says of it."""
        settings = topic_settings(topic.configs, {})
        return cls(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=len(topic.partitions),
            message_bytes_max=settings.max_message_bytes,
            timestamp_before_max_ms=settings.timestamp_before_max_ms,
            timestamp_after_max_ms=settings.timestamp_after_max_ms,
            log_append_time=settings.log_append_time,
            compacts=settings.compacts,
        )


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's findings that tasks need. Without secrets.

    `opened_ms`: when the job was, by the driver's clock.
    """

    options: WriteOptions
    columns: WriteColumns
    job: int
    lease_ms: int
    opened_ms: int
    topics: tuple[TopicTarget, ...]


class TaskOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a task has put; `runs` name objects by their place in `objects`."""

    job: int
    objects: list[OutputObject]
    runs: list[WriteRun]
    record_count: int


def find_topic(client: PipelineClient, name: str) -> TopicTarget:
    """
    Raises:
        NotFoundError: there is no such topic.
    """
    found = client.topics(names=[name]).topics
    if not found:
        raise NotFoundError("write", f"topic {name}", "there is no such topic", "create it first")
    return TopicTarget.of(found[0])
