"""Streams groups as the faces call them. All on the event loop.

The machines are in `groups.memory`, with those of the other kinds.
"""

from typing import TYPE_CHECKING

from penstock.groups.consumer.catalog import ViewCatalog
from penstock.groups.consumer.member import JOINING_EPOCH, LEAVING_EPOCH
from penstock.groups.errors import GroupError, level_needed
from penstock.groups.generations import GroupState
from penstock.groups.memory import GroupMemory, LoadedGroup, TooManyGroupsError
from penstock.groups.ownership import NotServedError
from penstock.groups.settings import GroupSettings
from penstock.groups.share.configs import GroupConfigs
from penstock.groups.state import ClassicGroup
from penstock.groups.streams.machine import StreamsGroup
from penstock.groups.streams.messages import StreamsHeartbeat, StreamsReply
from penstock.groups.streams.validation import refused
from penstock.model.group_configs import STREAMS_HEARTBEAT, group_number
from penstock.state.rows import GroupKind
from penstock.state.schema import STREAMS_LEVEL

if TYPE_CHECKING:
    from penstock.state.read.view import StateView


class StreamsGroups:
    """Coordinates the streams groups of this agent."""

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
        self._settings = settings
        self._configs = configs

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return how often members of a group send heartbeats."""
        return group_number(
            STREAMS_HEARTBEAT, self._configs(group_id), self._settings.group_defaults
        )

    async def heartbeat(self, group_id: str, beat: StreamsHeartbeat) -> StreamsReply:
        """A member joins, lives or leaves; what the answer is made of is journaled by then."""
        error = GroupError.INVALID_GROUP_ID if not group_id else self._memory.refused(group_id)
        if error is not GroupError.NONE:
            return StreamsReply(error=error)
        refusal = refused(beat)
        if refusal is not None:
            return refusal
        if self._view.feature_level < STREAMS_LEVEL:
            message = level_needed(STREAMS_LEVEL, self._view.feature_level)
            return StreamsReply(error=GroupError.UNSUPPORTED_VERSION, message=message)
        joins = beat.epoch == JOINING_EPOCH
        try:
            loaded = self._memory.find(group_id, create=joins, kind=GroupKind.STREAMS)
        except TooManyGroupsError:
            return StreamsReply(error=GroupError.POLICY_VIOLATION)
        if loaded is not None and joins and _may_become_streams(loaded):
            self._memory.become(loaded, GroupKind.STREAMS)
        if loaded is None or not isinstance(loaded.machine, StreamsGroup):
            kind = "Group" if beat.epoch == LEAVING_EPOCH else "Streams group"
            message = (
                f"{kind} {group_id} not found."
                if loaded is None
                else f"Group {group_id} is not a streams group."
            )
            return StreamsReply(error=GroupError.GROUP_ID_NOT_FOUND, message=message)
        request, future = self._memory.request()
        self._memory.carry_out(loaded, loaded.machine.heartbeat(request, beat, self._catalog))
        reply = await self._memory.answer(request, future)
        assert isinstance(reply, StreamsReply)
        return reply

    def describe(self, group_id: str) -> StreamsGroup | None:
        """A streams group, to be looked at before the event loop's next turn; None: there is none.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        error = self._memory.refused(group_id)
        if error is not GroupError.NONE:
            raise NotServedError("describe group", group_id, error)
        loaded = self._memory.find(group_id)
        machine = None if loaded is None else loaded.machine
        return machine if isinstance(machine, StreamsGroup) and not machine.is_dead else None


def _may_become_streams(loaded: LoadedGroup) -> bool:
    """Whether a group is a classic one without members, with none on its way: as in Kafka, one of
    KIP-848 stays that."""
    machine = loaded.machine
    return (
        isinstance(machine, ClassicGroup) and machine.is_idle and machine.state is GroupState.EMPTY
    )
