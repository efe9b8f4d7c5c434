"""Committed offsets of groups: committed, fetched, deleted, through the journal and in memory."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.memory import GroupMemory, LoadedGroup, TooManyGroupsError
from penstock.groups.offsets import CommittedOffset, PartitionId
from penstock.groups.ownership import NotServedError
from penstock.groups.streams.machine import StreamsGroup
from penstock.groups.streams.roster import STREAMS_PROTOCOL_TYPE
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.state.answers import AnyAnswer, OffsetsCommitted, Refused
from penstock.state.command import OffsetWrite
from penstock.state.commands import AnyCommand, CommitOffsets, DeleteOffsets
from penstock.state.transaction_commands import CommitToTransaction
from penstock.system.turns import Turns

if TYPE_CHECKING:
    from penstock.state.read.queries import Queries

_T = TypeVar("_T")

WRITES_AT_ONCE: Final = 2_000
"""Offsets of one command: what applies it, and what keeps it in memory, does so in one go. A commit
of more is not one step of the journal."""
_OLDER_EPOCH: Final = (GroupError.STALE_MEMBER_EPOCH, GroupError.ILLEGAL_GENERATION)
PAGE_OFFSETS: Final = 500
"""Offsets of a group that are read from the database at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTransaction:
    """The transaction that a producer commits offsets in; see `CommitToTransaction`."""

    transactional_id: str
    producer_id: int
    epoch: int
    adds_group: bool
    seen_position: int
    connection: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The outcome of a commit: an error or a refusal for all of it, or per offset 0 or a
    Refusal."""

    error: GroupError = GroupError.NONE
    refused: Refused | None = None
    """Why the transaction does not take them."""
    codes: Sequence[int] = ()
    altered_from: Sequence[int | None] | None = None
    """Per offset the one before it (None: not known), where a client that isn't a member (an
    administrator's) altered the offsets of a group that has had members. Else None."""


class GroupOffsets:
    """Write-through: what the journal has taken is in memory before the client hears of it."""

    def __init__(
        self, *, memory: GroupMemory, journal: GroupJournal, queries: "Queries", turns: Turns
    ) -> None:
        self._memory = memory
        self._journal = journal
        self._queries = queries
        self._turns = turns

    async def commit(
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

        Returns: GROUP_ID_NOT_FOUND when a member of some generation commits to a group that doesn't
            exist; the Kafka face sends clients of old versions another error.
        """
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            return CommitResult(error=refused)
        try:
            loaded = self._memory.find(group_id, create=generation < 0)
        except TooManyGroupsError:
            return CommitResult(error=GroupError.POLICY_VIOLATION)
        if loaded is None:
            return CommitResult(error=GroupError.GROUP_ID_NOT_FOUND)

        def refusal() -> GroupError:
            machine = loaded.machine
            if transaction is None:
                error = machine.commit(member_id, instance_id, generation)
            else:
                error = machine.commit_in_transaction(member_id, instance_id, generation)
            if error not in _OLDER_EPOCH or not isinstance(machine, StreamsGroup):
                return error
            is_own = all(
                machine.owned_since(
                    member_id, generation, self._memory.topic_name(write.topic_id), write.partition
                )
                for write in writes
            )
            return GroupError.NONE if is_own else error

        error = refusal()
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
        # A simple consumer's group, to which no member ever commits, has no generation.
        is_altered = (
            generation < 0
            and not member_id
            and transaction is None
            and loaded.machine.generation > 0
        )
        codes: list[int] = []
        altered_from: list[int | None] = []
        with self._used(loaded):
            for start in range(0, len(writes), WRITES_AT_ONCE):
                if start:
                    # What is written later must not be of a generation that is over by then.
                    error = self._gone(loaded)
                    if error is GroupError.NONE:
                        error = refusal()
                    if error is not GroupError.NONE:
                        return CommitResult(error=error)
                some = writes[start : start + WRITES_AT_ONCE]
                if transaction is None:
                    stored = await self._store(loaded, some, is_altered=is_altered)
                else:
                    stored = await self._hold(loaded, some, transaction)
                if stored.error is not GroupError.NONE or stored.refused is not None:
                    return stored
                codes += stored.codes
                altered_from += stored.altered_from or ()
        return CommitResult(codes=codes, altered_from=altered_from if is_altered else None)

    async def _store(
        self, loaded: LoadedGroup, writes: list[OffsetWrite], *, is_altered: bool
    ) -> CommitResult:
        command = CommitOffsets(
            group_id=loaded.machine.group_id, offsets=writes, shard_epoch=loaded.shard_epoch
        )

        def keep(answer: AnyAnswer) -> CommitResult:
            assert isinstance(answer, OffsetsCommitted)
            before = loaded.offsets.known() or {}
            altered_from = (
                [
                    None
                    if (known := before.get((write.topic_id, write.partition))) is None
                    else known.offset
                    for write in writes
                ]
                if is_altered
                else None
            )
            loaded.offsets.store(writes, answer.codes)
            loaded.stored = loaded.stored or 0 in answer.codes
            return CommitResult(codes=answer.codes, altered_from=altered_from)

        result = await self._journal.finish(self._write(loaded, command, keep))
        return CommitResult(error=result) if isinstance(result, GroupError) else result

    async def _hold(
        self, loaded: LoadedGroup, writes: list[OffsetWrite], transaction: OffsetsTransaction
    ) -> CommitResult:
        """Have a transaction hold offsets: what is in memory of the group stays."""
        command = CommitToTransaction(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            epoch=transaction.epoch,
            group_id=loaded.machine.group_id,
            offsets=writes,
            shard_epoch=loaded.shard_epoch,
            adds_group=transaction.adds_group,
            seen_position=transaction.seen_position,
            connection=transaction.connection,
        )
        answer = await self._journal.finish(self._journal.own(partial(self._journal.ask, command)))
        if isinstance(answer, GroupError):
            return CommitResult(error=answer)
        if isinstance(answer, Refused):
            return CommitResult(refused=answer)
        assert isinstance(answer, OffsetsCommitted), answer
        return CommitResult(codes=answer.codes)

    async def fetch(self, group_id: str) -> Mapping[PartitionId, CommittedOffset]:
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
        return await self._load(loaded)

    async def pending(self, group_id: str) -> AbstractSet[PartitionId]:
        """The partitions of which open transactions hold offsets of a group. What is read after
        this is not older: an offset of one that is committed meanwhile is among these.

        Raises:
            NotServedError: this agent does not coordinate it, or can't read them now.
        """
        refused = self._memory.refused(group_id)
        if refused is GroupError.NONE and not self._memory.shows_answers():
            refused = GroupError.COORDINATOR_LOAD_IN_PROGRESS
        if refused is not GroupError.NONE:
            raise NotServedError("fetch offsets", group_id, refused)
        found: set[PartitionId] = set()
        after = (b"", -1)
        while True:
            rows = self._queries.pending_page(group_id, after, limit=PAGE_OFFSETS)
            found.update(rows)
            if len(rows) < PAGE_OFFSETS:
                return found
            after = rows[-1]
            if self._turns.spend(rows=len(rows)):
                await self._turns.wait()

    def settled(self, group_ids: Sequence[str] | None) -> None:
        """Transactions gave groups offsets, which are read at their next use. None: it isn't known
        which groups."""
        groups = self._memory.groups
        for group_id in list(groups) if group_ids is None else group_ids:
            loaded = groups.get(group_id)
            if loaded is not None:
                loaded.offsets.forget()

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
        is_known = machine.protocol_type in {CONSUMER_PROTOCOL_TYPE, STREAMS_PROTOCOL_TYPE}
        if not empty and not is_known:
            return GroupError.NON_EMPTY_GROUP, []
        errors: list[GroupError] = []
        with self._used(loaded):
            for start in range(0, len(items), WRITES_AT_ONCE):
                failure = self._gone(loaded)
                keys = []
                for name, key in items[start : start + WRITES_AT_ONCE]:
                    if machine.is_subscribed(name):
                        errors.append(GroupError.GROUP_SUBSCRIBED_TO_TOPIC)
                    else:
                        errors.append(GroupError.NONE)
                        keys.append(key)
                if keys and failure is GroupError.NONE:
                    failure = await self._journal.finish(self.begin_deletion(loaded, keys))
                if failure is not GroupError.NONE:
                    return failure, []
        return GroupError.NONE, errors

    @contextlib.contextmanager
    def _used(self, loaded: LoadedGroup) -> Iterator[None]:
        """Keep a group in memory for a request that goes on in later turns."""
        loaded.offsets.uses_open += 1
        try:
            yield
        finally:
            loaded.offsets.uses_open -= 1
            self._memory.settle(loaded)

    def _gone(self, loaded: LoadedGroup) -> GroupError:
        """Return the error for a group that, since a request began, another agent or another value
        here has replaced; NONE: neither has."""
        group_id = loaded.machine.group_id
        error = self._memory.refused(group_id)
        if error is GroupError.NONE and self._memory.groups.get(group_id) is not loaded:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        return error

    def begin_deletion(
        self, loaded: LoadedGroup, keys: list[PartitionId], *, seen_ms: Sequence[int] = ()
    ) -> asyncio.Task[GroupError]:
        """Delete these offsets of a group before all that is committed later, even if the caller
        leaves.

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
        """Journal a change of a group's offsets; keep it in memory, even if the caller has left."""

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
        return self._journal.own(write)

    async def _load(self, loaded: LoadedGroup) -> Mapping[PartitionId, CommittedOffset]:
        """Read all offsets of a group, a page at a time."""
        group_id, after = loaded.machine.group_id, (b"", -1)
        load = loaded.offsets.begin_load()
        try:
            with self._used(loaded):
                while True:
                    rows = self._queries.group_offsets_page(group_id, after, limit=PAGE_OFFSETS)
                    load.add(rows)
                    if len(rows) < PAGE_OFFSETS:
                        break
                    after = next(reversed(rows))
                    if self._turns.spend(rows=len(rows)):
                        await self._turns.wait()
                    gone = self._gone(loaded)
                    if gone is not GroupError.NONE:
                        raise NotServedError("fetch offsets", group_id, gone)
        except BaseException:
            load.is_stale = True
            raise
        finally:
            offsets = loaded.offsets.end_load(load)
        return offsets
