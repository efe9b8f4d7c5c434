"""The members of a consumer group of KIP-848, what each has, and what each is to have. Pure.

Events change members in memory; what changed is journaled, one `SaveMembers` at a time, and no
answer is given before the journal has all that it is made of. A refused save makes memory
worthless: the group is read again.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock.groups.consumer import partitions
from penstock.groups.consumer.assignors import ASSIGNORS, Subscriber
from penstock.groups.consumer.member import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
    Subscription,
    encode_member,
)
from penstock.groups.consumer.messages import (
    Catalog,
    Effect,
    Heartbeat,
    HeartbeatReply,
    ReadAgain,
    RegexFault,
    SaveMembers,
)
from penstock.groups.consumer.partitions import NONE, Partitions
from penstock.groups.consumer.reconcile import next_step
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import CancelTimer, Reply, SetTimer, Timer
from penstock.groups.settings import GroupSettings
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.model.group_configs import CONSUMER_ASSIGNMENT_INTERVAL, CONSUMER_SESSION

DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
RESTS_FROM: Final = 100
"""Members from which on a group rests between two targets. To make one takes time in proportion to
the members, so that without rests a fleet's start would take the square of it."""
REST_MS: Final = 1_000
"""The rest. Kafka's `consumer.assignment.interval.ms` is the same by default, of all groups."""
REST_TIMER: Final = Timer("rest")
_TIMERS: Final = ("session", "rebalance", "rejoin", "sync")


class ConsumerRoster:
    """See the module. Made empty; `restore` gives back what is journaled of it."""

    __slots__ = (
        "_awaited",
        "_catalog_generation",
        "_configs",
        "_counts",
        "_dirty",
        "_effects",
        "_ends",
        "_is_dirty",
        "_is_whole",
        "_next_waiting",
        "_owners",
        "_regex_fault",
        "_removed",
        "_resolved",
        "_rests",
        "_save_count",
        "_saving",
        "_settings",
        "_subscriptions",
        "_waiting",
        "epoch",
        "group_id",
        "is_dead",
        "members",
        "statics",
        "target_epoch",
    )

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        regex_fault: RegexFault,
        configs: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """
        Args:
            configs: gives the group's own configs as they are now (`penstock.model.group_configs`).
        """
        self.group_id = group_id
        self.epoch = 0
        """Grows whenever the target has to be made again."""
        self.target_epoch = 0
        """The epoch that the members' targets are of."""
        self.members: dict[str, ConsumerMember] = {}
        self.statics: dict[str, str] = {}
        """Member ids by instance id."""
        self.is_dead = False
        self._settings = settings
        self._regex_fault = regex_fault
        self._configs = configs
        self._catalog_generation: int | None = None
        self._counts: dict[bytes, int] = {}
        # Topic ids by subscription: the members of a group mostly have one.
        self._resolved: dict[Subscription, frozenset[bytes]] = {}
        self._subscriptions: dict[Subscription, int] = {}
        """How many members have each."""
        self._owners: dict[tuple[bytes, int], str] = {}
        # Classic members that have to join again, or to sync, and have not yet.
        self._awaited: set[Timer] = set()
        self._rests = False
        self._effects: list[Effect] = []
        self._is_dirty = False
        self._is_whole = False
        # The group becomes a classic one as soon as no save is under way.
        self._ends = False
        self._dirty: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._save_count = 0
        self._saving = False
        self._waiting: list[Reply] = []
        self._next_waiting: list[Reply] = []

    # -- what others ask -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The group's epoch, under the name that classic groups have for theirs."""
        return self.epoch

    @property
    def protocol_type(self) -> str:
        """The protocol type that tools show."""
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state(self) -> GroupState:
        """The state that tools show. Looks at each member."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        is_settled = all(
            member.state is MemberState.STABLE
            and member.epoch in {self.target_epoch, STATIC_LEAVING_EPOCH}
            for member in self.members.values()
        )
        return GroupState.STABLE if is_settled else GroupState.RECONCILING

    @property
    def is_idle(self) -> bool:
        """No member is there, and nothing is in memory that the journal has not."""
        return not (self.members or self._saving or self._is_dirty)

    @property
    def assignor(self) -> str:
        """The assignor that most of those members want that want one."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            wanted = member.subscription.assignor
            if wanted:
                votes[wanted] = votes.get(wanted, 0) + 1
        return max(votes, key=lambda name: (votes[name], name)) if votes else DEFAULT_ASSIGNOR

    def topics(self) -> frozenset[str] | None:
        """The topics that members name; None where a regular expression may take in any."""
        names: set[str] = set()
        for subscription in self._subscriptions:
            if subscription.regex:
                return None
            names.update(subscription.topics)
        return frozenset(names)

    def is_subscribed(self, topic_name: str) -> bool:
        """Whether a member may read that topic."""
        topics = self.topics()
        return topics is None or topic_name in topics

    # -- events ----------------------------------------------------------------------------------

    def restore(
        self,
        *,
        epoch: int,
        target_epoch: int,
        counts: Mapping[bytes, int],
        members: Iterable[ConsumerMember],
        is_partial: bool,
    ) -> list[Effect]:
        """Take up what is journaled. Members have a full session from now.

        Args:
            is_partial: the last save was journaled in part: the targets may be of two epochs.
        """
        assert not self.members
        for member in members:
            self.members[member.member_id] = member
            self._subscribe(None, member.subscription)
            if member.instance_id is not None:
                self.statics[member.instance_id] = member.member_id
            self._own(member.member_id, NONE, member.owned)
            self._begin_session(member)
            if member.state is MemberState.UNREVOKED:
                self._begin_revocation(member)
        self.epoch = epoch
        self.target_epoch = target_epoch
        self._counts = dict(counts)
        if is_partial:
            self._bump()
        return self._take()

    def saved(self, save: int, error: GroupError) -> list[Effect]:
        """The journal has answered a `SaveMembers`."""
        del save
        self._saving = False
        waiting, self._waiting = self._waiting, []
        if self.is_dead:
            return self._take()
        if error is GroupError.NONE:
            self._effects += waiting
            return self._take()
        self.is_dead = True
        waiting += self._next_waiting
        self._next_waiting = []
        failed = HeartbeatReply(error=error)
        self._effects += [Reply(one.request, failed) for one in waiting]
        self._effects.append(ReadAgain())
        return self._take()

    def end(self, error: GroupError) -> list[Effect]:
        """The group is served here no more (deleted, moved, or the server ends): answer all."""
        self.is_dead = True
        failed = HeartbeatReply(error=error)
        self._effects += [Reply(one.request, failed) for one in self._waiting + self._next_waiting]
        self._waiting, self._next_waiting = [], []
        self._is_dirty = False
        return self._take()

    def _take_place(self, former: ConsumerMember, member_id: str) -> ConsumerMember:
        """Let a static member that comes back have what it left, under its new id."""
        self._forget(former)
        member = msgspec.structs.replace(
            former,
            member_id=member_id,
            epoch=JOINING_EPOCH,
            previous_epoch=JOINING_EPOCH,
        )
        self._put(member)
        return member

    # -- members and targets -----------------------------------------------------------------------

    def _put(self, member: ConsumerMember) -> None:
        member_id = member.member_id
        known = self.members.get(member_id)
        if known is None or known.owned != member.owned:
            self._own(member_id, NONE if known is None else known.owned, member.owned)
        self._subscribe(None if known is None else known.subscription, member.subscription)
        self.members[member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member_id
        self._removed.pop(member_id, None)
        self._dirty[member_id] = None
        self._is_dirty = True

    def _forget(self, member: ConsumerMember) -> None:
        member_id = member.member_id
        del self.members[member_id]
        if member.instance_id is not None and self.statics.get(member.instance_id) == member_id:
            del self.statics[member.instance_id]
        self._own(member_id, member.owned, NONE)
        self._subscribe(member.subscription, None)
        self._dirty.pop(member_id, None)
        self._removed[member_id] = None
        self._is_dirty = True
        self._effects += [CancelTimer(Timer(kind, member_id)) for kind in _TIMERS]
        self._awaited -= {Timer(kind, member_id) for kind in _TIMERS}

    def _subscribe(self, before: Subscription | None, after: Subscription | None) -> None:
        if before == after:
            return
        counts = self._subscriptions
        if after is not None:
            counts[after] = counts.get(after, 0) + 1
        if before is not None:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]

    def _own(self, member_id: str, before: Partitions, after: Partitions) -> None:
        owners = self._owners
        for topic_id, numbers in partitions.minus(before, after).items():
            for number in numbers:
                if owners.get((topic_id, number)) == member_id:
                    del owners[topic_id, number]
        for topic_id, numbers in partitions.minus(after, before).items():
            for number in numbers:
                owners[topic_id, number] = member_id

    def _bump(self) -> None:
        if self.epoch == self.target_epoch:
            self.epoch += 1
        self._is_dirty = True

    def _make_target(self, catalog: Catalog) -> None:
        self._look_at(catalog)
        if self.epoch > self.target_epoch and not self._rests:
            self._assign()

    def _step(self, member: ConsumerMember, *, reported: Partitions | None) -> ConsumerMember:
        member_id = member.member_id
        return next_step(
            member,
            target_epoch=self.target_epoch,
            reported=reported,
            is_free=lambda topic_id, number: (
                self._owners.get((topic_id, number), member_id) == member_id
            ),
        )

    def _look_at(self, catalog: Catalog) -> None:
        """Begin an epoch if the topics that members subscribe to are others, or have others."""
        if catalog.generation != self._catalog_generation:
            self._catalog_generation = catalog.generation
        elif self.epoch == self.target_epoch:
            return
        counts = self._resolve(catalog)
        if counts != self._counts:
            self._counts = counts
            self._bump()

    def _resolve(self, catalog: Catalog) -> dict[bytes, int]:
        """Look up what members subscribe to. Returns: the topics' partition counts."""
        self._resolved.clear()
        counts: dict[bytes, int] = {}
        for subscription in self._subscriptions:
            names = {*subscription.topics}
            if subscription.regex:
                names |= catalog.matching(subscription.regex)
            shapes = [shape for name in names if (shape := catalog.shape(name)) is not None]
            self._resolved[subscription] = frozenset(shape.topic_id for shape in shapes)
            counts.update((shape.topic_id, shape.partitions) for shape in shapes)
        return counts

    def _assign(self) -> None:
        """Make a target for the present epoch."""
        subscribers = [
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topic_ids=self._resolved[member.subscription],
                before=member.target,
            )
            for member in self.members.values()
        ]
        targets = ASSIGNORS[self.assignor](subscribers, self._counts)
        for member_id, target in targets.items():
            member = self.members[member_id]
            if member.target != target:
                self._put(msgspec.structs.replace(member, target=target))
        self.target_epoch = self.epoch
        self._is_dirty = True
        rest_ms = self._rest_ms()
        if rest_ms:
            self._rests = True
            self._effects.append(SetTimer(REST_TIMER, rest_ms))

    def _rest_ms(self) -> int:
        """Return how long the group rests after a target."""
        configured = self._configs().get(CONSUMER_ASSIGNMENT_INTERVAL)
        if configured is not None:
            return int(configured)
        return REST_MS if len(self.members) >= RESTS_FROM else 0

    # -- effects -----------------------------------------------------------------------------------

    def _begin_session(self, member: ConsumerMember) -> None:
        timer = Timer("session", member.member_id)
        if member.classic is not None:
            self._effects.append(SetTimer(timer, member.classic.session_timeout_ms))
            return
        configured = self._configs().get(CONSUMER_SESSION)
        timeout_ms = (
            self._settings.consumer_session_timeout_ms if configured is None else int(configured)
        )
        self._effects.append(SetTimer(timer, timeout_ms))

    def _begin_or_end_revocation(self, before: ConsumerMember, after: ConsumerMember) -> None:
        """Time what a member has to give up, from when it hears so."""
        if after.state is not MemberState.UNREVOKED:
            if before.state is MemberState.UNREVOKED:
                self._effects.append(CancelTimer(Timer("rebalance", after.member_id)))
        elif before.state is not MemberState.UNREVOKED or after.revoking != before.revoking:
            self._begin_revocation(after)

    def _begin_revocation(self, member: ConsumerMember) -> None:
        timer = Timer("rebalance", member.member_id)
        self._effects.append(SetTimer(timer, max(0, member.rebalance_timeout_ms)))

    def _reply(self, reply: Reply) -> None:
        if self._is_dirty:
            self._next_waiting.append(reply)
        elif self._saving:
            # It may be made of what is under way to the journal.
            self._waiting.append(reply)
        else:
            self._effects.append(reply)

    def _take(self) -> list[Effect]:
        if self._is_dirty and not self._saving and not self.is_dead:
            self._save()
        effects, self._effects = self._effects, []
        return effects

    def _save(self) -> None:
        self._save_count += 1
        self._saving, self._is_dirty = True, False
        self._waiting, self._next_waiting = self._next_waiting, []
        dirty, self._dirty = self._dirty, {}
        removed, self._removed = self._removed, {}
        self._effects.append(
            SaveMembers(
                save=self._save_count,
                epoch=self.epoch,
                target_epoch=self.target_epoch,
                counts=self._counts,
                is_empty=not self.members,
                rows={member_id: encode_member(self.members[member_id]) for member_id in dirty},
                removed=tuple(removed),
                is_whole=self._is_whole,
            )
        )
        self._is_whole = False


def updated(member: ConsumerMember, beat: Heartbeat) -> ConsumerMember:
    """Return the member with what a heartbeat says of it."""
    old = member.subscription
    subscription = Subscription(
        topics=old.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
        regex=old.regex if beat.regex is None else beat.regex,
        assignor=old.assignor if beat.assignor is None else beat.assignor,
        rack=old.rack if beat.rack is None else beat.rack,
    )
    timeout_ms = beat.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        subscription=subscription,
        client_id=beat.client_id,
        client_host=beat.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
    )
