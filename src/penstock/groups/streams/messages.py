"""Requests of a streams group's machine, its answers, and its effects. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.groups.consumer.messages import ReadAgain
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer
from penstock.groups.streams.configured import Status
from penstock.groups.streams.durable import DurableStreamsGroup
from penstock.groups.streams.member import Endpoint
from penstock.groups.streams.tasks import TaskIds, Tasks
from penstock.groups.streams.topology import InternalTopic, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeat:
    """One StreamsGroupHeartbeat. None, and -1 for the time: as in the member's last one."""

    member_id: str
    epoch: int
    endpoint_epoch: int = -1
    """The epoch of the endpoints that the client knows."""
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    has_regexes: bool = False
    active: TaskIds | None = None
    """The active tasks that the member has now, as the next two in their roles."""
    standby: TaskIds | None = None
    warmup: TaskIds | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    has_offsets: bool = False
    has_end_offsets: bool = False
    shuts_down: bool = False
    """All members are to stop."""
    client_id: str = ""
    client_host: str = ""

    @property
    def owned(self) -> Tasks | None:
        """The tasks that the member has now; None: it doesn't say."""
        if self.active is None or self.standby is None or self.warmup is None:
            return None
        return Tasks(self.active, self.standby, self.warmup)


class TopicPartitions(NamedTuple):
    """Partitions of a topic by name."""

    topic: str
    partitions: tuple[int, ...]


class EndpointPartitions(NamedTuple):
    """The partitions that the tasks of a member with an endpoint read."""

    endpoint: Endpoint
    active: tuple[TopicPartitions, ...]
    standby: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsReply:
    """The answer to a heartbeat. `tasks`, `endpoints` None: as in the last answer."""

    error: GroupError = GroupError.NONE
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    statuses: tuple[Status, ...] | None = None
    tasks: Tasks | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    missing: tuple[InternalTopic, ...] = ()
    """Topics that are to be made for the program; the client isn't sent them."""


class SaveStreams(NamedTuple):
    """Journal the group and members of it, then call `saved(save, error)`. One is under way at a
    time.

    `rows`: the topology and changed members by id; `removed`: ids of those that left.
    """

    save: int
    epoch: int
    state: DurableStreamsGroup
    is_empty: bool
    rows: Mapping[str, bytes]
    removed: tuple[str, ...]


Effect = Reply | SetTimer | CancelTimer | SaveStreams | ReadAgain
