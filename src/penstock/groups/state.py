"""The machine of one classic consumer group: events in, effects out. Pure.

Every method that is an event returns the effects of it, to be carried out in that order. The
machine has no clock: it asks for timers by name, and `timer_fired` is called when one fires.
docs/groups.md shows it as a table. Beneath it, `generations` begins one generation after the other
and `static_members` lets an instance take its own place.

Source: the group protocol of Kafka 4 as its clients see it; KIP-134, KIP-345, KIP-394, KIP-814.
"""

from penstock.groups.durable import DurableGroup
from penstock.groups.errors import GroupError
from penstock.groups.generations import REPLACED, GroupState
from penstock.groups.member import Member
from penstock.groups.messages import (
    JOIN_TIMER,
    SAVE_TIMER,
    SYNC_TIMER,
    CancelTimer,
    Effect,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveResult,
    Reply,
    SetTimer,
    SyncReply,
    SyncRequest,
    Timer,
)
from penstock.groups.static_members import StaticMembers
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics


class ClassicGroup(StaticMembers):
    """One group. Made empty; `restore` gives the journaled generation back."""

    __slots__ = ()

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
            member = Member.restored(one)
            self.roster.add(member)
            self._begin_session(member)
        if self.roster:
            if group.leader in self.roster:
                self.roster.leader = group.leader
            self.state = GroupState.STABLE
            if group.rebalances:
                self._prepare()
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
        member.is_doubted = False
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._effects.append(CancelTimer(SYNC_TIMER))
        if self.state is GroupState.STABLE:
            self._reply_assignment(request, member)
        else:
            self._end_sync(member, REPLACED)
            member.sync_request = request
            if member.member_id == self.roster.leader:
                self._save_generation(sync.assignments)
        return self._take()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[GroupError, list[Effect]]:
        """A member lives."""
        error = self._check(member_id, instance_id, generation)
        if error is not GroupError.NONE:
            return error, []
        member = self._member(member_id)
        member.is_doubted = False
        self._begin_session(member)
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
        """Decide if such a commit of offsets is allowed now; `commit_seen` follows when it is.

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

    def commit_in_transaction(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError:
        """Decide the same of offsets that a transaction holds. Older versions name no member; and
        one that has joined may commit what it read in the generation before, as in Kafka."""
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not member_id and instance_id is None:
            return GroupError.NONE
        return self._check(member_id, instance_id, generation)

    def commit_seen(self, member_id: str) -> list[Effect]:
        """A commit is a sign of life as well; not of a membership that is doubted, since librdkafka
        sends a commit again under the member id that it has given up meanwhile."""
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
        elif timer == SAVE_TIMER:
            if self.state is GroupState.EMPTY:
                self._save_empty()
        elif self.state is GroupState.PREPARING:
            if self._new_member_came and self._initial_left_ms > 0:
                self._wait_for_more()
            else:
                self._complete_join()
        return self._take()

    def session_passed_unheard(self, member_id: str) -> None:
        """A member's session would have ended, had it been possible to hear the member."""
        member = self.roster.get(member_id)
        if member is not None and not member.waits:
            member.is_doubted = True

    def saved(self, save: int, error: GroupError) -> list[Effect]:
        """The journal has answered a `Save`."""
        on_saved = self._saves.pop(save, None)
        if on_saved is not None:
            on_saved(error)
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
        self._effects += [CancelTimer(timer) for timer in (JOIN_TIMER, SYNC_TIMER, SAVE_TIMER)]
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
        if join.instance_id is None:
            self._drop_doubted(join)
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

    def _drop_doubted(self, join: JoinRequest) -> None:
        """Let a newcomer take the place of a doubted member that looks like its own former self.

        A client of librdkafka that had no answer for a session forgets its member id and joins
        under another. A rebalance would wait for the former member until that one's session, which
        begins again once groups are served, ends. Where the guess is wrong, the member that was
        dropped learns it by UNKNOWN_MEMBER_ID, and joins again.
        """
        for member in self.roster:
            is_alike = (member.client_id, member.client_host) == (join.client_id, join.client_host)
            if member.is_doubted and member.instance_id is None and is_alike:
                self._drop(member.member_id)
                return

    # -- members going -------------------------------------------------------------------------

    def _syncs_missing(self) -> None:
        """Members that never asked for their assignment are taken for gone."""
        if self.state not in {GroupState.COMPLETING, GroupState.STABLE} or not self._pending_sync:
            return
        for member_id in sorted(self._pending_sync):
            if member_id in self.roster:
                self._drop(member_id)
        self._prepare()

    def _session_ended(self, member_id: str) -> None:
        if member_id in self._pending_members:
            self._pending_members.remove(member_id)
            self._complete_if_all_joined()
            return
        member = self.roster.get(member_id)
        if member is None or member.waits:
            # The answer to what it waits for begins its session again.
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

    # -- checks --------------------------------------------------------------------------------

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

    def _refuse_join(self, request: int, join: JoinRequest | None, error: GroupError) -> None:
        member_id = join.member_id if join is not None else ""
        self._effects.append(Reply(request, JoinReply(error=error, member_id=member_id)))
