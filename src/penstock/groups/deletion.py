"""Deleting groups with their offsets: in turns of the loop, by entries of bounded rows.

Applying DeleteGroups deletes all offsets of its groups in one go, on every agent. So a group with
many is first emptied, ROWS_MAX offsets by a command, and only groups of fewer are deleted together,
about ROWS_MAX rows by a command. A group under deletion is dead in memory from the turn on in which
it was looked at: it can't be joined, and nothing can be committed to it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.memory import GroupMemory, LoadedGroup
from penstock.groups.offsets import PartitionId
from penstock.state.cluster_tables import group_shard
from penstock.state.commands import DeleteGroups, DeleteOffsets
from penstock.system.turns import Turns

if TYPE_CHECKING:
    from penstock.state.read.queries import Queries

ROWS_MAX: Final = 500
"""Bound for one command that deletes offsets; smaller groups are gathered up to as many rows, so
that one command that deletes groups has less than twice as many."""


class GroupDeletion:
    """Deletes groups that have no members. Event loop only."""

    def __init__(
        self, *, memory: GroupMemory, journal: GroupJournal, queries: "Queries", turns: Turns
    ) -> None:
        self._memory = memory
        self._journal = journal
        self._queries = queries
        self._turns = turns

    async def delete(self, group_ids: Sequence[str]) -> list[GroupError]:
        """Delete groups that have no members, with their offsets; an error for each.

        What is under way when the caller stops waiting is carried out.
        """
        errors: dict[str, GroupError] = {}
        # One piece of work: a group that is dead in memory must not stay so without its deletion.
        work = self._journal.own(partial(self._delete_all, list(dict.fromkeys(group_ids)), errors))
        unanswered = await self._journal.finish(work) or GroupError.NONE
        return [errors.get(group_id, unanswered) for group_id in group_ids]

    def end(self, loaded: LoadedGroup) -> None:
        """Make a group dead; the caller passes it to `begin` in the same turn."""
        self._memory.carry_out(loaded, loaded.machine.end(GroupError.COORDINATOR_NOT_AVAILABLE))

    def begin(
        self,
        doomed: Sequence[LoadedGroup],
        *,
        seen: Mapping[LoadedGroup, tuple[int, int]] | None = None,
    ) -> list[tuple[list[LoadedGroup], asyncio.Task[GroupError]]]:
        """Make groups dead and begin to delete them.

        Args:
            doomed: with less than ROWS_MAX offsets each; all of them together are deleted by one
                command per shard.
            seen: see `DeleteGroups`.

        Returns: groups, and what becomes of them, for `outcomes`.
        """
        for loaded in doomed:
            self.end(loaded)
        # A command names the epoch of one shard: one per shard, and all are under way together.
        # On an embedded server no agent claims shards, and all of them are at epoch 0.
        by_shard: dict[tuple[int, int], list[LoadedGroup]] = {}
        for loaded in doomed:
            epoch = loaded.shard_epoch
            shard = group_shard(loaded.machine.group_id) if epoch else 0
            by_shard.setdefault((shard, epoch), []).append(loaded)
        return [
            (
                groups,
                self._journal.own(partial(self._delete_of_shard, groups, shard_epoch, seen or {})),
            )
            for (_, shard_epoch), groups in by_shard.items()
        ]

    async def outcomes(
        self, deletions: Sequence[tuple[list[LoadedGroup], asyncio.Task[GroupError]]]
    ) -> dict[str, GroupError]:
        """Return how the deletion of each group ended, by its id."""
        found: dict[str, GroupError] = {}
        for groups, deletion in deletions:
            error = await self._journal.finish(deletion)
            found.update((loaded.machine.group_id, error) for loaded in groups)
        return found

    async def _delete_all(self, group_ids: Sequence[str], errors: dict[str, GroupError]) -> None:
        doomed: list[LoadedGroup] = []
        rows = 0
        try:
            for group_id in group_ids:
                loaded = self._doomed(group_id, errors)
                if loaded is None:
                    if self._turns.spend(rows=1):
                        await self._turns.wait()
                    continue
                doomed.append(loaded)
                error, left = await self._empty(loaded)
                if error is not GroupError.NONE:
                    doomed.remove(loaded)
                    self._memory.forget_this(loaded)
                    errors[group_id] = error
                    continue
                rows += 1 + left
                if rows >= ROWS_MAX:
                    begun = self.begin(self._held(doomed, errors))
                    doomed, rows = [], 0
                    errors.update(await self.outcomes(begun))
            begun, doomed = self.begin(self._held(doomed, errors)), []
            errors.update(await self.outcomes(begun))
        finally:
            # Those whose deletion an error kept from beginning are read again at their next use.
            for loaded in doomed:
                self._memory.forget_this(loaded)

    def _held(
        self, doomed: Sequence[LoadedGroup], errors: dict[str, GroupError]
    ) -> list[LoadedGroup]:
        """Return the groups that memory still holds; the others' error is in `errors`.

        One that was let go of while others were emptied may be in use again, under the same epoch
        of its shard, with members and offsets that were acknowledged since.
        """
        held = []
        for loaded in doomed:
            if self._memory.holds(loaded):
                held.append(loaded)
            else:
                errors[loaded.machine.group_id] = GroupError.NOT_COORDINATOR
        return held

    def _doomed(self, group_id: str, errors: dict[str, GroupError]) -> LoadedGroup | None:
        """The group, dead from here on; None: it can't be deleted, for the reason in `errors`."""
        refused = self._memory.refused(group_id)
        if refused is not GroupError.NONE:
            errors[group_id] = refused
            return None
        loaded = self._memory.find(group_id)
        if loaded is None or loaded.machine.state is GroupState.DEAD:
            errors[group_id] = GroupError.GROUP_ID_NOT_FOUND
        elif loaded.machine.state is not GroupState.EMPTY:
            errors[group_id] = GroupError.NON_EMPTY_GROUP
        else:
            self.end(loaded)
            return loaded
        return None

    async def _empty(self, loaded: LoadedGroup) -> tuple[GroupError, int]:
        """Delete a dead group's offsets but for less than ROWS_MAX; how many are left. What is
        pending in transactions goes before what is committed."""
        group_id = loaded.machine.group_id
        left = 0
        for read in (self._queries.pending_page, self._queries.group_offsets_page):
            error, count = await self._empty_of(loaded, partial(read, group_id, limit=ROWS_MAX))
            if error is not GroupError.NONE:
                return error, 0
            left += count
        return GroupError.NONE, left

    async def _empty_of(
        self, loaded: LoadedGroup, read: Callable[[PartitionId], Collection[PartitionId]]
    ) -> tuple[GroupError, int]:
        group_id, after = loaded.machine.group_id, (b"", -1)
        while True:
            rows = list(read(after))
            if self._turns.spend(rows=1 + len(rows)):
                await self._turns.wait()
            if not self._memory.holds(loaded):
                # Let go of, and maybe in use again: see `_held`.
                return GroupError.NOT_COORDINATOR, 0
            if len(rows) < ROWS_MAX:
                return GroupError.NONE, len(rows)
            after = rows[-1]
            answer = await self._journal.commit(
                DeleteOffsets(group_id=group_id, items=rows, shard_epoch=loaded.shard_epoch)
            )
            if isinstance(answer, GroupError):
                return answer, 0

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
