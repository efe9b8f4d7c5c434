"""Groups as administrators and tools see them: described, listed, deleted, expired."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.groups.committing import GroupOffsets
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.memory import GroupMemory, LoadedGroup
from penstock.groups.ownership import NotServedError
from penstock.groups.plan import NOTHING, expired_of, seen_of
from penstock.groups.settings import GroupSettings
from penstock.metadata.cluster_tables import group_shard
from penstock.metadata.commands import DeleteGroups

if TYPE_CHECKING:
    from penstock.metadata.queries import Queries
    from penstock.metadata.view import MetadataView


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


class GroupAdministration:
    """What is done to groups from outside."""

    def __init__(
        self,
        *,
        memory: GroupMemory,
        journal: GroupJournal,
        offsets: GroupOffsets,
        queries: "Queries",
        view: "MetadataView",
        now_ms: Callable[[], int | None],
        settings: GroupSettings,
    ) -> None:
        """
        Args:
            now_ms: what ages are measured by; see `GroupCoordinator`.
        """
        self._memory = memory
        self._journal = journal
        self._offsets = offsets
        self._queries = queries
        self._view = view
        self._now_ms = now_ms
        self._settings = settings
        self._expired_up_to = ""

    def describe(self, group_id: str) -> GroupDescription | None:
        """A group; None when there is none.

        Raises:
            NotServedError: this agent does not coordinate it.
        """
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            raise NotServedError("describe group", group_id, refused)
        loaded = self._memory.find(group_id)
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
                )
        seen = {loaded.machine.group_id for loaded in in_memory}
        for row in self._memory.rows():
            if row.group_id not in seen and ownership.epoch(row.group_id) is not None:
                yield GroupOverview(
                    group_id=row.group_id, protocol_type=row.protocol_type, state=GroupState.EMPTY
                )

    async def delete(self, group_ids: Sequence[str]) -> list[GroupError]:
        """Delete groups that have no members, with their offsets; an error for each."""
        errors: dict[str, GroupError] = {}
        doomed: list[LoadedGroup] = []
        for group_id in dict.fromkeys(group_ids):
            refused = self._memory.refused(group_id)
            if refused is not GroupError.NONE:
                errors[group_id] = refused
                continue
            loaded = self._memory.find(group_id)
            if loaded is None or loaded.machine.state is GroupState.DEAD:
                errors[group_id] = GroupError.GROUP_ID_NOT_FOUND
            elif loaded.machine.state is not GroupState.EMPTY:
                errors[group_id] = GroupError.NON_EMPTY_GROUP
            else:
                doomed.append(loaded)
        errors.update(await self._delete_groups(doomed))
        return [errors[group_id] for group_id in group_ids]

    async def expire(self) -> int:
        """Delete expired offsets and empty groups of the next page of groups; call now and then.

        A commit or a join whose answer was lost may be journaled after the look that this decides
        by: what was deleted is what was seen, and what changed since stays (feature level 4).

        Returns: how many groups and offsets the journal was told to delete.
        """
        now_ms = self._now_ms()
        if now_ms is None or self._memory.closed or not self._memory.shows_answers():
            return 0
        count_max = self._settings.expire_groups_max
        rows = self._queries.groups_page(self._expired_up_to, limit=count_max)
        self._expired_up_to = rows[-1].group_id if len(rows) == count_max else ""
        doomed: dict[LoadedGroup, tuple[int, int]] = {}
        # All is decided before anything is waited for: a group that is joined, or an offset that
        # is committed, while the journal works is not what was looked at.
        deletions: list[asyncio.Task[GroupError]] = []
        counts: list[int] = []
        deleted = 0
        for row in rows:
            # Another agent's groups are its own to expire.
            if self._memory.refused(row.group_id) is not GroupError.NONE:
                continue
            loaded = self._memory.groups.get(row.group_id)
            # A group in the middle of something has no need to expire now.
            if loaded is not None and not self._may_expire(loaded):
                continue
            offsets = self._queries.group_offsets(row.group_id)
            plan = expired_of(
                row,
                offsets,
                now_ms=now_ms,
                retention_ms=self._settings.offsets_retention_ms,
                is_read=self._is_read_in(loaded),
            )
            if plan is NOTHING:
                continue
            loaded = loaded or self._memory.find(row.group_id, row=row)
            assert loaded is not None
            if plan.whole_group:
                # Dead from here on, so that nobody joins or commits while others are looked at.
                self._memory.carry_out(
                    loaded, loaded.machine.end(GroupError.COORDINATOR_NOT_AVAILABLE)
                )
                doomed[loaded] = seen_of(row, offsets)
            else:
                seen_ms = [offsets[key].commit_ms for key in plan.offsets]
                deletions.append(
                    self._offsets.begin_deletion(loaded, list(plan.offsets), seen_ms=seen_ms)
                )
                counts.append(len(plan.offsets))
        outcomes = await self._delete_groups(list(doomed), seen=doomed)
        deleted += sum(error is GroupError.NONE for error in outcomes.values())
        for deletion, count in zip(deletions, counts, strict=True):
            if await self._journal.finish(deletion) is GroupError.NONE:
                deleted += count
        return deleted

    async def _delete_groups(
        self,
        doomed: list[LoadedGroup],
        *,
        seen: Mapping[LoadedGroup, tuple[int, int]] | None = None,
    ) -> dict[str, GroupError]:
        """What became of each, by group id. `seen`: see `DeleteGroups`."""
        for loaded in doomed:
            self._memory.carry_out(loaded, loaded.machine.end(GroupError.COORDINATOR_NOT_AVAILABLE))
        # A command names the epoch of one shard: one per shard, and all are under way together.
        # On an embedded server nobody claims shards, and all of them are at epoch 0.
        by_shard: dict[tuple[int, int], list[LoadedGroup]] = {}
        for loaded in doomed:
            epoch = loaded.shard_epoch
            shard = group_shard(loaded.machine.group_id) if epoch else 0
            by_shard.setdefault((shard, epoch), []).append(loaded)
        deletions = [
            (
                groups,
                self._journal.own(partial(self._delete_of_shard, groups, shard_epoch, seen or {})),
            )
            for (_, shard_epoch), groups in by_shard.items()
        ]
        outcomes: dict[str, GroupError] = {}
        for groups, deletion in deletions:
            error = await self._journal.finish(deletion)
            outcomes.update((loaded.machine.group_id, error) for loaded in groups)
        return outcomes

    async def _delete_of_shard(
        self,
        groups: list[LoadedGroup],
        shard_epoch: int,
        seen: Mapping[LoadedGroup, tuple[int, int]],
    ) -> GroupError:
        command = DeleteGroups(
            group_ids=[loaded.machine.group_id for loaded in groups],
            shard_epoch=shard_epoch,
            seen=[seen[loaded] for loaded in groups] if seen else [],
        )
        try:
            answer = await self._journal.commit(command)
        finally:
            # Read again at the next use: not there, or as it was.
            for loaded in groups:
                self._memory.forget_this(loaded)
        return answer if isinstance(answer, GroupError) else GroupError.NONE

    @staticmethod
    def _may_expire(loaded: LoadedGroup) -> bool:
        if loaded.offsets.commits_open:
            return False
        return loaded.is_idle or loaded.machine.state is GroupState.STABLE

    def _is_read_in(self, loaded: LoadedGroup | None) -> Callable[[bytes], bool]:
        def is_read(topic_id: bytes) -> bool:
            if loaded is None or loaded.machine.topics() is None:
                return True
            topic = self._view.topic_by_id(topic_id)
            return topic is not None and loaded.machine.is_subscribed(topic.name)

        return is_read
