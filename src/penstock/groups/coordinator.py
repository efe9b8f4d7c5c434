"""The shell around the groups' machines: waiting requests, timers, the journal, memory.

All on the event loop. A request that waits is a future under a number; the machine's effects
resolve it. Journaling runs in tasks that the coordinator owns, so that a client that goes away in
the middle does not leave memory and journal apart.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.groups.durable import decode_state
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import (
    CancelTimer,
    Effect,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveResult,
    Reply,
    Save,
    SetTimer,
    SyncReply,
    SyncRequest,
    Timer,
)
from penstock.groups.offsets import CommittedOffset, OffsetCache, PartitionId
from penstock.groups.plan import NOTHING, expired_of
from penstock.groups.settings import GroupSettings
from penstock.groups.state import ClassicGroup
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.timers import GroupTimers
from penstock.metadata.commands import (
    AnyAnswer,
    AnyCommand,
    CommitOffsets,
    DeleteGroups,
    DeleteOffsets,
    OffsetsCommitted,
    OffsetWrite,
    Refusal,
    Refused,
    SaveGroup,
)
from penstock.metadata.committer import Committer
from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.ports.random import Random

if TYPE_CHECKING:
    from penstock.metadata.queries import Queries
    from penstock.metadata.rows import GroupRow
    from penstock.metadata.view import MetadataView

JOURNAL_TIMEOUT_S: Final = 30.0
"""How long a client waits for the journal; what it asked for may still be done after that."""
CLOSE_TIMEOUT_S: Final = 10.0
PAGE_GROUPS: Final = 1_000
MEMBER_ID_BYTES: Final = 16

AnyReply = JoinReply | SyncReply
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class _Loaded:
    """A group in memory. `stored`: the state machine has it, too."""

    __slots__ = ("machine", "offsets", "stored", "timers")

    def __init__(self, machine: ClassicGroup, timers: GroupTimers, *, stored: bool) -> None:
        self.machine = machine
        self.timers = timers
        self.offsets = OffsetCache()
        self.stored = stored

    @property
    def is_idle(self) -> bool:
        return (
            self.machine.is_idle
            and self.machine.state is GroupState.EMPTY
            and not self.timers
            and not self.offsets.commits_open
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: GroupState


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of a commit: an error for all of it, or per offset 0 or a Refusal."""

    error: GroupError = GroupError.NONE
    codes: Sequence[int] = ()


class GroupCoordinator:
    """Coordinates all consumer groups of this agent. Use on the event loop only.

    `start` before the first request; `close` answers whatever waits.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        queries: "Queries",
        view: "MetadataView",
        clock: Clock,
        random: Random,
        settings: GroupSettings | None = None,
    ) -> None:
        self.settings = settings or GroupSettings()
        self._committer = committer
        self._queries = queries
        self._view = view
        self._clock = clock
        self._random = random
        self._groups: dict[str, _Loaded] = {}
        # Those that could be dropped from memory, the longest unused first.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._request_count = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._expired_up_to = ""
        self._closed = False

    def start(self) -> None:
        """Take up all groups that have members, so that their sessions run."""
        for row in self._rows():
            if row.empty_since_ms is None:
                self._group(row.group_id, row=row)

    async def close(self) -> None:
        """End: every request that waits is told to look for the coordinator again."""
        self._closed = True
        for loaded in self._groups.values():
            self._carry_out(loaded, loaded.machine.end(GroupError.NOT_COORDINATOR))
            loaded.timers.cancel_all()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
        self._groups.clear()
        self._idle.clear()

    # -- members -------------------------------------------------------------------------------

    def new_member_id(self, prefix: str) -> str:
        """An id that nobody has: the client's id, or the instance's, and a random number."""
        return f"{prefix}-{self._random.token_bytes(MEMBER_ID_BYTES).hex()}"

    async def join(self, group_id: str, join: JoinRequest) -> JoinReply:
        """Wait until the group's next generation begins, or the join is refused."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return JoinReply(error=error, member_id=join.member_id)
        loaded = self._group(group_id, create=not join.member_id)
        if loaded is None:
            return JoinReply(error=GroupError.UNKNOWN_MEMBER_ID, member_id=join.member_id)
        request, future = self._request()
        self._carry_out(loaded, loaded.machine.join(request, join))
        reply: JoinReply = await self._answer(request, future)
        return reply

    async def sync(self, group_id: str, sync: SyncRequest) -> SyncReply:
        """Wait for the member's assignment, which is journaled by then."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return SyncReply(error=error)
        loaded = self._group(group_id)
        if loaded is None:
            return SyncReply(error=GroupError.UNKNOWN_MEMBER_ID)
        request, future = self._request()
        self._carry_out(loaded, loaded.machine.sync(request, sync))
        reply: SyncReply = await self._answer(request, future)
        return reply

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError:
        """A member lives; what it is told."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return error
        loaded = self._group(group_id)
        if loaded is None:
            return GroupError.UNKNOWN_MEMBER_ID
        error, effects = loaded.machine.heartbeat(member_id, instance_id, generation)
        self._carry_out(loaded, effects)
        return error

    def leave(self, group_id: str, leavers: list[Leaver]) -> tuple[GroupError, list[LeaveResult]]:
        """Members leave; an error for all, or a result for each."""
        error = self._refused(group_id)
        if error is not GroupError.NONE:
            return error, []
        loaded = self._group(group_id)
        if loaded is None:
            unknown = GroupError.UNKNOWN_MEMBER_ID
            return GroupError.NONE, [LeaveResult(*leaver, unknown) for leaver in leavers]
        results, effects = loaded.machine.leave(leavers)
        self._carry_out(loaded, effects)
        return GroupError.NONE, results

    # -- offsets -------------------------------------------------------------------------------

    async def commit_offsets(
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
        if self._closed:
            return CommitResult(error=GroupError.NOT_COORDINATOR)
        loaded = self._group(group_id, create=generation < 0)
        if loaded is None:
            return CommitResult(error=GroupError.GROUP_ID_NOT_FOUND)
        error = loaded.machine.commit(member_id, instance_id, generation)
        if error is not GroupError.NONE:
            self._settle(loaded)
            return CommitResult(error=error)
        # A simple consumer's group has no member to hear of, and settling it here would let a new
        # one go before its first offset is stored.
        if effects := loaded.machine.commit_seen(member_id):
            self._carry_out(loaded, effects)
        if not writes:
            self._settle(loaded)
            return CommitResult()
        command = CommitOffsets(
            group_id=group_id, offsets=writes, shard_epoch=self._shard_epoch(group_id)
        )

        def keep(answer: AnyAnswer) -> CommitResult:
            assert isinstance(answer, OffsetsCommitted)
            loaded.offsets.store(writes, answer.codes)
            loaded.stored = loaded.stored or 0 in answer.codes
            return CommitResult(codes=answer.codes)

        result = await self._write_offsets(loaded, command, keep)
        return CommitResult(error=result) if isinstance(result, GroupError) else result

    def fetch_offsets(self, group_id: str) -> Mapping[PartitionId, CommittedOffset]:
        """All committed offsets of a group; none when there is no such group.

        Raises:
            RetryableError: the coordinator has ended.
        """
        if self._closed:
            raise RetryableError("fetch offsets", group_id, "the coordinator has ended")
        loaded = self._group(group_id)
        if loaded is None:
            return {}
        known = loaded.offsets.known()
        return known if known is not None else self._load_offsets(loaded)

    async def delete_offsets(
        self, group_id: str, items: list[tuple[str, PartitionId]]
    ) -> tuple[GroupError, list[GroupError]]:
        """Delete offsets of topics that no member reads.

        Args:
            items: topic name, and topic id with partition.
        Returns: an error for all, or one for each.
        """
        if self._closed:
            return GroupError.NOT_COORDINATOR, []
        loaded = self._group(group_id)
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
            failure = await self._delete_offsets(loaded, keys)
            if failure is not GroupError.NONE:
                return failure, []
        return GroupError.NONE, errors

    # -- administration ------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription | None:
        """A group; None when there is none.

        Raises:
            RetryableError: the coordinator has ended.
        """
        if self._closed:
            raise RetryableError("describe group", group_id, "the coordinator has ended")
        loaded = self._group(group_id)
        if loaded is None or loaded.machine.state is GroupState.DEAD:
            return None
        machine = loaded.machine
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
                    assignment=member.assignment if stable else b"",
                )
                for member in machine.roster
            ),
        )

    def overviews(self) -> Iterator[GroupOverview]:
        """All groups, those that are only in memory first.

        Raises:
            RetryableError: the coordinator has ended.
        """
        if self._closed:
            raise RetryableError("list groups", "all", "the coordinator has ended")
        in_memory = list(self._groups.values())
        for loaded in in_memory:
            machine = loaded.machine
            if machine.state is not GroupState.DEAD:
                yield GroupOverview(
                    group_id=machine.group_id,
                    protocol_type=machine.protocol_type,
                    state=machine.state,
                )
        seen = {loaded.machine.group_id for loaded in in_memory}
        for row in self._rows():
            if row.group_id not in seen:
                yield GroupOverview(
                    group_id=row.group_id, protocol_type=row.protocol_type, state=GroupState.EMPTY
                )

    async def delete_groups(self, group_ids: Sequence[str]) -> list[GroupError]:
        """Delete groups that have no members, with their offsets; an error for each."""
        if self._closed:
            return [GroupError.NOT_COORDINATOR] * len(group_ids)
        errors: dict[str, GroupError] = {}
        doomed: list[_Loaded] = []
        for group_id in dict.fromkeys(group_ids):
            loaded = self._group(group_id)
            if loaded is None or loaded.machine.state is GroupState.DEAD:
                errors[group_id] = GroupError.GROUP_ID_NOT_FOUND
            elif loaded.machine.state is not GroupState.EMPTY:
                errors[group_id] = GroupError.NON_EMPTY_GROUP
            else:
                doomed.append(loaded)
        failure = await self._delete_groups(doomed) if doomed else GroupError.NONE
        errors.update((loaded.machine.group_id, failure) for loaded in doomed)
        return [errors[group_id] for group_id in group_ids]

    async def expire(self) -> int:
        """Delete expired offsets and empty groups of the next page of groups; call now and then.

        Returns: how many groups and offsets were deleted.
        """
        if self._closed:
            return 0
        count_max = self.settings.expire_groups_max
        rows = self._queries.groups_page(self._expired_up_to, limit=count_max)
        self._expired_up_to = rows[-1].group_id if len(rows) == count_max else ""
        now_ms = self._clock.now_ms()
        doomed: list[_Loaded] = []
        deleted = 0
        for row in rows:
            loaded = self._groups.get(row.group_id)
            # A group in the middle of something has no need to expire now.
            if loaded is not None and not self._may_expire(loaded):
                continue
            plan = expired_of(
                row,
                self._queries.group_offsets(row.group_id),
                now_ms=now_ms,
                retention_ms=self.settings.offsets_retention_ms,
                is_read=self._is_read_in(loaded),
            )
            if plan is NOTHING:
                continue
            loaded = loaded or self._group(row.group_id, row=row)
            assert loaded is not None
            if plan.whole_group:
                # Dead from here on, so that nobody joins or commits while others are looked at.
                self._carry_out(loaded, loaded.machine.end(GroupError.COORDINATOR_NOT_AVAILABLE))
                doomed.append(loaded)
            elif await self._delete_offsets(loaded, list(plan.offsets)) is GroupError.NONE:
                deleted += len(plan.offsets)
        if doomed and await self._delete_groups(doomed) is GroupError.NONE:
            deleted += len(doomed)
        return deleted

    # -- groups in memory ----------------------------------------------------------------------

    def _refused(self, group_id: str) -> GroupError:
        if not group_id:
            return GroupError.INVALID_GROUP_ID
        return GroupError.NOT_COORDINATOR if self._closed else GroupError.NONE

    def _shard_epoch(self, group_id: str) -> int:  # noqa: ARG002
        # One agent owns all groups for now. Once shards of groups are owned by journal entries,
        # this is the epoch of the entry that gave us the shard of this group.
        return 0

    def _rows(self) -> "Iterator[GroupRow]":
        after = ""
        while rows := self._queries.groups_page(after, limit=PAGE_GROUPS):
            yield from rows
            after = rows[-1].group_id

    def _group(
        self, group_id: str, *, create: bool = False, row: "GroupRow | None" = None
    ) -> _Loaded | None:
        """The group in memory, read if need be; None when there is none and none is to be made."""
        loaded = self._groups.get(group_id)
        if loaded is not None:
            return loaded
        row = row or self._queries.group(group_id)
        if row is None and not create:
            return None
        machine = ClassicGroup(group_id, self.settings)

        def fired(timer: Timer) -> None:
            self._carry_out(made, machine.timer_fired(timer))

        timers = GroupTimers(asyncio.get_running_loop(), fired)
        made = _Loaded(machine, timers, stored=row is not None)
        self._groups[group_id] = made
        if row is not None:
            durable = decode_state(row.state, group_id=group_id)
            effects = machine.restore(row.generation, row.protocol_type, durable)
            self._carry_out(made, effects)
        return made

    def _settle(self, loaded: _Loaded) -> None:
        """After anything happened to a group: keep it, or let it go when there are too many."""
        group_id = loaded.machine.group_id
        if self._groups.get(group_id) is not loaded:
            # Deleted meanwhile; another one may have its name.
            return
        if not loaded.is_idle:
            self._idle.pop(group_id, None)
            return
        if not loaded.stored:
            # It came into being for a member that went away; nothing knows of it.
            self._forget(group_id)
            return
        self._idle[group_id] = None
        self._idle.move_to_end(group_id)
        while len(self._idle) > self.settings.idle_groups_max:
            oldest = next(iter(self._idle))
            self._forget(oldest)

    def _forget(self, group_id: str) -> None:
        self._idle.pop(group_id, None)
        self._groups.pop(group_id, None)

    # -- effects -------------------------------------------------------------------------------

    def _carry_out(self, loaded: _Loaded, effects: list[Effect]) -> None:
        timers = loaded.timers
        for effect in effects:
            if type(effect) is SetTimer:
                timers.set(effect.timer, effect.delay_ms)
            elif type(effect) is CancelTimer:
                timers.cancel(effect.timer)
            elif type(effect) is Reply:
                future = self._waiting.pop(effect.request, None)
                if future is not None and not future.done():
                    future.set_result(effect.reply)
            else:
                assert type(effect) is Save
                # Counted from now, so that the group stays in memory until it is stored.
                loaded.offsets.commits_open += 1
                self._own(self._save(loaded, effect))
        self._settle(loaded)

    def _request(self) -> tuple[int, asyncio.Future[Any]]:
        self._request_count += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._request_count] = future
        return self._request_count, future

    async def _answer(self, request: int, future: asyncio.Future[Any]) -> Any:
        # Its deadline is the machine's: sessions and rebalances end, so every request is answered.
        try:
            return await future
        finally:
            self._waiting.pop(request, None)

    # -- the journal ---------------------------------------------------------------------------

    def _own(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(self, work: Coroutine[Any, Any, _T]) -> _T | GroupError:
        """Wait for work that goes on even if this client stops waiting."""
        task = self._own(work)
        done, _ = await asyncio.wait({task}, timeout=JOURNAL_TIMEOUT_S)
        return task.result() if done else GroupError.COORDINATOR_NOT_AVAILABLE

    async def _commit(self, command: AnyCommand) -> AnyAnswer | GroupError:
        """Journal a command; its answer, or what a client is told instead."""
        try:
            (answer,) = await self._committer.commit([command])
        except PenstockError as error:
            logger.warning("could not journal a group's command: %s", error)
            return _journal_error(error)
        if isinstance(answer, Refused):
            logger.warning(
                "a group's command was refused: %s %s", answer.reason.name, answer.detail
            )
            stale = answer.reason is Refusal.STALE_SHARD
            return GroupError.NOT_COORDINATOR if stale else GroupError.UNKNOWN_SERVER_ERROR
        return answer

    async def _save(self, loaded: _Loaded, save: Save) -> None:
        machine = loaded.machine
        try:
            answer = await self._commit(
                SaveGroup(
                    group_id=machine.group_id,
                    generation=save.generation,
                    protocol_type=save.protocol_type,
                    empty=save.empty,
                    state=save.state,
                    shard_epoch=self._shard_epoch(machine.group_id),
                )
            )
        finally:
            loaded.offsets.commits_open -= 1
        failed = isinstance(answer, GroupError)
        loaded.stored = loaded.stored or not failed
        error = answer if isinstance(answer, GroupError) else GroupError.NONE
        self._carry_out(loaded, machine.saved(save.save, error))

    async def _write_offsets(
        self, loaded: _Loaded, command: AnyCommand, keep: Callable[[AnyAnswer], _T]
    ) -> _T | GroupError:
        """Journal a change of a group's offsets and, whoever still waits, keep it in memory."""

        async def write() -> _T | GroupError:
            try:
                answer = await self._commit(command)
                if not isinstance(answer, GroupError):
                    return keep(answer)
                # It may or may not be in the journal.
                offsets.forget()
                return answer
            finally:
                offsets.commits_open -= 1
                self._settle(loaded)

        offsets = loaded.offsets
        offsets.commits_open += 1
        self._settle(loaded)
        return await self._finish(write())

    async def _delete_offsets(self, loaded: _Loaded, keys: list[PartitionId]) -> GroupError:
        group_id = loaded.machine.group_id
        command = DeleteOffsets(
            group_id=group_id, items=keys, shard_epoch=self._shard_epoch(group_id)
        )

        def keep(_: AnyAnswer) -> GroupError:
            loaded.offsets.remove(keys)
            return GroupError.NONE

        return await self._write_offsets(loaded, command, keep)

    async def _delete_groups(self, doomed: list[_Loaded]) -> GroupError:
        group_ids = [loaded.machine.group_id for loaded in doomed]
        for loaded in doomed:
            self._carry_out(loaded, loaded.machine.end(GroupError.COORDINATOR_NOT_AVAILABLE))
        command = DeleteGroups(group_ids=group_ids, shard_epoch=self._shard_epoch(group_ids[0]))

        async def delete() -> GroupError:
            answer = await self._commit(command)
            # Read again at the next use: not there, or as it was.
            for loaded in doomed:
                self._forget(loaded.machine.group_id)
            return answer if isinstance(answer, GroupError) else GroupError.NONE

        return await self._finish(delete())

    # -- offsets in memory ---------------------------------------------------------------------

    def _load_offsets(self, loaded: _Loaded) -> Mapping[PartitionId, CommittedOffset]:
        offsets = loaded.offsets.load(self._queries.group_offsets(loaded.machine.group_id))
        self._settle(loaded)
        return offsets

    @staticmethod
    def _may_expire(loaded: _Loaded) -> bool:
        if loaded.offsets.commits_open:
            return False
        return loaded.is_idle or loaded.machine.state is GroupState.STABLE

    def _is_read_in(self, loaded: _Loaded | None) -> Callable[[bytes], bool]:
        def is_read(topic_id: bytes) -> bool:
            if loaded is None or loaded.machine.topics() is None:
                return True
            topic = self._view.topic_by_id(topic_id)
            return topic is not None and loaded.machine.is_subscribed(topic.name)

        return is_read


def _journal_error(error: PenstockError) -> GroupError:
    if isinstance(error, FencedError):
        return GroupError.NOT_COORDINATOR
    if isinstance(error, RetryableError):
        return GroupError.COORDINATOR_NOT_AVAILABLE
    return GroupError.UNKNOWN_SERVER_ERROR
