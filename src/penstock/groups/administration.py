"""Groups as administrators and tools see them: described and listed."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.memory import GroupMemory, Machine
from penstock.groups.ownership import NotServedError
from penstock.groups.state import ClassicGroup
from penstock.state.rows import GroupKind


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: GroupState
    kind: GroupKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member; metadata and assignment are shown in a stable group alone."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as tools see it."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


class GroupAdministration:
    """Answers what administrators ask about groups."""

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory

    def describe(self, group_id: str) -> GroupDescription | None:
        """A classic group; None when there is none.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        machine = self._find(group_id)
        if not isinstance(machine, ClassicGroup):
            return None
        stable = machine.state is GroupState.STABLE
        return GroupDescription(
            group_id=group_id,
            state=machine.state,
            protocol_type=machine.protocol_type,
            protocol_name=machine.protocol_name if stable else "",
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(machine.protocol_name) if stable else b"",
                    assignment=member.assignment,
                )
                for member in machine.roster
            ),
        )

    def is_known(self, group_id: str) -> bool:
        """Whether there is a group of that name, of any kind.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        return self._find(group_id) is not None

    def describe_consumers(self, group_id: str) -> ConsumerGroup | None:
        """A consumer group, to be looked at before the event loop's next turn; None when there is
        none.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        machine = self._find(group_id)
        return machine if isinstance(machine, ConsumerGroup) else None

    def _find(self, group_id: str) -> Machine | None:
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            raise NotServedError("describe group", group_id, refused)
        loaded = self._memory.find(group_id)
        if loaded is None or loaded.machine.state is GroupState.DEAD:
            return None
        return loaded.machine

    def overviews(self) -> Iterator[GroupOverview]:
        """All groups that this agent coordinates, those that are only in memory first.

        Raises:
            NotServedError: it has ended, or is cut off from the journal.
        """
        if self._memory.closed:
            raise NotServedError("list groups", "all", GroupError.NOT_COORDINATOR)
        ownership = self._memory.ownership
        if not ownership.served_s():
            raise NotServedError("list groups", "all", GroupError.COORDINATOR_NOT_AVAILABLE)
        if not self._memory.shows_answers():
            raise NotServedError("list groups", "all", GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        in_memory = list(self._memory.groups.values())
        for loaded in in_memory:
            machine = loaded.machine
            if machine.state is not GroupState.DEAD:
                yield GroupOverview(
                    group_id=machine.group_id,
                    protocol_type=machine.protocol_type,
                    state=machine.state,
                    kind=loaded.kind,
                )
        seen = {loaded.machine.group_id for loaded in in_memory}
        for row in self._memory.rows():
            if row.group_id not in seen and ownership.epoch(row.group_id) is not None:
                yield GroupOverview(
                    group_id=row.group_id,
                    protocol_type=row.protocol_type,
                    state=GroupState.EMPTY,
                    kind=row.kind,
                )
