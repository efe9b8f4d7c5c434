"""A member of a streams group, as a value, and the bytes in which the journal has it. Pure.

`SaveMembers.rows` holds a version byte, then a MessagePack array of `MemberRow`'s fields in their
order. Fields are only ever added at the end, with a default.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.groups.consumer import partitions
from penstock.groups.consumer.member import MemberState
from penstock.groups.streams.tasks import NONE, Task, Tasks, each_task
from penstock.groups.versioned_state import VersionedState

ROW_VERSION: Final = 1


class Endpoint(Struct, frozen=True, array_like=True):
    """A place where a program answers queries of its state."""

    host: str
    port: int


class About(Struct, frozen=True):
    """The things that a member says of itself. Another value begins an epoch of its group."""

    client_id: str = ""
    client_host: str = ""
    rack: str = ""
    process_id: str = ""
    """The id of its program: members of one have one disk."""
    topology_epoch: int = -1
    rebalance_timeout_ms: int = -1
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] = ()


class StreamsMember(Struct, frozen=True):
    """A member."""

    member_id: str
    about: About = About()
    epoch: int = 0
    """The target epoch that it has reached."""
    previous_epoch: int = 0
    """The one before: a heartbeat of it is the answer's, which was lost."""
    state: MemberState = MemberState.STABLE
    assigned: Tasks = NONE
    """The tasks that it may run now."""
    revoking: Tasks = NONE
    """The tasks that it must give up, and owns until it did."""
    target: Tasks = NONE
    """The tasks that the group's target gives it."""
    since: Mapping[Task, int] = {}
    """The epoch in which it was given each active task of `assigned` and `revoking`."""

    def is_settled(self, target_epoch: int) -> bool:
        """Whether it has what the target of that epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch


_Packed = list[tuple[str, list[int]]]


class MemberRow(Struct, frozen=True, array_like=True):
    """See `StreamsMember`."""

    client_id: str
    client_host: str
    rack: str
    process_id: str
    topology_epoch: int
    rebalance_timeout_ms: int
    endpoint: Endpoint | None
    tags: list[tuple[str, str]]
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: tuple[_Packed, _Packed, _Packed]
    revoking: tuple[_Packed, _Packed, _Packed]
    target: tuple[_Packed, _Packed, _Packed]
    since: list[tuple[int, _Packed]]
    """Active tasks by the epoch in which they were given."""


_ROW: Final = VersionedState("streams member", MemberRow, version=ROW_VERSION)


def encode_member(member: StreamsMember) -> bytes:
    """Return the bytes to journal."""
    about = member.about
    by_epoch: dict[int, list[Task]] = {}
    for task, epoch in member.since.items():
        by_epoch.setdefault(epoch, []).append(task)
    return _ROW.encode(
        MemberRow(
            client_id=about.client_id,
            client_host=about.client_host,
            rack=about.rack,
            process_id=about.process_id,
            topology_epoch=about.topology_epoch,
            rebalance_timeout_ms=about.rebalance_timeout_ms,
            endpoint=about.endpoint,
            tags=list(about.tags),
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            state=member.state,
            assigned=_packed(member.assigned),
            revoking=_packed(member.revoking),
            target=_packed(member.target),
            since=[
                (epoch, partitions.pack(partitions.of((name, (at,)) for name, at in tasks)))
                for epoch, tasks in sorted(by_epoch.items())
            ],
        )
    )


def decode_member(member_id: str, body: bytes, *, group_id: str) -> StreamsMember:
    """Invert `encode_member`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    row = _ROW.decode(body, subject=f"member {member_id} of group {group_id}")
    return StreamsMember(
        member_id=member_id,
        about=About(
            client_id=row.client_id,
            client_host=row.client_host,
            rack=row.rack,
            process_id=row.process_id,
            topology_epoch=row.topology_epoch,
            rebalance_timeout_ms=row.rebalance_timeout_ms,
            endpoint=row.endpoint,
            tags=tuple(row.tags),
        ),
        epoch=row.epoch,
        previous_epoch=row.previous_epoch,
        state=row.state,
        assigned=_unpacked(row.assigned),
        revoking=_unpacked(row.revoking),
        target=_unpacked(row.target),
        since={
            task: epoch
            for epoch, tasks in row.since
            for task in each_task(partitions.unpack(tasks))
        },
    )


def _packed(tasks: Tasks) -> tuple[_Packed, _Packed, _Packed]:
    return (
        partitions.pack(tasks.active),
        partitions.pack(tasks.standby),
        partitions.pack(tasks.warmup),
    )


def _unpacked(packed: tuple[_Packed, _Packed, _Packed]) -> Tasks:
    return Tasks(*(partitions.unpack(role) for role in packed))
