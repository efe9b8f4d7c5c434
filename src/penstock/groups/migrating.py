"""Groups whose members speak two protocols: classic ones in a consumer group, until the last of
either protocol has gone (KIP-848, "Online Migration").

All on the event loop. `migration` says what becomes of a group's members, `memory` changes it.
"""

from penstock.groups.consumer.catalog import ViewCatalog, regex_fault
from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.messages import Heartbeat, HeartbeatReply
from penstock.groups.consumer.partitions import NONE
from penstock.groups.consumer.validation import refused
from penstock.groups.errors import GroupError
from penstock.groups.memory import GroupMemory, LoadedGroup
from penstock.groups.messages import JoinReply, JoinRequest, SyncReply, SyncRequest
from penstock.groups.migration import (
    TopicName,
    UpgradeError,
    assignment_bytes,
    classic_join,
    upgraded_members,
)
from penstock.groups.settings import GroupSettings, MigrationPolicy
from penstock.groups.state import ClassicGroup
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.state.commands import MEMBERS_MAX


class GroupMigration:
    """Upgrades groups, and answers the classic members of those that were upgraded."""

    def __init__(
        self,
        *,
        memory: GroupMemory,
        catalog: ViewCatalog,
        topic_name: TopicName,
        settings: GroupSettings,
    ) -> None:
        self._memory = memory
        self._catalog = catalog
        self._topic_name = topic_name
        self._settings = settings

    def upgrade(self, loaded: LoadedGroup, beat: Heartbeat) -> HeartbeatReply | None:
        """Make a group of classic members one of KIP-848, for a member of that protocol that joins.

        Returns: the answer of the one that joins, if it can't; None: the group takes it now.
        """
        machine = loaded.machine
        assert isinstance(machine, ClassicGroup)
        refusal = refused(beat, regex_fault)
        if refusal is not None:
            return refusal
        count = len(machine.roster)
        replaces = machine.roster.member_of_instance(beat.instance_id) is not None
        if count == self._settings.consumer_size_max and not replaces:
            message = f"The consumer group has reached its maximum capacity of {count} members."
            return HeartbeatReply(error=GroupError.GROUP_MAX_SIZE_REACHED, message=message)
        try:
            # Where the last member has just left there is nothing that a policy would keep.
            if count:
                self._check(machine)
            members = upgraded_members(machine, self._catalog)
        except UpgradeError as error:
            message = (
                f"Cannot upgrade classic group {machine.group_id} to consumer group because"
                f" {error}."
            )
            return HeartbeatReply(error=GroupError.GROUP_ID_NOT_FOUND, message=message)
        self._memory.upgrade(loaded, members, self._catalog)
        return None

    def _check(self, machine: ClassicGroup) -> None:
        """Raises: UpgradeError: a group with members may not become one of KIP-848."""
        members_max = min(self._settings.consumer_size_max, MEMBERS_MAX)
        if not self._settings.migration_policy.upgrades:
            raise UpgradeError("online upgrade is disabled")
        if machine.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise UpgradeError("the group does not use the consumer embedded protocol")
        if len(machine.roster) > members_max:
            raise UpgradeError(
                f"the group has {len(machine.roster)} members, and {members_max} can change their"
                " protocol at a time"
            )

    async def join(
        self, loaded: LoadedGroup, machine: ConsumerGroup, join: JoinRequest
    ) -> JoinReply:
        """A classic member joins a consumer group."""
        found = classic_join(join, self._catalog)
        limits = self._settings
        session_ms = join.session_timeout_ms
        error = GroupError.NONE
        if not limits.session_timeout_ms_min <= session_ms <= limits.session_timeout_ms_max:
            error = GroupError.INVALID_SESSION_TIMEOUT
        elif found is None or self._is_shut_to(machine, join):
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        elif not join.member_id and join.id_required and join.instance_id is None:
            error = GroupError.MEMBER_ID_REQUIRED
            return JoinReply(error=error, member_id=join.new_member_id)
        if found is None or error is not GroupError.NONE:
            return JoinReply(error=error, member_id=join.member_id)
        request, future = self._memory.request()
        self._memory.carry_out(loaded, machine.join_classic(request, found, self._catalog))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, HeartbeatReply)
        if reply.error is not GroupError.NONE:
            return JoinReply(error=reply.error, member_id=join.member_id)
        return JoinReply(
            generation=reply.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=join.protocols[0].name,
            member_id=found.beat.member_id,
        )

    def _is_shut_to(self, machine: ConsumerGroup, join: JoinRequest) -> bool:
        """Whether the policy keeps a classic member out; those that are there may go on."""
        is_disabled = self._settings.migration_policy is MigrationPolicy.DISABLED
        return is_disabled and join.member_id not in machine.members

    async def sync(
        self, loaded: LoadedGroup, machine: ConsumerGroup, sync: SyncRequest
    ) -> SyncReply:
        """A classic member of a consumer group asks for its partitions."""
        request, future = self._memory.request()
        self._memory.carry_out(loaded, machine.sync_classic(request, sync))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, HeartbeatReply)
        if reply.error is not GroupError.NONE:
            return SyncReply(error=reply.error)
        return SyncReply(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=sync.protocol_name,
            assignment=assignment_bytes(reply.assigned or NONE, self._topic_name),
        )

    def heartbeat(
        self,
        loaded: LoadedGroup,
        machine: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
    ) -> GroupError:
        """A classic member of a consumer group lives."""
        error, effects = machine.heartbeat_classic(
            member_id, instance_id, generation, self._catalog
        )
        self._memory.carry_out(loaded, effects)
        return error
