"""Requests of a consumer group's machine, its answers, and its effects. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.groups.consumer.member import ClassicPart
from penstock.groups.consumer.partitions import Partitions
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One ConsumerGroupHeartbeat. None, and -1 for the time: as in the member's last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    """The partitions that the member has now."""
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """The client sends all it has to say: it joins, or doubts what it was answered."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The answer to a heartbeat. `assigned` None: as in the last answer."""

    error: GroupError = GroupError.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: Partitions | None = None


class ClassicJoin(NamedTuple):
    """A JoinGroup as a consumer group takes it.

    `beat`: what its subscription says. `is_newcomer`: it named no member id, and has a new one.
    """

    beat: Heartbeat
    part: ClassicPart
    is_newcomer: bool


class TopicShape(NamedTuple):
    """A topic's id and partition count."""

    topic_id: bytes
    partitions: int


class Catalog(Protocol):
    """The topics that there are."""

    @property
    def generation(self) -> int:
        """Another number whenever a topic was made, changed or deleted."""
        ...

    def shape(self, name: str) -> TopicShape | None:
        """Look a topic up; None: it does not exist."""
        ...

    def matching(self, regex: str) -> frozenset[str]:
        """Return the names that a regular expression matches whole; none if it can't be read."""
        ...


RegexFault = Callable[[str], str | None]
"""Says what is wrong with a regular expression; None: nothing."""


class SaveMembers(NamedTuple):
    """Journal members of a group, then call `saved(save, error)`. One is under way at a time.

    `rows`: changed members by id, as `encode_member` makes them; `removed`: ids of those that left.
    `is_whole`: it must be one command, since the journal has a classic group until then.
    """

    save: int
    epoch: int
    target_epoch: int
    counts: Mapping[bytes, int]
    is_empty: bool
    rows: Mapping[str, bytes]
    removed: tuple[str, ...]
    is_whole: bool = False


class ReadAgain(NamedTuple):
    """Memory holds what the journal refused: forget the group, and read it again."""


class BecomeClassic(NamedTuple):
    """The last member of KIP-848 has left, all others are classic: make the group a classic one.

    `replies` are given once the journal has it. `removed`: ids of all members that the journal may
    have rows of. `rebalances`: the members are to join again at once.
    """

    replies: tuple[Reply, ...]
    removed: tuple[str, ...]
    rebalances: bool


Effect = Reply | SetTimer | CancelTimer | SaveMembers | ReadAgain | BecomeClassic
