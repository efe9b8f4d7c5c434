"""A member's next step to its target: tasks that it gives up, gets, and waits for. Pure.

An active task is given out once no other member runs it, and no task to a program that still has it
in another role: a program has one folder of state per task. KIP-848's step
(`consumer.reconcile`) differs in its epochs: here a member that gave up what it had to goes on from
the epoch after its own, as Kafka's does.

Source: CurrentAssignmentBuilder of Kafka 4.3.1.
"""

from typing import NamedTuple

from msgspec.structs import replace

from penstock.groups.consumer import partitions
from penstock.groups.consumer.member import MemberState
from penstock.groups.streams.member import StreamsMember
from penstock.groups.streams.tasks import (
    NONE,
    IsFree,
    TaskIds,
    Tasks,
    each_task,
)


class Free(NamedTuple):
    """Say whether a task may be given to the member."""

    active: IsFree
    other: IsFree
    """Asked of standbys and warmups."""


def next_step(
    member: StreamsMember, target: Tasks, target_epoch: int, reported: Tasks | None, free: Free
) -> StreamsMember:
    """Return the member after a heartbeat.

    Args:
        target: what the member is to have, as of `target_epoch`.
        reported: what the member says that it has; None: it says nothing of it.
    """
    if member.is_settled(target_epoch):
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED:
        if reported is None or reported.common(member.revoking):
            return member
        epoch += 1
    kept = member.assigned.common(target)
    revoking = member.assigned.minus(target)
    if revoking and (reported is None or reported.common(revoking)):
        return replace(
            member,
            state=MemberState.UNREVOKED,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
            since=_since(member, kept.union(revoking), epoch),
        )
    wanted = target.minus(kept)
    given = Tasks(
        active=_chosen(wanted.active, free.active),
        standby=_chosen(wanted.standby, free.other),
        warmup=_chosen(wanted.warmup, free.other),
    )
    assigned = kept.union(given)
    return replace(
        member,
        state=MemberState.STABLE if given == wanted else MemberState.UNRELEASED,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=NONE,
        since=_since(member, assigned, target_epoch),
    )


def _chosen(tasks: TaskIds, is_free: IsFree) -> TaskIds:
    return partitions.of(
        (name, [number for number in numbers if is_free(name, number)])
        for name, numbers in tasks.items()
    )


def _since(member: StreamsMember, owned: Tasks, epoch: int) -> dict[tuple[str, int], int]:
    return {task: member.since.get(task, epoch) for task in each_task(owned.active)}
