"""The machine of one classic consumer group: events in, effects out. Pure.

Every method that is an event returns the effects of it, to be carried out in that order. The
machine has no clock: it asks for timers by name and is told when one fires. docs/groups.md shows
it as a table.
Source: the group protocol of Kafka 4 as its clients see it; KIP-134, KIP-345, KIP-394, KIP-814.
"""

import enum
from typing import Final

from penstock.groups.durable import DurableGroup, DurableMember, encode_state
from penstock.groups.errors import GroupError
from penstock.groups.member import Member
from penstock.groups.messages import (
    JOIN_TIMER,
    SYNC_TIMER,
    CancelTimer,
    Effect,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveResult,
    Protocol,
    Reply,
    Save,
    SetTimer,
    SyncReply,
    SyncRequest,
    Timer,
)
from penstock.groups.roster import Roster
from penstock.groups.settings import GroupSettings
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics

_REPLACED: Final = GroupError.REBALANCE_IN_PROGRESS
"""What a waiting request gets that the same member's next one takes the place of."""


class GroupState(enum.Enum):
    """Where a group is; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class _Generation:
    """A save that a generation's syncs wait for: the leader's assignments, by member id."""

    __slots__ = ("assignments", "generation")

    def __init__(self, generation: int, assignments: dict[str, bytes]) -> None:
        self.generation = generation
        self.assignments = assignments


class _Replacement:
    """A save that a static member's join waits for, with what is put back if it fails."""

    __slots__ = ("before", "may_skip_assignment", "member", "old_id", "old_leader", "request")

    def __init__(
        self,
        request: int,
        member: Member,
        old_id: str,
        old_leader: str,
        *,
        may_skip_assignment: bool,
    ) -> None:
        self.request = request
        self.member = member
        self.old_id = old_id
        self.old_leader = old_leader
        self.may_skip_assignment = may_skip_assignment
        self.before = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)


class ClassicGroup:
    """One group. Made empty; `restore` gives the journaled generation back."""

    __slots__ = (
        "_effects",
        "_initial_left_ms",
        "_new_member_came",
        "_pending_members",
        "_pending_sync",
        "_save_count",
        "_saves",
        "_settings",
        "_was_empty",
        "generation",
        "group_id",
        "protocol_name",
        "protocol_type",
        "roster",
        "state",
    )

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name = ""
        self.roster = Roster()
        self._settings = settings
        self._effects: list[Effect] = []
        # Ids that were given out and whose members have not joined with them yet (KIP-394).
        self._pending_members: set[str] = set()
        # Members of this generation that have not synced yet.
        self._pending_sync: set[str] = set()
        # The present rebalance began in an empty group, so it waits for more members.
        self._was_empty = False
        self._new_member_came = False
        self._initial_left_ms = 0
        self._save_count = 0
        self._saves: dict[int, _Generation | _Replacement] = {}

    @property
    def is_idle(self) -> bool:
        """Nothing is in memory that the journal has not: no member, pending id or open save."""
        return not (self.roster or self._pending_members or self._saves)

    def topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None when that can't be known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        names: frozenset[str] = frozenset()
        for member in self.roster:
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            names |= subscribed
        return names

    def is_subscribed(self, topic_name: str) -> bool:
        """Whether a member reads that topic. Consumers whose subscription can't be read may."""
        if not self.roster:
            return False
        topics = self.topics()
        if topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic_name in topics

    # -- events --------------------------------------------------------------------------------

    def restore(self, generation: int, protocol_type: str, group: DurableGroup) -> list[Effect]:
        """Take up the journaled generation; its members have a full session timeout."""
        assert self.state is GroupState.EMPTY
        assert self.is_idle
        self.generation = generation
        self.protocol_type = protocol_type
        self.protocol_name = group.protocol_name
        for one in group.members:
            member = Member(
                member_id=one.member_id,
                instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                session_timeout_ms=one.session_timeout_ms,
                rebalance_timeout_ms=one.rebalance_timeout_ms,
                protocols=tuple(Protocol(*protocol) for protocol in one.protocols),
                assignment=one.assignment,
            )
            self.roster.add(member)
            self._begin_session(member)
        if self.roster:
            if group.leader in self.roster:
                self.roster.leader = group.leader
            self.state = GroupState.STABLE
        return self._take()

    def join(self, request: int, join: JoinRequest) -> list[Effect]:
        """A member asks to be in the next generation."""
        settings = self._settings
        if not (
            settings.session_timeout_ms_min
            <= join.session_timeout_ms
            <= settings.session_timeout_ms_max
        ):
            self._refuse_join(request, join, GroupError.INVALID_SESSION_TIMEOUT)
        elif self.state is GroupState.DEAD:
            self._refuse_join(request, join, GroupError.COORDINATOR_NOT_AVAILABLE)
        elif not self._accepts(join.member_id):
            self._refuse_join(request, None, GroupError.GROUP_MAX_SIZE_REACHED)
            self._pending_members.discard(join.member_id)
            if join.member_id in self.roster:
                self._drop(join.member_id)
            elif join.member_id:
                self._effects.append(CancelTimer(Timer("session", join.member_id)))
            self._complete_if_all_joined()
        elif not self._supports(join):
            self._refuse_join(request, join, GroupError.INCONSISTENT_GROUP_PROTOCOL)
        elif not join.member_id:
            self._join_new(request, join)
        elif join.member_id in self._pending_members and join.instance_id is None:
            self._add(request, join, join.member_id)
        else:
            self._join_known(request, join)
        return self._take()

    def sync(self, request: int, sync: SyncRequest) -> list[Effect]:
        """A member asks for its assignment; the leader brings everybody's."""
        error = self._check(sync.member_id, sync.instance_id, sync.generation)
        if error is GroupError.NONE:
            if self.state is GroupState.PREPARING:
                error = GroupError.REBALANCE_IN_PROGRESS
            elif sync.protocol_type not in {None, self.protocol_type} or (
                sync.protocol_name not in {None, self.protocol_name}
            ):
                error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        if error is not GroupError.NONE:
            self._effects.append(Reply(request, SyncReply(error=error)))
            return self._take()
        member = self._member(sync.member_id)
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._effects.append(CancelTimer(SYNC_TIMER))
        if self.state is GroupState.STABLE:
            self._reply_assignment(request, member)
        else:
            self._end_sync(member, _REPLACED)
            member.sync_request = request
            if member.member_id == self.roster.leader and not self._is_saving_generation():
                self._save(_Generation(self.generation, sync.assignments), sync.assignments)
        return self._take()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[GroupError, list[Effect]]:
        """A member lives."""
        error = self._check(member_id, instance_id, generation)
        if error is not GroupError.NONE:
            return error, []
        self._begin_session(self._member(member_id))
        if self.state is GroupState.PREPARING:
            error = GroupError.REBALANCE_IN_PROGRESS
        return error, self._take()

    def leave(self, leavers: list[Leaver]) -> tuple[list[LeaveResult], list[Effect]]:
        """Members leave, or are removed by an administrator who names their instance ids."""
        if self.state is GroupState.DEAD:
            error = GroupError.COORDINATOR_NOT_AVAILABLE
            return [LeaveResult(*leaver, error) for leaver in leavers], []
        results = [LeaveResult(*leaver, self._leave_one(leaver)) for leaver in leavers]
        if any(result.error is GroupError.NONE for result in results):
            self._members_gone()
        return results, self._take()

    def commit(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        """Whether such a commit of offsets is allowed now; `commit_seen` follows when it is.

        Generation -1 without a member is a simple consumer's or an administrator's.
        """
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return GroupError.NONE
        if generation < 0 and not member_id and instance_id is None:
            return GroupError.UNKNOWN_MEMBER_ID
        error = self._check(member_id, instance_id, generation)
        if error is GroupError.NONE and self.state is GroupState.COMPLETING:
            error = GroupError.REBALANCE_IN_PROGRESS
        return error

    def commit_seen(self, member_id: str) -> list[Effect]:
        """A commit is a sign of life as well."""
        member = self.roster.get(member_id)
        if member is not None and self.state in {GroupState.STABLE, GroupState.PREPARING}:
            self._begin_session(member)
        return self._take()

    def timer_fired(self, timer: Timer) -> list[Effect]:
        """A timer's time has passed."""
        if self.state is GroupState.DEAD:
            return []
        if timer.kind == "session":
            self._session_ended(timer.member_id)
        elif timer == SYNC_TIMER:
            self._syncs_missing()
        elif self.state is GroupState.PREPARING:
            if self._new_member_came and self._initial_left_ms > 0:
                self._wait_for_more()
            else:
                self._complete_join()
        return self._take()

    def saved(self, save: int, error: GroupError) -> list[Effect]:
        """The journal has answered a `Save`."""
        waiting = self._saves.pop(save, None)
        if isinstance(waiting, _Generation):
            self._generation_saved(waiting, error)
        elif isinstance(waiting, _Replacement):
            self._replacement_saved(waiting, error)
        return self._take()

    def end(self, error: GroupError) -> list[Effect]:
        """The group is served here no more (deleted, moved, or the server ends): answer all."""
        self.state = GroupState.DEAD
        for member_id in [member.member_id for member in self.roster]:
            self._drop(member_id, error)
        for member_id in self._pending_members:
            self._effects.append(CancelTimer(Timer("session", member_id)))
        self._pending_members.clear()
        self._saves.clear()
        self._effects += [CancelTimer(JOIN_TIMER), CancelTimer(SYNC_TIMER)]
        return self._take()

    # -- joining -------------------------------------------------------------------------------

    def _accepts(self, member_id: str) -> bool:
        # While a rebalance gathers members, those that have joined count, so that the last to
        # come back are left out after the limit was lowered.
        size_max = self._settings.size_max
        if self.state is GroupState.EMPTY:
            return True
        member = self.roster.get(member_id)
        if self.state is GroupState.PREPARING:
            joined = member is not None and member.join_request is not None
            return joined or self.roster.joined_count < size_max
        return member is not None or len(self.roster) < size_max

    def _supports(self, join: JoinRequest) -> bool:
        if not join.protocol_type or not join.protocols:
            return False
        if not self.roster:
            return self.state is GroupState.EMPTY or join.protocol_type == self.protocol_type
        return join.protocol_type == self.protocol_type and self.roster.knows_one_of(join.protocols)

    def _join_new(self, request: int, join: JoinRequest) -> None:
        old_id = self.roster.member_of_instance(join.instance_id)
        if old_id is not None:
            self._replace(request, join, old_id)
        elif join.id_required and join.instance_id is None:
            self._pending_members.add(join.new_member_id)
            self._effects += [
                SetTimer(Timer("session", join.new_member_id), join.session_timeout_ms),
                Reply(
                    request,
                    JoinReply(error=GroupError.MEMBER_ID_REQUIRED, member_id=join.new_member_id),
                ),
            ]
        else:
            self._add(request, join, join.new_member_id)

    def _join_known(self, request: int, join: JoinRequest) -> None:
        error = self._check_identity(join.member_id, join.instance_id)
        if error is not GroupError.NONE:
            self._refuse_join(request, join, error)
            return
        member = self._member(join.member_id)
        # The leader may have seen new partitions, which its own protocols don't show; in every
        # other case the same protocols mean that it has only missed the answer.
        leads_stable = self.state is GroupState.STABLE and member.member_id == self.roster.leader
        unchanged = join.protocols == member.protocols and not leads_stable
        if self.state is not GroupState.PREPARING and unchanged:
            self._reply_generation(request, member)
            return
        self._update(request, join, member)
        self._rebalance_or_complete()

    def _add(self, request: int, join: JoinRequest, member_id: str) -> None:
        self._pending_members.discard(member_id)
        member = Member(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            is_new=True,
            join_request=request,
        )
        if not self.roster:
            self.protocol_type = join.protocol_type
        if self.state is GroupState.PREPARING and self._was_empty:
            self._new_member_came = True
        self.roster.add(member)
        # It has no session before it knows its id; but clients that gave up and came back under
        # another id must not pile up in a long rebalance.
        self._effects.append(
            SetTimer(Timer("session", member_id), self._settings.new_member_join_timeout_ms)
        )
        self._rebalance_or_complete()

    def _update(self, request: int, join: JoinRequest, member: Member) -> None:
        self._end_join(member, _REPLACED)
        member.join_request = request
        member.protocols = join.protocols
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms

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
        replacement = _Replacement(
            request, member, old_id, old_leader, may_skip_assignment=join.may_skip_assignment
        )
        self._update(request, join, member)
        member.client_id, member.client_host = join.client_id, join.client_host
        self._effects.append(CancelTimer(Timer("session", old_id)))
        self._begin_session(member)
        if self.state is GroupState.STABLE:
            if self.roster.select_protocol() == self.protocol_name:
                self._save(replacement, {m.member_id: m.assignment for m in self.roster})
                return
            self._prepare()
        elif self.state is GroupState.COMPLETING:
            # The leader may have been told of the old id, so its assignment would miss the new.
            self._prepare()
        else:
            self._complete_if_all_joined()

    def _replacement_saved(self, waiting: _Replacement, error: GroupError) -> None:
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
            member.join_request = None
            new_id = member.member_id
            self.roster.rename(new_id, waiting.old_id)
            self.roster.leader = waiting.old_leader
            member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms = (
                waiting.before
            )
            self._effects.append(CancelTimer(Timer("session", new_id)))
            self._begin_session(member)
            return
        leads = member.member_id == self.roster.leader
        request, member.join_request = waiting.request, None
        if waiting.may_skip_assignment:
            self._reply_generation(request, member, skip_assignment=leads)
        else:
            # Told of its old id as the leader, it takes itself for a follower and does not
            # assign anew, which would be a rebalance.
            self._reply_generation(request, member, leader=waiting.old_leader)
        self._begin_session(member)

    # -- rebalancing ---------------------------------------------------------------------------

    def _rebalance_or_complete(self) -> None:
        if self.state is GroupState.PREPARING:
            self._complete_if_all_joined()
        else:
            self._prepare()

    def _prepare(self) -> None:
        """Ask all members to join again."""
        if self.state is GroupState.COMPLETING:
            for member in self.roster:
                member.assignment = b""
                self._end_sync(member, GroupError.REBALANCE_IN_PROGRESS)
        self._pending_sync.clear()
        self._effects.append(CancelTimer(SYNC_TIMER))
        self._was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        if self._was_empty:
            self._new_member_came = False
            self._initial_left_ms = self.roster.rebalance_timeout_ms
            self._wait_for_more()
        elif self._all_joined():
            self._complete_join()
        else:
            self._effects.append(SetTimer(JOIN_TIMER, self.roster.rebalance_timeout_ms))

    def _wait_for_more(self) -> None:
        """Give the first members of a group time to come together (KIP-134)."""
        self._new_member_came = False
        delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
        self._initial_left_ms -= delay_ms
        self._effects.append(SetTimer(JOIN_TIMER, delay_ms))

    def _all_joined(self) -> bool:
        return not self._pending_members and self.roster.joined_count == len(self.roster)

    def _complete_if_all_joined(self) -> None:
        # In a group that was empty everybody there has joined; it is others that it waits for.
        if self.state is GroupState.PREPARING and not self._was_empty and self._all_joined():
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with those that have joined, and static members."""
        self._effects.append(CancelTimer(JOIN_TIMER))
        for member in list(self.roster):
            if member.join_request is None and member.instance_id is None:
                self._drop(member.member_id)
        if self.roster and not self.roster.elect_joined_leader():
            # Only static members that are away: wait until they come or their sessions end.
            self._effects.append(SetTimer(JOIN_TIMER, self.roster.rebalance_timeout_ms))
            return
        self._was_empty = False
        self.generation += 1
        self._pending_sync.clear()
        if not self.roster:
            self.state = GroupState.EMPTY
            self.protocol_name = ""
            self._save(None, {})
            return
        self.state = GroupState.COMPLETING
        self.protocol_name = self.roster.select_protocol()
        for member in self.roster:
            self._pending_sync.add(member.member_id)
            member.is_new = False
            request, member.join_request = member.join_request, None
            if request is not None:
                self._reply_generation(request, member)
            self._begin_session(member)
        self._effects.append(SetTimer(SYNC_TIMER, self.roster.rebalance_timeout_ms))

    def _generation_saved(self, waiting: _Generation, error: GroupError) -> None:
        if self.state is not GroupState.COMPLETING or waiting.generation != self.generation:
            # Members have come or gone meanwhile, and the syncs were told so.
            return
        if error is not GroupError.NONE:
            for member in self.roster:
                self._end_sync(member, error)
            self._prepare()
            return
        self.state = GroupState.STABLE
        for member in self.roster:
            member.assignment = waiting.assignments.get(member.member_id, b"")
            if member.sync_request is not None:
                request, member.sync_request = member.sync_request, None
                self._reply_assignment(request, member)

    def _is_saving_generation(self) -> bool:
        return any(
            isinstance(waiting, _Generation) and waiting.generation == self.generation
            for waiting in self._saves.values()
        )

    def _syncs_missing(self) -> None:
        """Members that never asked for their assignment are taken for gone."""
        if self.state not in {GroupState.COMPLETING, GroupState.STABLE} or not self._pending_sync:
            return
        for member_id in sorted(self._pending_sync):
            if member_id in self.roster:
                self._drop(member_id)
        self._prepare()

    # -- members going -------------------------------------------------------------------------

    def _session_ended(self, member_id: str) -> None:
        if member_id in self._pending_members:
            self._pending_members.remove(member_id)
            self._complete_if_all_joined()
            return
        member = self.roster.get(member_id)
        if member is None or member.waits:
            # The answer to what it waits for begins its session anew.
            return
        self._drop(member_id)
        self._members_gone()

    def _leave_one(self, leaver: Leaver) -> GroupError:
        member_id = leaver.member_id
        if not member_id:
            found = self.roster.member_of_instance(leaver.instance_id)
            if found is None:
                return GroupError.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id in self._pending_members:
            self._pending_members.remove(member_id)
            self._effects.append(CancelTimer(Timer("session", member_id)))
            return GroupError.NONE
        else:
            error = self._check_identity(member_id, leaver.instance_id)
            if error is not GroupError.NONE:
                return error
        self._drop(member_id)
        return GroupError.NONE

    def _members_gone(self) -> None:
        if self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare()
        elif self.state is GroupState.PREPARING and self._all_joined():
            # Also when it began empty: who has waited and gone was all that it had, or the rest
            # need not wait longer than for those who are still there.
            if self.roster and self._was_empty:
                return
            self._complete_join()

    def _drop(self, member_id: str, error: GroupError = GroupError.UNKNOWN_MEMBER_ID) -> Member:
        member = self.roster.remove(member_id)
        self._pending_sync.discard(member_id)
        self._end_join(member, error)
        self._end_sync(member, error)
        self._effects.append(CancelTimer(Timer("session", member_id)))
        return member

    # -- helpers -------------------------------------------------------------------------------

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _member(self, member_id: str) -> Member:
        member = self.roster.get(member_id)
        assert member is not None
        return member

    def _check_identity(self, member_id: str, instance_id: str | None) -> GroupError:
        if instance_id is not None:
            current = self.roster.member_of_instance(instance_id)
            if current is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if current != member_id:
                return GroupError.FENCED_INSTANCE_ID
        return GroupError.NONE if member_id in self.roster else GroupError.UNKNOWN_MEMBER_ID

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        error = self._check_identity(member_id, instance_id)
        if error is GroupError.NONE and generation != self.generation:
            error = GroupError.ILLEGAL_GENERATION
        return error

    def _begin_session(self, member: Member) -> None:
        self._effects.append(
            SetTimer(Timer("session", member.member_id), member.session_timeout_ms)
        )

    def _refuse_join(self, request: int, join: JoinRequest | None, error: GroupError) -> None:
        member_id = join.member_id if join is not None else ""
        self._effects.append(Reply(request, JoinReply(error=error, member_id=member_id)))

    def _end_join(self, member: Member, error: GroupError) -> None:
        if member.join_request is None:
            return
        request, member.join_request = member.join_request, None
        # An id that is unknown now is not repeated, so that the member asks for a new one.
        unknown = error is GroupError.UNKNOWN_MEMBER_ID
        reply = JoinReply(error=error, member_id="" if unknown else member.member_id)
        self._effects.append(Reply(request, reply))

    def _end_sync(self, member: Member, error: GroupError) -> None:
        if member.sync_request is None:
            return
        request, member.sync_request = member.sync_request, None
        self._effects.append(Reply(request, SyncReply(error=error)))
        # A session that ended while the sync waited was let pass.
        self._begin_session(member)

    def _reply_generation(
        self,
        request: int,
        member: Member,
        *,
        leader: str | None = None,
        skip_assignment: bool = False,
    ) -> None:
        shown_leader = self.roster.leader if leader is None else leader
        leads = member.member_id == shown_leader
        reply = JoinReply(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=shown_leader,
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=self.roster.joined_members(self.protocol_name) if leads else (),
        )
        self._effects.append(Reply(request, reply))

    def _reply_assignment(self, request: int, member: Member) -> None:
        reply = SyncReply(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )
        self._effects.append(Reply(request, reply))
        self._begin_session(member)

    def _save(
        self, waiting: _Generation | _Replacement | None, assignments: dict[str, bytes]
    ) -> None:
        self._save_count += 1
        if waiting is not None:
            self._saves[self._save_count] = waiting
        state = DurableGroup(
            self.protocol_name,
            self.roster.leader,
            [
                DurableMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    list(member.protocols),
                    assignments.get(member.member_id, b""),
                )
                for member in self.roster
            ],
        )
        self._effects.append(
            Save(
                self._save_count,
                self.generation,
                self.protocol_type,
                not self.roster,
                encode_state(state),
            )
        )
