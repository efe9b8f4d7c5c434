"""A member's next step to its target: what it gives up, what it gets, what it waits for. Pure.

A partition is given out only once no other member owns it, and a member owns what it has to give up
until it says that it did. So no partition is read by two members of a group.

Source: KIP-848, "Member Assignment / Epoch reconciliation".
"""

from collections.abc import Callable

import msgspec

from penstock.groups.consumer import partitions
from penstock.groups.consumer.member import ConsumerMember, MemberState
from penstock.groups.consumer.partitions import NONE, Partitions

IsFree = Callable[[bytes, int], bool]
"""Whether no other member owns a partition (topic id, number)."""


def next_step(
    member: ConsumerMember, *, target_epoch: int, reported: Partitions | None, is_free: IsFree
) -> ConsumerMember:
    """Return the member after a heartbeat.

    Args:
        target_epoch: of the target that `member.target` is of.
        reported: what the member says that it has; None: it says nothing of it.
        is_free: asked of partitions that the member does not own.
    """
    match member.state:
        case MemberState.STABLE:
            if member.epoch == target_epoch:
                return member
        case MemberState.UNREVOKED:
            if reported is None or partitions.common(reported, member.revoking):
                return member
        case MemberState.UNRELEASED:
            pass
    return _advance(member, target_epoch=target_epoch, reported=reported, is_free=is_free)


def _advance(
    member: ConsumerMember, *, target_epoch: int, reported: Partitions | None, is_free: IsFree
) -> ConsumerMember:
    kept = partitions.common(member.assigned, member.target)
    revoking = partitions.minus(member.assigned, member.target)
    if revoking and (reported is None or partitions.common(reported, revoking)):
        # It stays in its epoch, whose commits are taken while it gives the partitions up.
        return msgspec.structs.replace(
            member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking
        )
    wanted = partitions.minus(member.target, kept)
    free = partitions.of(
        (topic_id, [number for number in numbers if is_free(topic_id, number)])
        for topic_id, numbers in wanted.items()
    )
    is_waiting = partitions.count(free) < partitions.count(wanted)
    return msgspec.structs.replace(
        member,
        state=MemberState.UNRELEASED if is_waiting else MemberState.STABLE,
        assigned=partitions.union(kept, free) if free else kept,
        revoking=NONE,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
    )
