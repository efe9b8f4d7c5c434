"""Commits of offsets by members with epochs, of consumer and of streams groups alike. Pure.

Source: KIP-848, KIP-1071.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from penstock.groups.consumer.messages import Effect
from penstock.groups.errors import GroupError

M = TypeVar("M")


class MemberCommits(ABC, Generic[M]):
    """Decides which commits a group takes."""

    __slots__ = ()

    members: dict[str, M]
    is_dead: bool

    @abstractmethod
    def check_epoch(self, member_id: str, epoch: int) -> GroupError:
        """Compare the epoch that a member names with its own."""

    def commit(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        """Decide if a commit of offsets is allowed now. Generation -1 without a member is an
        administrator's."""
        del instance_id  # A static member that was replaced is another member id.
        if self.is_dead:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not self.members:
            return GroupError.NONE
        return self.check_epoch(member_id, generation)

    def commit_in_transaction(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError:
        """Decide the same of offsets that a transaction holds; older versions name no member."""
        if generation < 0 and not member_id and instance_id is None and not self.is_dead:
            return GroupError.NONE
        error = self.commit(member_id, instance_id, generation)
        if error is GroupError.STALE_MEMBER_EPOCH:
            return GroupError.ILLEGAL_GENERATION
        return error

    def commit_seen(self, member_id: str) -> list[Effect]:
        """A commit does not begin a session again: members send heartbeats in every state."""
        del member_id
        return []
