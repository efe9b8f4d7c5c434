"""Committed offsets of groups: committed, fetched, deleted, through the journal and in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.memory import GroupMemory, LoadedGroup
from penstock.groups.offsets import CommittedOffset, PartitionId
from penstock.groups.ownership import NotServedError
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.metadata.answers import AnyAnswer, OffsetsCommitted
from penstock.metadata.commands import AnyCommand, CommitOffsets, DeleteOffsets, OffsetWrite

if TYPE_CHECKING:
    from penstock.metadata.queries import Queries

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of a commit: an error for all of it, or per offset 0 or a Refusal."""

    error: GroupError = GroupError.NONE
    codes: Sequence[int] = ()


class GroupOffsets:
    """Write-through: what the journal has taken is in memory before the client hears of it."""

    def __init__(self, *, memory: GroupMemory, journal: GroupJournal, queries: "Queries") -> None:
        self._memory = memory
        self._journal = journal
        self._queries = queries

    async def commit(
        self,
        group_id: str,
        writes: list[OffsetWrite],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
    ) -> CommitResult:
        """Store offsets; durable when it returns without an error.

        Returns: GROUP_ID_NOT_FOUND when a member of some generation commits to a group that there
            is not; old versions' clients are told otherwise by the face.
        """
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            return CommitResult(error=refused)
        loaded = self._memory.find(group_id, create=generation < 0)
        if loaded is None:
            return CommitResult(error=GroupError.GROUP_ID_NOT_FOUND)
        error = loaded.machine.commit(member_id, instance_id, generation)
        if error is not GroupError.NONE:
            self._memory.settle(loaded)
            return CommitResult(error=error)
        # A simple consumer's group has no member to hear of, and settling it here would let a new
        # one go before its first offset is stored.
        if effects := loaded.machine.commit_seen(member_id):
            self._memory.carry_out(loaded, effects)
        if not writes:
            self._memory.settle(loaded)
            return CommitResult()
        command = CommitOffsets(group_id=group_id, offsets=writes, shard_epoch=loaded.shard_epoch)

        def keep(answer: AnyAnswer) -> CommitResult:
            assert isinstance(answer, OffsetsCommitted)
            loaded.offsets.store(writes, answer.codes)
            loaded.stored = loaded.stored or 0 in answer.codes
            return CommitResult(codes=answer.codes)

        result = await self._journal.finish(self._write(loaded, command, keep))
        return CommitResult(error=result) if isinstance(result, GroupError) else result

    def fetch(self, group_id: str) -> Mapping[PartitionId, CommittedOffset]:
        """All committed offsets of a group; none when there is no such group.

        Raises:
            NotServedError: this agent does not coordinate it, or can't read them now.
        """
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            raise NotServedError("fetch offsets", group_id, refused)
        loaded = self._memory.find(group_id)
        if loaded is None:
            return {}
        known = loaded.offsets.known()
        if known is not None:
            return known
        if not self._memory.shows_answers():
            raise NotServedError("fetch offsets", group_id, GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        return self._load_offsets(loaded)

    async def delete(
        self, group_id: str, items: list[tuple[str, PartitionId]]
    ) -> tuple[GroupError, list[GroupError]]:
        """Delete offsets of topics that no member reads.

        Args:
            items: topic name, and topic id with partition.
        Returns: an error for all, or one for each.
        """
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            return refused, []
        loaded = self._memory.find(group_id)
        if loaded is None or loaded.machine.state is GroupState.DEAD:
            return GroupError.GROUP_ID_NOT_FOUND, []
        machine = loaded.machine
        empty = machine.state is GroupState.EMPTY
        if not empty and machine.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return GroupError.NON_EMPTY_GROUP, []
        errors = [
            GroupError.GROUP_SUBSCRIBED_TO_TOPIC if machine.is_subscribed(name) else GroupError.NONE
            for name, _ in items
        ]
        keys = [
            key for (_, key), error in zip(items, errors, strict=True) if error is GroupError.NONE
        ]
        if keys:
            failure = await self._journal.finish(self.begin_deletion(loaded, keys))
            if failure is not GroupError.NONE:
                return failure, []
        return GroupError.NONE, errors

    def begin_deletion(
        self, loaded: LoadedGroup, keys: list[PartitionId], *, seen_ms: Sequence[int] = ()
    ) -> asyncio.Task[GroupError]:
        """Delete these of a group, whoever reads them, and before all that is committed later.

        Args:
            seen_ms: their commit times; those that were committed to since stay. Without: all go.
        """
        command = DeleteOffsets(
            group_id=loaded.machine.group_id,
            items=keys,
            shard_epoch=loaded.shard_epoch,
            seen_ms=list(seen_ms),
        )

        def keep(_: AnyAnswer) -> GroupError:
            if seen_ms:
                # Some may have stayed.
                loaded.offsets.forget()
            else:
                loaded.offsets.remove(keys)
            return GroupError.NONE

        return self._write(loaded, command, keep)

    def _write(
        self, loaded: LoadedGroup, command: AnyCommand, keep: Callable[[AnyAnswer], _T]
    ) -> asyncio.Task[_T | GroupError]:
        """Journal a change of a group's offsets and, whoever still waits, keep it in memory."""

        async def write() -> _T | GroupError:
            try:
                answer = await self._journal.commit(command)
                if not isinstance(answer, GroupError):
                    offsets.settle(doubt_count)
                    return keep(answer)
                # It may or may not be in the journal, or come there later.
                offsets.doubt()
                return answer
            finally:
                offsets.commits_open -= 1
                self._memory.settle(loaded)

        offsets = loaded.offsets
        doubt_count = offsets.doubt_count
        offsets.commits_open += 1
        self._memory.settle(loaded)
        return self._journal.own(write())

    def _load_offsets(self, loaded: LoadedGroup) -> Mapping[PartitionId, CommittedOffset]:
        offsets = loaded.offsets.load(self._queries.group_offsets(loaded.machine.group_id))
        self._memory.settle(loaded)
        return offsets
