"""A member of a consumer group, as a value, and the bytes in which the journal has it. Pure.

`SaveMembers.rows` holds a version byte, then a MessagePack array of `MemberRow`'s fields in their
order. Fields are only ever added at the end, with a default.
"""

import enum
from typing import Final

from msgspec import Struct

from penstock.groups.consumer import partitions
from penstock.groups.consumer.partitions import NONE, Partitions
from penstock.groups.versioned_state import VersionedState

ROW_VERSION: Final = 1

JOINING_EPOCH: Final = 0
"""The epoch of a heartbeat that joins."""
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2
"""A static member leaves for a while: its partitions stay its own until its session ends."""


class MemberState(enum.IntEnum):
    """The ways in which a member may stand to its target. The numbers are journaled."""

    STABLE = 0
    UNREVOKED = 1
    """It must give partitions up, and has not said yet that it did."""
    UNRELEASED = 2
    """Partitions that it is to have are another member's still."""


class Subscription(Struct, frozen=True):
    """The topics that a member asks for, and how it wants them assigned."""

    topics: tuple[str, ...] = ()
    """Names, sorted."""
    regex: str = ""
    """A regular expression of further names; empty: none."""
    assignor: str = ""
    """The assignor that it prefers; empty: any."""
    rack: str = ""


class ClassicPart(Struct, frozen=True):
    """The part that classic members say beyond the others (KIP-848, "Online Migration").

    `protocols`: pairs of name and metadata, as of its last JoinGroup.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(Struct, frozen=True):
    """A member. Times in milliseconds."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    """How long it may take to give partitions up; -1: it has not said."""
    subscription: Subscription = Subscription()
    epoch: int = 0
    """The target epoch that it has reached, or STATIC_LEAVING_EPOCH."""
    previous_epoch: int = 0
    """The one before: a heartbeat of it is the answer's, which was lost."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NONE
    """The partitions that it may read now."""
    revoking: Partitions = NONE
    """The partitions that it must give up, and owns until it did."""
    target: Partitions = NONE
    """The partitions that the group's target gives it."""
    classic: ClassicPart | None = None
    """Present where the member speaks the classic protocol; None: it speaks KIP-848."""

    @property
    def owned(self) -> Partitions:
        """The partitions that no other member may read yet."""
        return partitions.union(self.assigned, self.revoking) if self.revoking else self.assigned


class MemberRow(Struct, frozen=True, array_like=True):
    """See `ConsumerMember`."""

    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: list[str]
    regex: str
    assignor: str
    rack: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: list[tuple[bytes, list[int]]]
    revoking: list[tuple[bytes, list[int]]]
    target: list[tuple[bytes, list[int]]]
    session_timeout_ms: int = -1
    """Not negative: the member speaks the classic protocol, with this and the next."""
    protocols: list[tuple[str, bytes]] = []


_ROW: Final = VersionedState("member", MemberRow, version=ROW_VERSION)


def encode_member(member: ConsumerMember) -> bytes:
    """Return the bytes to journal."""
    subscription = member.subscription
    row = MemberRow(
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=list(subscription.topics),
        regex=subscription.regex,
        assignor=subscription.assignor,
        rack=subscription.rack,
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        state=member.state,
        assigned=partitions.pack(member.assigned),
        revoking=partitions.pack(member.revoking),
        target=partitions.pack(member.target),
        session_timeout_ms=-1 if member.classic is None else member.classic.session_timeout_ms,
        protocols=[] if member.classic is None else list(member.classic.protocols),
    )
    return _ROW.encode(row)


def decode_member(member_id: str, body: bytes, *, group_id: str) -> ConsumerMember:
    """The inverse of `encode_member`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    row = _ROW.decode(body, subject=f"member {member_id} of group {group_id}")
    return ConsumerMember(
        member_id=member_id,
        instance_id=row.instance_id,
        client_id=row.client_id,
        client_host=row.client_host,
        rebalance_timeout_ms=row.rebalance_timeout_ms,
        subscription=Subscription(tuple(row.topics), row.regex, row.assignor, row.rack),
        epoch=row.epoch,
        previous_epoch=row.previous_epoch,
        state=row.state,
        assigned=partitions.unpack(row.assigned),
        revoking=partitions.unpack(row.revoking),
        target=partitions.unpack(row.target),
        classic=(
            None
            if row.session_timeout_ms < 0
            else ClassicPart(
                row.session_timeout_ms, tuple((name, said) for name, said in row.protocols)
            )
        ),
    )
