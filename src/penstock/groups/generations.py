"""The generations of one group: gathering members, beginning the next one, journaling it. Pure.

`groups/state.py` says what a member may ask for, and which error it gets when it may not.
"""

import enum
from collections.abc import Callable
from typing import Final

from penstock.groups.durable import DurableGroup, encode_state
from penstock.groups.errors import GroupError
from penstock.groups.member import Member
from penstock.groups.messages import (
    JOIN_TIMER,
    SAVE_TIMER,
    SYNC_TIMER,
    CancelTimer,
    Effect,
    JoinReply,
    JoinRequest,
    Reply,
    Save,
    SetTimer,
    SyncReply,
    Timer,
)
from penstock.groups.roster import Roster
from penstock.groups.settings import GroupSettings

EMPTY_SAVE_RETRY_MS: Final = 5_000
"""How long after a failed save of an empty group it is tried again."""

REPLACED: Final = GroupError.REBALANCE_IN_PROGRESS
"""Error of a waiting request when a later one of the same member takes its place."""

OnSaved = Callable[[GroupError], None]


class GroupState(enum.Enum):
    """States of a group; the values are the names that Kafka's tools show. Assigning and
    Reconciling are of groups whose server assigns (KIP-848, KIP-1071), NotReady of streams groups,
    the two Rebalances of classic ones."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    NOT_READY = "NotReady"
    DEAD = "Dead"


class Generations:
    """Members and the generation that they are in, with the effects that are to be carried out."""

    __slots__ = (
        "_effects",
        "_initial_left_ms",
        "_new_member_came",
        "_pending_members",
        "_pending_sync",
        "_save_count",
        "_saves",
        "_saving_generation",
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
        self._saves: dict[int, OnSaved] = {}
        # The last generation whose assignments were given to the journal.
        self._saving_generation = 0

    @property
    def is_idle(self) -> bool:
        """Nothing is in memory that the journal has not: no member, pending id or open save."""
        return not (self.roster or self._pending_members or self._saves)

    # -- rebalancing ---------------------------------------------------------------------------

    def _rebalance_or_complete(self) -> None:
        if self.state is GroupState.PREPARING:
            self._complete_if_all_joined()
        else:
            self._prepare()

    def _prepare(self) -> None:
        """Ask all members to join again."""
        if self.state is GroupState.COMPLETING:
            # Their assignments stay those of the last stable generation, of which a member that
            # gives nothing up between generations has the rest: see `migration`.
            for member in self.roster:
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
            self._save_empty()
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

    # -- the journal ---------------------------------------------------------------------------

    def _save_generation(self, assignments: dict[str, bytes]) -> None:
        """Journal the leader's assignments, which the syncs wait for; once for a generation."""
        generation = self.generation
        if self._saving_generation == generation:
            return
        self._saving_generation = generation

        def saved(error: GroupError) -> None:
            # Otherwise members have come or gone meanwhile, and the syncs were answered so.
            if self.state is GroupState.COMPLETING and generation == self.generation:
                self._generation_saved(assignments, error)

        self._save(assignments, saved)

    def _generation_saved(self, assignments: dict[str, bytes], error: GroupError) -> None:
        if error is not GroupError.NONE:
            for member in self.roster:
                self._end_sync(member, error)
            self._prepare()
            return
        self.state = GroupState.STABLE
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_request is not None:
                request, member.sync_request = member.sync_request, None
                self._reply_assignment(request, member)

    def _save_empty(self) -> None:
        """Journal that no member is left: no request waits, but offsets expire from then on."""

        def saved(error: GroupError) -> None:
            if error is not GroupError.NONE and self.state is GroupState.EMPTY:
                self._effects.append(SetTimer(SAVE_TIMER, EMPTY_SAVE_RETRY_MS))

        self._save({}, saved)

    def _save(self, assignments: dict[str, bytes], saved: OnSaved) -> None:
        self._save_count += 1
        self._saves[self._save_count] = saved
        state = DurableGroup(
            self.protocol_name,
            self.roster.leader,
            [member.durable(assignments.get(member.member_id, b"")) for member in self.roster],
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

    # -- members and what they wait for --------------------------------------------------------

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _member(self, member_id: str) -> Member:
        member = self.roster.get(member_id)
        assert member is not None
        return member

    def _begin_session(self, member: Member) -> None:
        self._effects.append(
            SetTimer(Timer("session", member.member_id), member.session_timeout_ms)
        )

    def _drop(self, member_id: str, error: GroupError = GroupError.UNKNOWN_MEMBER_ID) -> Member:
        member = self.roster.remove(member_id)
        self._pending_sync.discard(member_id)
        self._end_join(member, error)
        self._end_sync(member, error)
        self._effects.append(CancelTimer(Timer("session", member_id)))
        return member

    def _update(self, request: int, join: JoinRequest, member: Member) -> None:
        self._end_join(member, REPLACED)
        member.join_request = request
        member.is_doubted = False
        member.protocols = join.protocols
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms

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
