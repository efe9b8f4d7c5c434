"""Share groups as the faces call them: members, deliveries, and administration.

All on the event loop. The machines are in `groups.memory`, with those of the other kinds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer.catalog import ViewCatalog
from penstock.groups.errors import GroupError, level_needed
from penstock.groups.memory import GroupMemory, LoadedGroup, TooManyGroupsError
from penstock.groups.ownership import NotServedError
from penstock.groups.settings import GroupSettings
from penstock.groups.share.configs import GroupConfigs, ShareConfigs, share_configs
from penstock.groups.share.machine import ShareGroup
from penstock.groups.share.messages import (
    Place,
    ShareHeartbeat,
    ShareHeartbeatReply,
    SharesReply,
)
from penstock.groups.share.partition import AckBatch, AckFault, Acquired, Stretch
from penstock.groups.share.roster import JOINING_EPOCH, fault_of
from penstock.groups.share.sessions import ShareSessions
from penstock.state.rows import GroupKind
from penstock.state.schema import SHARES_LEVEL

if TYPE_CHECKING:
    from penstock.state.read.view import StateView

NO_FAULTS: Final[Mapping[Place, AckFault]] = {}


class OpenShare:
    """A share group that a request works on, as of one value in memory."""

    __slots__ = ("_loaded", "_memory", "group_id", "machine")

    def __init__(self, memory: GroupMemory, loaded: LoadedGroup, machine: ShareGroup) -> None:
        self._memory = memory
        self._loaded = loaded
        self.machine = machine
        self.group_id = machine.group_id

    @property
    def is_held(self) -> bool:
        """Whether it is still the one in memory, and this agent's."""
        return (
            self._memory.holds(self._loaded)
            and self._memory.refused(self.group_id) is GroupError.NONE
        )

    async def begin(self, place: Place, start: int) -> GroupError:
        """Begin to read a partition at an offset, unless that was done meanwhile."""
        return await self._journaled(
            lambda request: self.machine.deliveries.begin(request, place, start)
        )

    def next_offset(self, place: Place, log_start: int) -> int | None:
        """See `Deliveries.next_offset`."""
        offset = self.machine.deliveries.next_offset(place, log_start)
        self._carry_out()
        return offset

    def acquire(
        self,
        place: Place,
        member: str,
        offset: int,
        stretches: Iterable[Stretch],
        *,
        records_max: int,
        cuts: bool,
    ) -> list[Acquired]:
        """See `Deliveries.acquire`."""
        found = self.machine.deliveries.acquire(
            place, member, offset, stretches, records_max=records_max, cuts=cuts
        )
        self._carry_out()
        return found

    async def acknowledge(
        self, member: str, said: Mapping[Place, Sequence[AckBatch]]
    ) -> tuple[GroupError, Mapping[Place, AckFault]]:
        """See `Deliveries.acknowledge`; durable when it returns without an error."""
        faults = NO_FAULTS

        def ask(request: int) -> None:
            nonlocal faults
            faults = self.machine.deliveries.acknowledge(request, member, said)

        error = await self._journaled(ask)
        return error, faults

    def release(self, member: str, places: Iterable[Place]) -> None:
        """See `Deliveries.release`."""
        self.machine.deliveries.release(member, places)
        self._carry_out()

    async def alter(self, starts: Mapping[Place, int]) -> GroupError:
        """See `Deliveries.alter`."""
        return await self._journaled(lambda request: self.machine.deliveries.alter(request, starts))

    async def forget(self, places: Iterable[Place]) -> GroupError:
        """See `Deliveries.forget`."""
        return await self._journaled(
            lambda request: self.machine.deliveries.forget(request, places)
        )

    def watch(self, freed: Callable[[], None]) -> None:
        """Call `freed` whenever records may be fetched that could not be."""
        self._loaded.watchers.add(freed)

    def unwatch(self, freed: Callable[[], None]) -> None:
        """Call it no more."""
        self._loaded.watchers.discard(freed)

    async def _journaled(self, ask: Callable[[int], None]) -> GroupError:
        request, future = self._memory.request()
        ask(request)
        self._carry_out()
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, SharesReply)
        return reply.error

    def _carry_out(self) -> None:
        self._memory.carry_out(self._loaded, self.machine.carried_out())


class ShareGroups:
    """Coordinates the share groups of this agent, and owns their share partitions."""

    def __init__(
        self,
        *,
        memory: GroupMemory,
        view: "StateView",
        catalog: ViewCatalog,
        settings: GroupSettings,
        configs: GroupConfigs,
    ) -> None:
        self._memory = memory
        self._view = view
        self._catalog = catalog
        self._configs = configs
        self.sessions = ShareSessions(settings.share_sessions_max)

    def configs(self, group_id: str) -> ShareConfigs:
        """The configs of a group."""
        return share_configs(self._configs(group_id))

    async def heartbeat(self, group_id: str, beat: ShareHeartbeat) -> ShareHeartbeatReply:
        """A member joins, lives or leaves; what the answer is made of is journaled by then."""
        error = GroupError.INVALID_GROUP_ID if not group_id else self._memory.refused(group_id)
        if error is not GroupError.NONE:
            return ShareHeartbeatReply(error=error)
        fault = fault_of(beat)
        if fault:
            return ShareHeartbeatReply(error=GroupError.INVALID_REQUEST, message=fault)
        if self._view.feature_level < SHARES_LEVEL:
            message = level_needed(SHARES_LEVEL, self._view.feature_level)
            return ShareHeartbeatReply(error=GroupError.UNSUPPORTED_VERSION, message=message)
        joins = beat.epoch == JOINING_EPOCH
        try:
            loaded = self._memory.find(group_id, create=joins, kind=GroupKind.SHARE)
        except TooManyGroupsError:
            return ShareHeartbeatReply(error=GroupError.POLICY_VIOLATION)
        if loaded is None or not isinstance(loaded.machine, ShareGroup):
            missing = "not found" if loaded is None else "not a share group"
            message = f"Group {group_id} is {missing}."
            return ShareHeartbeatReply(error=GroupError.GROUP_ID_NOT_FOUND, message=message)
        request, future = self._memory.request()
        self._memory.carry_out(loaded, loaded.machine.heartbeat(request, beat, self._catalog))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, ShareHeartbeatReply)
        return reply

    def open(self, group_id: str) -> OpenShare | GroupError:
        """Find a group to work on."""
        error = self._memory.refused(group_id)
        if error is not GroupError.NONE:
            return error
        loaded = self._memory.find(group_id)
        if loaded is None or not isinstance(loaded.machine, ShareGroup) or loaded.machine.is_dead:
            return GroupError.GROUP_ID_NOT_FOUND
        return OpenShare(self._memory, loaded, loaded.machine)

    def describe(self, group_id: str) -> ShareGroup | None:
        """A share group, to be looked at before the event loop's next turn; None: there is none.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        found = self.open(group_id)
        if found is GroupError.GROUP_ID_NOT_FOUND:
            return None
        if isinstance(found, GroupError):
            raise NotServedError("describe group", group_id, found)
        return found.machine

    def left(self, connection: object) -> None:
        """A connection has ended: its sessions end, and release what they have."""
        for group_id, member_id, _ in self.sessions.end_of(connection):
            found = self.open(group_id)
            if isinstance(found, OpenShare):
                found.release(member_id, list(found.machine.deliveries.partitions))
