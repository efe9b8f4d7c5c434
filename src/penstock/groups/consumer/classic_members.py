"""The classic members of a consumer group of KIP-848: they go on by JoinGroup, SyncGroup and
Heartbeat, inside a group whose server assigns. Pure.

A JoinGroup is a heartbeat that says what the member subscribes to and what it has; the answer's
generation is the member's epoch, and the SyncGroup that follows is answered what it may read. A
Heartbeat is answered REBALANCE_IN_PROGRESS where the member has to join again.

Source: KIP-848, "Online Migration"; GroupMetadataManager of Kafka 4.3.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from penstock.groups.consumer.member import ConsumerMember, MemberState
from penstock.groups.consumer.messages import (
    BecomeClassic,
    Catalog,
    ClassicJoin,
    Effect,
    HeartbeatReply,
)
from penstock.groups.consumer.partitions import NONE
from penstock.groups.consumer.roster import ConsumerRoster, updated
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import (
    CancelTimer,
    Leaver,
    LeaveResult,
    Reply,
    SetTimer,
    SyncRequest,
    Timer,
)
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.state.commands import MEMBERS_MAX

REJOIN: Final = "rejoin"
"""Timer of a member that has to join again, and has not yet."""
SYNC: Final = "sync"
"""Timer of a member that has joined, and has not asked for its partitions yet."""


class ClassicMembers(ConsumerRoster):
    """See the module."""

    __slots__ = ()

    def take_over(
        self,
        *,
        epoch: int,
        members: Iterable[ConsumerMember],
        catalog: Catalog,
    ) -> list[Effect]:
        """Take a classic group's members over, in the generation that they are in."""
        effects = self.restore(
            epoch=epoch, target_epoch=epoch, counts={}, members=members, is_partial=False
        )
        counts = self._resolve(catalog)
        if len(self._owners) == sum(counts.values()):
            # All have their readers: a static member that comes back may go on in this epoch.
            self._counts = counts
        self._dirty = dict.fromkeys(self.members)
        self._is_dirty = self._is_whole = True
        return [*effects, *self._take()]

    def join_classic(self, request: int, join: ClassicJoin, catalog: Catalog) -> list[Effect]:
        """A classic member joins, or joins again; the answer's epoch is its generation."""
        beat = join.beat
        before = self.members.get(self.statics.get(beat.instance_id or "", beat.member_id))
        reply = self._join_classic(join, catalog)
        self._reply(Reply(request, reply))
        # Perhaps it took the place of the last member of the other protocol.
        is_replaced = before is not None and before.classic is None
        if reply.error is GroupError.NONE and is_replaced and self._may_downgrade:
            self._ends = True
        return self._take()

    def sync_classic(self, request: int, sync: SyncRequest) -> list[Effect]:
        """A classic member asks for its partitions."""
        self._reply(Reply(request, self._sync_classic(sync)))
        return self._take()

    def heartbeat_classic(
        self, member_id: str, instance_id: str | None, generation: int, catalog: Catalog
    ) -> tuple[GroupError, list[Effect]]:
        """A classic member lives; it hears that it is to join again once its partitions are to
        be others, or what it waits for is free."""
        error = self._check_classic(member_id, instance_id, generation)
        if error is not GroupError.NONE:
            return error, []
        self._make_target(catalog)
        member = self.members[member_id]
        self._begin_session(member)
        # One that has to give something up is in an older epoch, too.
        if member.epoch < self.epoch or (
            member.state is MemberState.UNRELEASED and self._gets_all(member)
        ):
            self._await(REJOIN, member)
            error = GroupError.REBALANCE_IN_PROGRESS
        return error, self._take()

    def leave_classic(self, leavers: list[Leaver]) -> tuple[list[LeaveResult], list[Effect]]:
        """Members leave by LeaveGroup, or are removed by an administrator."""
        results = [LeaveResult(*leaver, self._leave_one(leaver)) for leaver in leavers]
        if any(result.error is GroupError.NONE for result in results):
            self._members_gone()
        return results, self._take()

    # -- joining and leaving -----------------------------------------------------------------------

    def _join_classic(self, join: ClassicJoin, catalog: Catalog) -> HeartbeatReply:
        before = self._joining_classic(join)
        if isinstance(before, GroupError):
            return HeartbeatReply(error=before)
        beat = join.beat
        is_new = before.member_id not in self.members
        member = replace(updated(before, beat), classic=join.part)
        if is_new or member.subscription != before.subscription:
            self._bump()
        if is_new or member != before:
            self._put(member)
        self._make_target(catalog)
        member = self.members[beat.member_id]
        after = self._step(member, reported=beat.owned)
        if after != member:
            self._put(after)
        self._begin_session(after)
        self._begin_or_end_revocation(before, after)
        self._arrived(REJOIN, after)
        self._await(SYNC, after)
        return HeartbeatReply(member_id=after.member_id, epoch=after.epoch)

    def _joining_classic(self, join: ClassicJoin) -> ConsumerMember | GroupError:
        """Find the member that joins, or make it."""
        beat = join.beat
        if self.is_dead:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        known = self.members.get(beat.member_id)
        if known is None and len(self.members) >= self._settings.consumer_size_max:
            return GroupError.GROUP_MAX_SIZE_REACHED
        if not self._knows_one_of({name for name, _ in join.part.protocols}):
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        holder = None if beat.instance_id is None else self.statics.get(beat.instance_id)
        if beat.instance_id is not None and not join.is_newcomer and holder is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if holder is not None and holder != beat.member_id:
            if not join.is_newcomer:
                return GroupError.FENCED_INSTANCE_ID
            # A static member's next process takes its place, as among classic members.
            return self._take_place(self.members[holder], beat.member_id)
        if known is not None:
            return known
        return ConsumerMember(member_id=beat.member_id, instance_id=beat.instance_id)

    def _knows_one_of(self, names: set[str]) -> bool:
        """Whether all classic members know one of these assignors, so that the group can become
        a classic one again."""
        for member in self.members.values():
            if member.classic is not None:
                names = names & {name for name, _ in member.classic.protocols}
        return bool(names)

    def _leave_one(self, leaver: Leaver) -> GroupError:
        if self.is_dead:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        member_id = leaver.member_id
        if leaver.instance_id is not None:
            holder = self.statics.get(leaver.instance_id)
            if holder is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if member_id and holder != member_id:
                return GroupError.FENCED_INSTANCE_ID
            member_id = holder
        member = self.members.get(member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        self._forget(member)
        return GroupError.NONE

    # -- syncs and heartbeats ----------------------------------------------------------------------

    def _sync_classic(self, sync: SyncRequest) -> HeartbeatReply:
        error = self._check_classic(sync.member_id, sync.instance_id, sync.generation)
        if error is not GroupError.NONE:
            return HeartbeatReply(error=error)
        member = self.members[sync.member_id]
        assert member.classic is not None
        if sync.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or (
            sync.protocol_name not in {None, member.classic.protocols[0][0]}
        ):
            return HeartbeatReply(error=GroupError.INCONSISTENT_GROUP_PROTOCOL)
        if self.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            # One that has to give something up first learns what it keeps.
            self._await(REJOIN, member)
            return HeartbeatReply(error=GroupError.REBALANCE_IN_PROGRESS)
        self._arrived(SYNC, member)
        self._begin_session(member)
        return HeartbeatReply(
            member_id=member.member_id, epoch=member.epoch, assigned=member.assigned
        )

    def _check_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError:
        if self.is_dead:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            holder = self.statics.get(instance_id)
            if holder is not None and holder != member_id:
                return GroupError.FENCED_INSTANCE_ID
            if holder is None:
                return GroupError.UNKNOWN_MEMBER_ID
        member = self.members.get(member_id)
        if member is None or member.classic is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return GroupError.NONE if generation == member.epoch else GroupError.ILLEGAL_GENERATION

    def _gets_all(self, member: ConsumerMember) -> bool:
        """Whether all that a member waits for is free."""
        return self._step(member, reported=NONE).state is MemberState.STABLE

    def _await(self, kind: str, member: ConsumerMember) -> None:
        """Give a classic member time to join or sync, from the first time that it hears so."""
        timer = Timer(kind, member.member_id)
        if timer not in self._awaited:
            self._awaited.add(timer)
            self._effects.append(SetTimer(timer, max(0, member.rebalance_timeout_ms)))

    def _arrived(self, kind: str, member: ConsumerMember) -> None:
        timer = Timer(kind, member.member_id)
        if timer in self._awaited:
            self._awaited.discard(timer)
            self._effects.append(CancelTimer(timer))

    # -- the group becomes a classic one -----------------------------------------------------------

    @property
    def _may_downgrade(self) -> bool:
        """Whether the group has members, all classic, and may become a classic group."""
        settings = self._settings
        count = len(self.members)
        return (
            settings.migration_policy.downgrades
            and 0 < count <= settings.size_max
            and count + len(self._removed) <= MEMBERS_MAX
            and all(member.classic is not None for member in self.members.values())
        )

    def _members_gone(self) -> None:
        """Give those that are left another target, or make the group a classic one.

        That one begins in the group's epoch, so that its members' generation goes on.
        """
        self._is_dirty = True
        if self._may_downgrade:
            self._ends = True
        else:
            self._bump()

    def _take(self) -> list[Effect]:
        # What is under way to the journal must not come there after the group that replaces this.
        if self._ends and not self._saving and not self.is_dead:
            self._ends = False
            if self._may_downgrade:
                self._become_classic()
            else:
                self._bump()
        return super()._take()

    def _become_classic(self) -> None:
        # A static member that took the place of one of the other protocol leaves nothing to do.
        is_whole = len(self._owners) == sum(self._counts.values())
        rebalances = self.state is not GroupState.STABLE or not is_whole
        replies, self._next_waiting = tuple(self._next_waiting), []
        removed = (*self.members, *self._removed)
        self.is_dead, self._is_dirty = True, False
        self._effects.append(BecomeClassic(replies, removed, rebalances))
