"""The machine of one consumer group of KIP-848: heartbeats in, effects out. Pure.

docs/consumer-groups.md says what each event does. The members are in `roster`, what the classic
ones among them ask for in `classic_members`.

Source: KIP-848, and what a broker of Kafka 4.3 answers.
"""

import msgspec

from penstock.groups.consumer import partitions
from penstock.groups.consumer.classic_members import REJOIN, SYNC, ClassicMembers
from penstock.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
)
from penstock.groups.consumer.member_commits import MemberCommits
from penstock.groups.consumer.messages import Catalog, Effect, Heartbeat, HeartbeatReply
from penstock.groups.consumer.partitions import NONE
from penstock.groups.consumer.roster import REST_TIMER, updated
from penstock.groups.consumer.validation import refused
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, Timer


class ConsumerGroup(MemberCommits[ConsumerMember], ClassicMembers):
    """One group. Made empty; `restore` gives back what is journaled of it."""

    __slots__ = ()

    def heartbeat(self, request: int, beat: Heartbeat, catalog: Catalog) -> list[Effect]:
        """A member joins, lives or leaves."""
        if self.is_dead:
            reply = HeartbeatReply(error=GroupError.COORDINATOR_NOT_AVAILABLE)
            return [Reply(request, reply)]
        refusal = refused(beat, self._regex_fault)
        if refusal is not None:
            reply = refusal
        elif beat.epoch in {LEAVING_EPOCH, STATIC_LEAVING_EPOCH}:
            reply = self._leave(beat)
        else:
            reply = self._live(beat, catalog)
        self._reply(Reply(request, reply))
        if beat.epoch == LEAVING_EPOCH and reply.error is GroupError.NONE:
            self._members_gone()
        return self._take()

    def check_epoch(self, member_id: str, epoch: int) -> GroupError:
        """Compare the epoch that a member names with its own."""
        member = self.members.get(member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if member.epoch == epoch:
            return GroupError.NONE
        is_classic = member.classic is not None
        return GroupError.ILLEGAL_GENERATION if is_classic else GroupError.STALE_MEMBER_EPOCH

    def timer_fired(self, timer: Timer) -> list[Effect]:
        """A timer's time has passed."""
        if timer == REST_TIMER:
            # The next heartbeat of any member makes the target.
            self._rests = False
            return []
        member = self.members.get(timer.member_id)
        if member is None or self.is_dead:
            return []
        # A member that has not given its partitions up in time keeps others from working.
        if timer.kind != "rebalance" or member.state is MemberState.UNREVOKED:
            self._forget(member)
            self._members_gone()
        return self._take()

    def session_passed_unheard(self, member_id: str) -> None:
        """A member could not be heard: its session begins again, and nothing is to be known."""

    # -- a heartbeat -----------------------------------------------------------------------------

    def _leave(self, beat: Heartbeat) -> HeartbeatReply:
        member = self._known(beat)
        if isinstance(member, HeartbeatReply):
            return member
        if beat.epoch == STATIC_LEAVING_EPOCH:
            # What it had to give up, it no longer reads; the rest waits for its next life.
            self._speaks_kip_848(member)
            left = msgspec.structs.replace(
                member,
                epoch=STATIC_LEAVING_EPOCH,
                state=MemberState.STABLE,
                revoking=NONE,
                classic=None,
            )
            self._put(left)
            self._effects.append(CancelTimer(Timer("rebalance", member.member_id)))
        else:
            self._forget(member)
        return HeartbeatReply(member_id=beat.member_id, epoch=beat.epoch)

    def _live(self, beat: Heartbeat, catalog: Catalog) -> HeartbeatReply:
        joins = beat.epoch == JOINING_EPOCH
        found = self._joining(beat) if joins else self._known(beat)
        if isinstance(found, HeartbeatReply):
            return found
        before = found
        self._speaks_kip_848(before)
        member = msgspec.structs.replace(updated(before, beat), classic=None)
        if member.subscription != before.subscription or before.member_id not in self.members:
            self._bump()
        if member != before or before.member_id not in self.members:
            self._put(member)
        self._make_target(catalog)
        member = self.members[beat.member_id]
        # A member that joins has nothing, whatever it had in a former life.
        after = self._step(member, reported=NONE if joins else beat.owned)
        if after != member:
            self._put(after)
        self._begin_session(after)
        self._begin_or_end_revocation(before, after)
        says_all = joins or beat.is_full or after.assigned != before.assigned
        return HeartbeatReply(
            member_id=after.member_id,
            epoch=after.epoch,
            assigned=after.assigned if says_all else None,
        )

    def _speaks_kip_848(self, member: ConsumerMember) -> None:
        """A classic member sends heartbeats of KIP-848: it neither joins nor syncs any more."""
        if member.classic is not None:
            self._arrived(REJOIN, member)
            self._arrived(SYNC, member)

    def _known(self, beat: Heartbeat) -> ConsumerMember | HeartbeatReply:
        """Find the member of a heartbeat that doesn't join."""
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            holder = self.statics.get(beat.instance_id)
            if holder is None:
                message = f"Instance id {beat.instance_id} is unknown."
                return HeartbeatReply(error=GroupError.UNKNOWN_MEMBER_ID, message=message)
            if holder != beat.member_id:
                message = (
                    f"Static member {beat.member_id} with instance id {beat.instance_id} was fenced"
                    f" by member {holder}."
                )
                return HeartbeatReply(error=GroupError.FENCED_INSTANCE_ID, message=message)
        if member is None:
            message = f"Member {beat.member_id} is not a member of group {self.group_id}."
            return HeartbeatReply(error=GroupError.UNKNOWN_MEMBER_ID, message=message)
        if beat.epoch < 0 or beat.epoch == member.epoch:
            return member
        # An answer was lost: what the member has is then part of what it was given since.
        is_previous = beat.epoch == member.previous_epoch and beat.owned is not None
        if is_previous and not partitions.minus(beat.owned or NONE, member.assigned):
            return member
        relation = "smaller" if beat.epoch < member.epoch else "greater"
        message = (
            f"The consumer group member has a {relation} member epoch ({beat.epoch}) than the one"
            f" known by the group coordinator ({member.epoch}). The member must abandon all its"
            " partitions and rejoin."
        )
        return HeartbeatReply(error=GroupError.FENCED_MEMBER_EPOCH, message=message)

    def _joining(self, beat: Heartbeat) -> ConsumerMember | HeartbeatReply:
        """Find the member that joins, or make it."""
        known = self.members.get(beat.member_id)
        if known is not None:
            return known
        holder = None if beat.instance_id is None else self.statics.get(beat.instance_id)
        if holder is not None:
            former = self.members[holder]
            if former.classic is None and former.epoch != STATIC_LEAVING_EPOCH:
                message = (
                    f"Static member {beat.member_id} with instance id {beat.instance_id} cannot"
                    f" join the group because the instance id is owned by {holder} member."
                )
                return HeartbeatReply(error=GroupError.UNRELEASED_INSTANCE_ID, message=message)
            return self._take_place(former, beat.member_id)
        if len(self.members) >= self._settings.consumer_size_max:
            message = (
                f"The consumer group has reached its maximum capacity of"
                f" {self._settings.consumer_size_max} members."
            )
            return HeartbeatReply(error=GroupError.GROUP_MAX_SIZE_REACHED, message=message)
        return ConsumerMember(member_id=beat.member_id, instance_id=beat.instance_id)
