"""A group of classic members becomes one of KIP-848, and the other way round. Pure.

No partition may have two readers on the way. A classic group's members own what they were assigned
in its last stable generation, whichever they gave up since: the next group learns that when they
join it. The members of a consumer group own what they have and what they have to give up still.

Source: KIP-848, "Online Migration"; ConsumerGroup.fromClassicGroup and ClassicGroup.
fromConsumerGroup of Kafka 4.3.
"""

from collections.abc import Callable

from penstock.groups.consumer import partitions
from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.member import (
    JOINING_EPOCH,
    ClassicPart,
    ConsumerMember,
    Subscription,
)
from penstock.groups.consumer.messages import Catalog, ClassicJoin, Heartbeat
from penstock.groups.consumer.partitions import Partitions
from penstock.groups.durable import DurableGroup, DurableMember
from penstock.groups.member import Member
from penstock.groups.messages import JoinRequest
from penstock.groups.state import ClassicGroup
from penstock.groups.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    PartitionsByName,
    read_assignment,
    read_subscription,
    write_assignment,
)

TopicName = Callable[[bytes], str | None]
"""Gives a topic's name by its id; None: it was deleted."""

_MALFORMED = "the embedded consumer protocol is malformed"


class UpgradeError(Exception):
    """A classic group can't become a consumer group; the message says why."""


def upgraded_members(group: ClassicGroup, catalog: Catalog) -> list[ConsumerMember]:
    """Return a classic group's members as a consumer group has them.

    Raises:
        UpgradeError: one does not consume topics, or has an assignor that says more than topics.
    """
    return [_upgraded(member, group, catalog) for member in group.roster]


def _upgraded(member: Member, group: ClassicGroup, catalog: Catalog) -> ConsumerMember:
    subscription = read_subscription(member.protocols[0].metadata) if member.protocols else None
    assignment = read_assignment(member.assignment)
    if subscription is None or assignment is None:
        raise UpgradeError(_MALFORMED)
    if assignment.user_data:
        raise UpgradeError(
            "an unsupported custom assignor is in use. Please refer to the documentation or switch"
            " to a default assignor before re-attempting the upgrade"
        )
    has = _by_id(assignment.partitions, catalog)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=Subscription(tuple(sorted(subscription.topics)), rack=subscription.rack),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=has,
        target=has,
        classic=ClassicPart(
            member.session_timeout_ms, tuple((name, said) for name, said in member.protocols)
        ),
    )


def classic_join(join: JoinRequest, catalog: Catalog) -> ClassicJoin | None:
    """Return a JoinGroup as a consumer group takes it; None: it is not of a consumer of topics."""
    if join.protocol_type != CONSUMER_PROTOCOL_TYPE or not join.protocols:
        return None
    subscription = read_subscription(join.protocols[0].metadata)
    if subscription is None:
        return None
    beat = Heartbeat(
        member_id=join.member_id or join.new_member_id,
        epoch=JOINING_EPOCH,
        instance_id=join.instance_id,
        rack=subscription.rack,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        topics=tuple(sorted(subscription.topics)),
        regex="",
        assignor="",
        owned=_by_id(subscription.owned, catalog),
        client_id=join.client_id,
        client_host=join.client_host,
    )
    part = ClassicPart(
        join.session_timeout_ms, tuple((name, said) for name, said in join.protocols)
    )
    return ClassicJoin(beat, part, is_newcomer=not join.member_id)


def downgraded(group: ConsumerGroup, topic_name: TopicName, *, rebalances: bool) -> DurableGroup:
    """Return the group as a classic one, in the generation of its epoch; all members are classic.

    Their assignments are what they own, not their targets as in Kafka: a target may be another
    member's still, and the group may become one of KIP-848 again before all have joined.
    """
    members = []
    names: list[set[str]] = []
    for member_id in sorted(group.members):
        member = group.members[member_id]
        assert member.classic is not None
        names.append({name for name, _ in member.classic.protocols})
        members.append(
            DurableMember(
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                list(member.classic.protocols),
                assignment_bytes(member.owned, topic_name),
            )
        )
    common = set.intersection(*names)
    known = [name for name, _ in members[0].protocols]
    protocol_name = next((name for name in known if name in common), known[0])
    return DurableGroup(protocol_name, members[0].member_id, members, rebalances)


def assignment_bytes(assigned: Partitions, topic_name: TopicName) -> bytes:
    """Return what a classic member is answered as its partitions."""
    named = {topic_name(topic_id): sorted(numbers) for topic_id, numbers in assigned.items()}
    return write_assignment({name: numbers for name, numbers in named.items() if name is not None})


def _by_id(named: PartitionsByName, catalog: Catalog) -> Partitions:
    shapes = {name: catalog.shape(name) for name in named}
    return partitions.of(
        (shape.topic_id, named[name]) for name, shape in shapes.items() if shape is not None
    )
