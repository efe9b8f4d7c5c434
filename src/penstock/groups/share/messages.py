"""Requests of a share group's machine, its answers, and its effects. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.groups.consumer.messages import ReadAgain
from penstock.groups.consumer.partitions import Partitions
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer

Place = tuple[bytes, int]
"""A partition: topic id and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """One ShareGroupHeartbeat. None: as in the member's last one."""

    member_id: str
    epoch: int
    rack: str | None = None
    topics: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatReply:
    """The answer to a heartbeat. `assigned` None: as in the last answer."""

    error: GroupError = GroupError.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: Partitions | None = None


class SharesReply(NamedTuple):
    """The journal has what share partitions were asked, or refused it."""

    error: GroupError = GroupError.NONE


class SaveShareMembers(NamedTuple):
    """Journal the group and members of it, then call `saved(save, error)`.

    `rows`: changed members by id, as `encode_member` makes them; `removed`: ids of those that left.
    """

    save: int
    epoch: int
    target_epoch: int
    counts: Mapping[bytes, int]
    is_empty: bool
    rows: Mapping[str, bytes]
    removed: tuple[str, ...]


class SaveSharePartitions(NamedTuple):
    """Journal states of share partitions, then call `saved_shares(error)`. One is under way at a
    time. `rows`: topic id, number, start and `encode_share`'s bytes."""

    rows: Sequence[tuple[bytes, int, int, bytes]]
    removed: Sequence[Place]


class RecordsFreed(NamedTuple):
    """Records that were under way may be fetched again, or further ones may."""


Effect = (
    Reply
    | SetTimer
    | CancelTimer
    | SaveShareMembers
    | SaveSharePartitions
    | RecordsFreed
    | ReadAgain
)
