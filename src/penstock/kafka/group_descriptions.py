"""The loop over groups that all describing APIs share, and what those of groups whose server
assigns share besides (KIP-848, KIP-932, KIP-1071)."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import ClassVar, Final, Generic, TypeVar

from penstock.groups.consumer.partitions import Partitions
from penstock.groups.errors import GroupError
from penstock.groups.ownership import told
from penstock.kafka import confirmed as fresh
from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build
from penstock.model.errors import PenstockError
from penstock.security.acl import Operation, ResourceType

G = TypeVar("G")
M = TypeVar("M")

HIDDEN_TOPICS: Final = (
    "The group has described topic(s) that the client is not authorized to describe."
)


class GroupDescriber(ABC, Generic[G]):
    """Describes groups of one kind.

    Args:
        types: the classes of the answer's version.
        shows_operations: whether the answer says what the client may do with each group.
    """

    kind: ClassVar[str]
    """The kind's name in messages."""
    group_bytes: ClassVar[int]
    """The most bytes of a group in the answer, without its texts and members."""

    def __init__(
        self, context: RequestContext, types: ModuleType, *, shows_operations: bool
    ) -> None:
        self.context = context
        self.types = types
        self._shows_operations = shows_operations

    @abstractmethod
    def find(self, group_id: str) -> G | None:
        """Return a group of the kind. Raises: NotServedError: another agent coordinates it."""

    @abstractmethod
    async def members_bound(self, group: G) -> int:
        """The most bytes of a group's members in the answer."""

    @abstractmethod
    def described(self, group: G) -> tuple[Entity, int]:
        """Describe a group, and count its members."""

    @abstractmethod
    def absent(self, group_id: str, error: GroupError | ErrorCode) -> Entity:
        """Describe a group of which this agent knows nothing now, or tells nothing."""

    @abstractmethod
    def missing(self, group_id: str) -> Entity:
        """Describe a group that `find` didn't find."""

    def lack(self, group_id: str) -> str:
        """Say what is missing where `find` didn't find a group."""
        is_other = self.context.broker.groups.is_known(group_id)
        return f"Group {group_id} {f'is not a {self.kind} group' if is_other else 'not found'}."

    def operations(self, group_id: str) -> int:
        """Return what the client may do with a group, if it asked for that."""
        if not self._shows_operations:
            return UNKNOWN_OPERATIONS
        return self.context.access.operations(ResourceType.GROUP, group_id)

    def may_see(self, topic_ids: Iterable[bytes]) -> bool:
        """Whether the client may describe all topics of a group, whose names are in its answer."""
        access, view = self.context.access, self.context.broker.view
        if access.is_unbounded:
            return True
        topics = [topic for one in set(topic_ids) if (topic := view.topic_by_id(one)) is not None]
        return not any(access.topic(Operation.DESCRIBE, topic.name) for topic in topics)

    async def answer(
        self, named: Iterable[str], answer: Callable[[tuple[Entity, ...]], Entity]
    ) -> Answer:
        """Describe each group by itself.

        Args:
            answer: makes the answer of the groups.
        """
        turns = self.context.broker.turns
        # Named twice, a group is described once: its members cost far more than its name.
        group_ids = dict.fromkeys(named)
        is_known = await fresh.confirm(self.context)
        waiting = self.context.reserve_answer(await self._bound(group_ids))
        if waiting is not None:
            return waiting
        described = []
        access = self.context.access
        async for group_id in turns.each(group_ids):
            refused = access.group(Operation.DESCRIBE, group_id)
            if refused:
                described.append(self.absent(group_id, refused))
                continue
            if not is_known:
                described.append(self.absent(group_id, GroupError.COORDINATOR_NOT_AVAILABLE))
                continue
            group, member_count = self._described(group_id)
            described.append(group)
            if turns.spend(member_count, rows=1):
                await turns.wait()
        return answer(tuple(described))

    def _described(self, group_id: str) -> tuple[Entity, int]:
        try:
            group = self.find(group_id)
        except PenstockError as failure:
            return self.absent(group_id, told(failure)), 0
        return (self.missing(group_id), 0) if group is None else self.described(group)

    async def _bound(self, group_ids: Iterable[str]) -> int:
        """The most bytes of the answer."""
        turns = self.context.broker.turns
        found = BASE_BYTES
        async for group_id in turns.each(group_ids):
            # An error's message says the group's name once more.
            found += self.group_bytes + 2 * text_bytes(group_id)
            try:
                group = self.find(group_id)
            except PenstockError:
                continue
            if group is None:
                continue
            found += await self.members_bound(group)
            if turns.spend(rows=1):
                await turns.wait()
        return found


class AssignedDescriber(GroupDescriber[G]):
    """Describes groups of one kind whose server assigns partitions or tasks."""

    def missing(self, group_id: str) -> Entity:
        """See `GroupDescriber`."""
        return self.absent(group_id, GroupError.GROUP_ID_NOT_FOUND, self.lack(group_id))

    def absent(
        self, group_id: str, error: GroupError | ErrorCode, message: str | None = None
    ) -> Entity:
        """See `GroupDescriber`."""
        return build(
            self.types.DescribedGroup,
            error_code=error,
            error_message=message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            topology=None,
            members=(),
            authorized_operations=UNKNOWN_OPERATIONS,
        )

    def whole(
        self,
        group_id: str,
        *,
        state: str,
        epoch: int,
        assignment_epoch: int,
        assignor: str,
        members: Sequence[M],
        topic_ids: Iterable[bytes],
        make: Callable[[M], Entity],
    ) -> tuple[Entity, int]:
        """Describe a group, and count its members.

        Args:
            topic_ids: of all that is assigned: who may not see one of them is shown no member.
            make: describes a member.
        """
        error: GroupError | ErrorCode = GroupError.NONE
        if not self.may_see(topic_ids):
            error, members = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ()
        described = build(
            self.types.DescribedGroup,
            error_code=error,
            error_message=HIDDEN_TOPICS if error else None,
            group_id=group_id,
            group_state=state,
            group_epoch=epoch,
            assignment_epoch=assignment_epoch,
            assignor_name=assignor,
            members=MadeItems(members, make),
            authorized_operations=self.operations(group_id),
        )
        return described, len(members)

    def assignment(self, assigned: Partitions) -> Entity:
        """Describe partitions by topic."""
        topics = []
        for topic_id, numbers in sorted(assigned.items()):
            topic = self.context.broker.view.topic_by_id(topic_id)
            # A topic that was deleted leaves the assignment with the members' next heartbeats.
            if topic is not None:
                topics.append(
                    self.types.TopicPartitions(
                        topic_id=uuid.UUID(bytes=topic_id),
                        topic_name=topic.name,
                        partitions=tuple(sorted(numbers)),
                    )
                )
        made: Entity = self.types.Assignment(topic_partitions=tuple(topics))
        return made
