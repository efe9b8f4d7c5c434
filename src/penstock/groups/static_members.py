"""Static members that come back without their id and take their own place (KIP-345). Pure."""

from dataclasses import dataclass

from penstock.groups.errors import GroupError
from penstock.groups.generations import Generations, GroupState
from penstock.groups.member import Member
from penstock.groups.messages import CancelTimer, JoinReply, JoinRequest, Protocol, Reply, Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A join that waits for the journal, with what is put back if that fails."""

    request: int
    member: Member
    may_skip_assignment: bool
    old_id: str
    old_leader: str
    old_protocols: tuple[Protocol, ...]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int


class StaticMembers(Generations):
    """A member's next process has the same instance id and a new member id."""

    __slots__ = ()

    def _replace(self, request: int, join: JoinRequest, old_id: str) -> None:
        """A static member has come back without its id: it takes its own place (KIP-345)."""
        old_leader = self.roster.leader
        member = self._member(old_id)
        self._end_join(member, GroupError.FENCED_INSTANCE_ID)
        self._end_sync(member, GroupError.FENCED_INSTANCE_ID)
        self.roster.rename(old_id, join.new_member_id)
        if old_id in self._pending_sync:
            self._pending_sync.remove(old_id)
            self._pending_sync.add(join.new_member_id)
        replacement = Replacement(
            request=request,
            member=member,
            may_skip_assignment=join.may_skip_assignment,
            old_id=old_id,
            old_leader=old_leader,
            old_protocols=member.protocols,
            old_session_timeout_ms=member.session_timeout_ms,
            old_rebalance_timeout_ms=member.rebalance_timeout_ms,
        )
        self._update(request, join, member)
        member.client_id, member.client_host = join.client_id, join.client_host
        self._effects.append(CancelTimer(Timer("session", old_id)))
        self._begin_session(member)
        if self.state is GroupState.STABLE:
            if self.roster.select_protocol() == self.protocol_name:
                self._save(
                    {one.member_id: one.assignment for one in self.roster},
                    lambda error: self._replacement_saved(replacement, error),
                )
                return
            self._prepare()
        elif self.state is GroupState.COMPLETING:
            # The leader may have got the old id, so its assignment would miss the new.
            self._prepare()
        else:
            self._complete_if_all_joined()

    def _replacement_saved(self, waiting: Replacement, error: GroupError) -> None:
        member = waiting.member
        current = self.roster.get(member.member_id) is member
        if (
            not current
            or self.state is not GroupState.STABLE
            or member.join_request != waiting.request
        ):
            # A rebalance has begun meanwhile, or a later join of the same instance: the join was
            # answered, or will be.
            return
        if error is not GroupError.NONE:
            # No id goes along: the new one is taken back.
            self._effects.append(Reply(waiting.request, JoinReply(error=error)))
            self._take_back(waiting)
            return
        leads = member.member_id == self.roster.leader
        request, member.join_request = waiting.request, None
        if waiting.may_skip_assignment:
            self._reply_generation(request, member, skip_assignment=leads)
        else:
            # With its old id as the leader, it takes itself for a follower and does not
            # assign again, which would be a rebalance.
            self._reply_generation(request, member, leader=waiting.old_leader)
        self._begin_session(member)

    def _take_back(self, failed: Replacement) -> None:
        member = failed.member
        member.join_request = None
        new_id = member.member_id
        self.roster.rename(new_id, failed.old_id)
        self.roster.leader = failed.old_leader
        member.protocols = failed.old_protocols
        member.session_timeout_ms = failed.old_session_timeout_ms
        member.rebalance_timeout_ms = failed.old_rebalance_timeout_ms
        self._effects.append(CancelTimer(Timer("session", new_id)))
        self._begin_session(member)
