"""The bytes in which the journal has a share group, its members and its partitions. Pure.

Each is a version byte, then a MessagePack array. Fields are only ever added at the end, with a
default. docs/share-groups.md, "What is journaled", has the fields.
"""

from typing import Final

from msgspec import Struct

from penstock.groups.consumer import partitions
from penstock.groups.share.member import ShareMember
from penstock.groups.share.partition import (
    RecordState,
    SharePartition,
    Span,
)
from penstock.groups.versioned_state import VersionedState
from penstock.model.errors import CorruptDataError

STATE_VERSION: Final = 1


class DurableShareGroup(Struct, frozen=True, array_like=True):
    """Holds what is journaled of a group, besides its members."""

    target_epoch: int
    counts: list[tuple[bytes, int]]
    """Topics that the group's epoch knows: id and partition count."""
    is_partial: bool
    """Further commands of the same save were to follow."""


class MemberRow(Struct, frozen=True, array_like=True):
    """See `ShareMember`."""

    client_id: str
    client_host: str
    rack: str
    topics: list[str]
    epoch: int
    previous_epoch: int
    assigned: list[tuple[bytes, list[int]]]


class DurableShare(Struct, frozen=True, array_like=True):
    """Holds what is journaled of a share partition, besides its start."""

    spans: list[int]
    """Three integers per span from the start on: offsets, state, delivery count."""


_GROUP: Final = VersionedState("share group", DurableShareGroup, version=STATE_VERSION)
_MEMBER: Final = VersionedState("share member", MemberRow, version=STATE_VERSION)
_SHARE: Final = VersionedState("share partition", DurableShare, version=STATE_VERSION)


def encode_group(group: DurableShareGroup) -> bytes:
    """Return the bytes to journal."""
    return _GROUP.encode(group)


def decode_group(state: bytes, *, group_id: str) -> DurableShareGroup:
    """The inverse of `encode_group`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    return _GROUP.decode(state, subject=group_id)


def encode_member(member: ShareMember) -> bytes:
    """Return the bytes to journal."""
    return _MEMBER.encode(
        MemberRow(
            client_id=member.client_id,
            client_host=member.client_host,
            rack=member.rack,
            topics=list(member.topics),
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            assigned=partitions.pack(member.assigned),
        )
    )


def decode_member(member_id: str, body: bytes, *, group_id: str) -> ShareMember:
    """The inverse of `encode_member`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    row = _MEMBER.decode(body, subject=f"member {member_id} of group {group_id}")
    return ShareMember(
        member_id=member_id,
        client_id=row.client_id,
        client_host=row.client_host,
        rack=row.rack,
        topics=tuple(row.topics),
        epoch=row.epoch,
        previous_epoch=row.previous_epoch,
        assigned=partitions.unpack(row.assigned),
    )


def encode_share(share: SharePartition) -> bytes:
    """Return the bytes to journal: what is acquired is available in them, with the deliveries
    before this one, whose end nothing is known of."""
    spans: list[list[int]] = []
    for span in share.spans:
        state, count = span.state, span.count
        if state is RecordState.ACQUIRED:
            state, count = RecordState.AVAILABLE, count - 1
        if spans and spans[-1][1:] == [state, count]:
            spans[-1][0] += span.size
        else:
            spans.append([span.size, state, count])
    # What was never delivered is found again beyond the end.
    while spans and spans[-1][1:] == [RecordState.AVAILABLE, 0]:
        spans.pop()
    return _SHARE.encode(DurableShare([int(number) for span in spans for number in span]))


def decode_share(start: int, body: bytes, *, subject: str) -> SharePartition:
    """The inverse of `encode_share`.

    Raises:
        CorruptDataError: an unknown version, or damaged bytes.
    """
    numbers = _SHARE.decode(body, subject=subject).spans
    spans: list[Span] = []
    at = start
    try:
        for size, state, count in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            if size < 1:
                raise ValueError(f"a span of {size} offsets")
            spans.append(Span(at, at + size - 1, RecordState(state), count))
            at += size
    except ValueError as error:
        raise CorruptDataError("decode share partition", subject, str(error)) from error
    return SharePartition(start, spans)
