"""The coordinator of consumer groups: members join, sync, live and leave; what the faces call.

All on the event loop. The groups are in `memory`, their offsets in `committing`, what tools see of
them in `administration`, how they end in `deletion` and `expiry`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.groups.administration import GroupAdministration, GroupDescription, GroupOverview
from penstock.groups.committing import CommitResult, GroupOffsets, OffsetsTransaction
from penstock.groups.consumer.catalog import ViewCatalog
from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.member import JOINING_EPOCH
from penstock.groups.consumer.messages import Heartbeat, HeartbeatReply
from penstock.groups.deletion import GroupDeletion
from penstock.groups.errors import GroupError, level_needed
from penstock.groups.expiry import GroupExpiry
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.memory import (
    PAGE_GROUPS,
    READ_AGAIN_S,
    GroupMemory,
    LoadedGroup,
    TooManyGroupsError,
)
from penstock.groups.messages import (
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveResult,
    SyncReply,
    SyncRequest,
)
from penstock.groups.migrating import GroupMigration
from penstock.groups.offsets import CommittedOffset, PartitionId
from penstock.groups.ownership import AllGroups, Ownership
from penstock.groups.settings import GroupSettings
from penstock.groups.sharing import ShareGroups
from penstock.groups.state import ClassicGroup
from penstock.groups.streaming import StreamsGroups
from penstock.groups.streams.machine import StreamsGroup
from penstock.model.group_configs import CONSUMER_HEARTBEAT, group_number
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.state.command import OffsetWrite
from penstock.state.order_types import Committer
from penstock.state.rows import GroupKind
from penstock.state.schema import MEMBERS_LEVEL, MIGRATION_LEVEL
from penstock.system.turns import Turns
from penstock.system.waiting import wait

if TYPE_CHECKING:
    from penstock.state.read.queries import Queries
    from penstock.state.read.view import StateView

MEMBER_ID_BYTES: Final = 16


class GroupCoordinator:
    """Coordinates all consumer groups of this agent. Use on the event loop only.

    `start` before the first request; `close` answers whatever waits.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        queries: "Queries",
        view: "StateView",
        clock: Clock,
        random: Random,
        settings: GroupSettings | None = None,
        ownership: Ownership | None = None,
        shows_answers: Callable[[], bool] = lambda: True,
        now_ms: Callable[[], int | None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        """
        Args:
            turns: by which requests of many offsets yield; those of all that the loop serves.
            now_ms: what offsets and empty groups expire by (`penstock.state.ages`): while it
                gives None, nothing expires. Without: the clock.
            ownership: which groups are this agent's; None: all of them.
            shows_answers: whether `queries` find all that the committer has answered: what they
                show without is older than what members and committers have been answered.
        """
        self.settings = settings or GroupSettings()
        self._random = random
        self._view = view
        self._catalog = ViewCatalog(view)
        self._journal = GroupJournal(committer)
        self._memory = GroupMemory(
            journal=self._journal,
            queries=queries,
            settings=self.settings,
            ownership=ownership or AllGroups(),
            shows_answers=shows_answers,
            configs=self.configs,
            topic_name=self._topic_name,
        )
        self.shares = ShareGroups(
            memory=self._memory,
            view=view,
            catalog=self._catalog,
            settings=self.settings,
            configs=self.configs,
        )
        self.streams = StreamsGroups(
            memory=self._memory,
            view=view,
            catalog=self._catalog,
            settings=self.settings,
            configs=self.configs,
        )
        self._migration = GroupMigration(
            memory=self._memory,
            catalog=self._catalog,
            topic_name=self._topic_name,
            settings=self.settings,
        )
        self._turns = turns = turns or Turns()
        self._offsets = GroupOffsets(
            memory=self._memory, journal=self._journal, queries=queries, turns=turns
        )
        self._administration = GroupAdministration(self._memory)
        self._deletion = GroupDeletion(
            memory=self._memory, journal=self._journal, queries=queries, turns=turns
        )
        self._expiry = GroupExpiry(
            memory=self._memory,
            journal=self._journal,
            offsets=self._offsets,
            deletion=self._deletion,
            queries=queries,
            view=view,
            now_ms=now_ms or clock.now_ms,
            settings=self.settings,
            turns=turns,
        )

    def start(self) -> None:
        """Take up all groups that have members and are this agent's, so that their sessions run."""
        for row in self._memory.rows():
            if row.empty_since_ms is None:
                self._memory.find(row.group_id, row=row)

    def take_up(self, is_new: Callable[[str], bool]) -> None:
        """Groups became this agent's: take up those that have members, page by page.

        Args:
            is_new: whether a group, by its id, is one of them.
        """
        self._journal.own(partial(self._take_up, is_new))

    async def _take_up(self, is_new: Callable[[str], bool]) -> None:
        after: str | None = ""
        while after is not None and not self._memory.closed:
            if not self._memory.shows_answers():
                await wait(READ_AGAIN_S)
                continue
            # A request for a group that is not reached yet reads it by itself.
            after = self._memory.load_page(after, is_new)
            if self._turns.spend(rows=PAGE_GROUPS):
                await self._turns.wait()

    def release(self, is_gone: Callable[[str], bool]) -> None:
        """Send the waiting requests of groups that became another agent's there; forget the
        groups."""
        self._memory.release(is_gone)

    def refused(self, group_id: str) -> GroupError:
        """Return the error that any request for a group gets; NONE: it is served here, now."""
        return self._memory.refused(group_id)

    def configs(self, group_id: str) -> Mapping[str, str]:
        """A group's own configs (`penstock.model.group_configs`), as they are now."""
        return self._view.group_configs.get(group_id, {})

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return how often members of a consumer group send heartbeats."""
        defaults = self.settings.group_defaults
        return group_number(CONSUMER_HEARTBEAT, self.configs(group_id), defaults)

    async def close(self) -> None:
        """End: answer every waiting request with the advice to look for the coordinator again."""
        await self._memory.close()

    # -- members -------------------------------------------------------------------------------

    def new_member_id(self, prefix: str) -> str:
        """Make an unused id: the client's id, or the instance's, and a random number."""
        return f"{prefix}-{self._random.token_bytes(MEMBER_ID_BYTES).hex()}"

    async def join(self, group_id: str, join: JoinRequest) -> JoinReply:
        """Wait until the group's next generation begins, or the join is refused."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return JoinReply(error=error, member_id=join.member_id)
        try:
            loaded = self._memory.find(group_id, create=not join.member_id)
        except TooManyGroupsError:
            return JoinReply(error=GroupError.POLICY_VIOLATION, member_id=join.member_id)
        if loaded is None:
            return JoinReply(error=GroupError.UNKNOWN_MEMBER_ID, member_id=join.member_id)
        machine = self._classic(loaded)
        if machine is None:
            if not isinstance(loaded.machine, ConsumerGroup) or not self._migrates:
                error = GroupError.INCONSISTENT_GROUP_PROTOCOL
                return JoinReply(error=error, member_id=join.member_id)
            return await self._migration.join(loaded, loaded.machine, join)
        request, future = self._memory.request()
        self._memory.carry_out(loaded, machine.join(request, join))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, JoinReply)
        return reply

    async def sync(self, group_id: str, sync: SyncRequest) -> SyncReply:
        """Wait for the member's assignment, which is journaled by then."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return SyncReply(error=error)
        loaded = self._memory.find(group_id)
        if loaded is not None and isinstance(loaded.machine, ConsumerGroup):
            return await self._migration.sync(loaded, loaded.machine, sync)
        if loaded is None or not isinstance(loaded.machine, ClassicGroup):
            return SyncReply(error=GroupError.UNKNOWN_MEMBER_ID)
        request, future = self._memory.request()
        self._memory.carry_out(loaded, loaded.machine.sync(request, sync))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, SyncReply)
        return reply

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError:
        """A member lives; return its answer."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return error
        loaded = self._memory.find(group_id)
        if loaded is not None and isinstance(loaded.machine, ConsumerGroup):
            return self._migration.heartbeat(
                loaded, loaded.machine, member_id, instance_id, generation
            )
        if loaded is None or not isinstance(loaded.machine, ClassicGroup):
            return GroupError.UNKNOWN_MEMBER_ID
        error, effects = loaded.machine.heartbeat(member_id, instance_id, generation)
        self._memory.carry_out(loaded, effects)
        return error

    def leave(self, group_id: str, leavers: list[Leaver]) -> tuple[GroupError, list[LeaveResult]]:
        """Members leave; an error for all, or a result for each."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return error, []
        loaded = self._memory.find(group_id)
        if loaded is not None and isinstance(loaded.machine, ConsumerGroup):
            results, left = loaded.machine.leave_classic(leavers)
            self._memory.carry_out(loaded, left)
            return GroupError.NONE, results
        if loaded is None or not isinstance(loaded.machine, ClassicGroup):
            unknown = GroupError.UNKNOWN_MEMBER_ID
            return GroupError.NONE, [LeaveResult(*leaver, unknown) for leaver in leavers]
        results, effects = loaded.machine.leave(leavers)
        self._memory.carry_out(loaded, effects)
        return GroupError.NONE, results

    async def consumer_heartbeat(self, group_id: str, beat: Heartbeat) -> HeartbeatReply:
        """A member of a consumer group (KIP-848) joins, lives or leaves; what the answer is made of
        is journaled by then."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return HeartbeatReply(error=error)
        if self._view.feature_level < MEMBERS_LEVEL:
            message = level_needed(MEMBERS_LEVEL, self._view.feature_level)
            return HeartbeatReply(error=GroupError.UNSUPPORTED_VERSION, message=message)
        joins = beat.epoch == JOINING_EPOCH
        try:
            loaded = self._memory.find(group_id, create=joins, kind=GroupKind.CONSUMER)
        except TooManyGroupsError:
            return HeartbeatReply(error=GroupError.POLICY_VIOLATION)
        if loaded is not None and joins and _may_become(loaded, GroupKind.CONSUMER):
            self._memory.become(loaded, GroupKind.CONSUMER)
        if loaded is not None and joins and isinstance(loaded.machine, ClassicGroup):
            refusal = self._migration.upgrade(loaded, beat) if self._migrates else None
            if refusal is not None:
                return refusal
        if loaded is None or not isinstance(loaded.machine, ConsumerGroup):
            missing = "not found" if loaded is None else "not a consumer group"
            message = f"Group {group_id} is {missing}."
            return HeartbeatReply(error=GroupError.GROUP_ID_NOT_FOUND, message=message)
        request, future = self._memory.request()
        self._memory.carry_out(loaded, loaded.machine.heartbeat(request, beat, self._catalog))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, HeartbeatReply)
        return reply

    @property
    def _migrates(self) -> bool:
        """Whether members of both protocols may be in one group."""
        return self._view.feature_level >= MIGRATION_LEVEL

    def _classic(self, loaded: LoadedGroup) -> ClassicGroup | None:
        """The machine for a classic join; None: the group has members of the other protocol."""
        if _may_become(loaded, GroupKind.CLASSIC):
            self._memory.become(loaded, GroupKind.CLASSIC)
        return loaded.machine if isinstance(loaded.machine, ClassicGroup) else None

    # -- offsets and administration --------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        writes: list[OffsetWrite],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        transaction: OffsetsTransaction | None = None,
    ) -> CommitResult:
        """Store offsets; durable when it returns without an error.

        Args:
            transaction: holds the offsets until it ends; None: the group has them at once.

        Returns: GROUP_ID_NOT_FOUND when a member of some generation commits to a group that doesn't
            exist; the Kafka face sends clients of old versions another error.
        """
        return await self._offsets.commit(
            group_id,
            writes,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            transaction=transaction,
        )

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> GroupError:
        """Compare what a member says of itself when it fetches offsets; without a member anybody
        may."""
        if not member_id or epoch < 0 or self._refused(group_id) is not GroupError.NONE:
            return GroupError.NONE
        loaded = self._memory.find(group_id)
        if loaded is None or not isinstance(loaded.machine, ConsumerGroup | StreamsGroup):
            return GroupError.NONE
        return loaded.machine.check_epoch(member_id, epoch)

    async def fetch_offsets(self, group_id: str) -> Mapping[PartitionId, CommittedOffset]:
        """All committed offsets of a group; none when there is no such group.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        return await self._offsets.fetch(group_id)

    async def pending_offsets(self, group_id: str) -> AbstractSet[PartitionId]:
        """See `GroupOffsets.pending`."""
        return await self._offsets.pending(group_id)

    def offsets_settled(self, group_ids: Sequence[str] | None) -> None:
        """See `GroupOffsets.settled`."""
        self._offsets.settled(group_ids)

    async def delete_offsets(
        self, group_id: str, items: list[tuple[str, PartitionId]]
    ) -> tuple[GroupError, list[GroupError]]:
        """Delete offsets of topics that no member reads.

        Args:
            items: topic name, and topic id with partition.
        Returns: an error for all, or one for each.
        """
        return await self._offsets.delete(group_id, items)

    def describe_consumers(self, group_id: str) -> ConsumerGroup | None:
        """See `GroupAdministration.describe_consumers`."""
        return self._administration.describe_consumers(group_id)

    def is_known(self, group_id: str) -> bool:
        """See `GroupAdministration.is_known`."""
        return self._administration.is_known(group_id)

    def describe(self, group_id: str) -> GroupDescription | None:
        """A classic group; None when there is none.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        return self._administration.describe(group_id)

    def overviews(self) -> Iterator[GroupOverview]:
        """All groups, those that are only in memory first.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        return self._administration.overviews()

    async def delete_groups(self, group_ids: Sequence[str]) -> list[GroupError]:
        """Delete groups that have no members, with their offsets; an error for each."""
        return await self._deletion.delete(group_ids)

    async def expire(self) -> int:
        """Delete expired offsets and empty groups of the next groups; call now and then.

        Returns: how many groups and offsets were deleted.
        """
        return await self._expiry.expire()

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self._view.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def _refused(self, group_id: str) -> GroupError:
        if not group_id:
            return GroupError.INVALID_GROUP_ID
        return self._memory.refused(group_id)


def _may_become(loaded: LoadedGroup, kind: GroupKind) -> bool:
    """Whether a group may change its protocol: it has no member, and none on its way. A share group
    never does: it has no committed offsets to go on from. A streams group may become a classic one
    alone, as in Kafka."""
    others = {GroupKind.CLASSIC, GroupKind.CONSUMER}
    if kind is GroupKind.CLASSIC:
        others.add(GroupKind.STREAMS)
    return (
        loaded.kind in others
        and loaded.machine.is_idle
        and loaded.machine.state is GroupState.EMPTY
    )
