"""Expiry of groups and offsets: looked at, and deleted, some in each turn of the loop.

A look reads about `ROWS_MAX` rows and decides without waiting, so that a group which is joined, or
an offset that is committed, while the journal works is not what was looked at. A commit or a join
whose answer was lost may be journaled after the look: what was deleted is what was seen, and what
changed since stays (feature level 4).

Of a group with more offsets than one look has room for, each look expires some; the group itself
goes in a later round, once it has few.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.groups.committing import GroupOffsets
from penstock.groups.deletion import ROWS_MAX, GroupDeletion
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.memory import GroupMemory, LoadedGroup
from penstock.groups.plan import NOTHING, expired_of, seen_of
from penstock.groups.settings import GroupSettings
from penstock.model.errors import CorruptDataError
from penstock.state.rows import GroupKind
from penstock.system.heard import Cause, heard
from penstock.system.turns import Turns

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from penstock.state.read.queries import Queries
    from penstock.state.read.view import StateView
    from penstock.state.rows import GroupRow, OffsetRow

LOOK_GROUPS: Final = 100
"""Groups that are read in one go, with the states of their members."""
_BEGIN: Final = (b"", -1)


@dataclass(slots=True)
class _Look:
    """The decisions of one look; all of them are begun in the same turn."""

    rows: int = 0
    doomed: dict[LoadedGroup, tuple[int, int]] = field(default_factory=dict)
    """Groups that go, and what was seen of them."""
    deletions: list[tuple[int, asyncio.Task[GroupError]]] = field(default_factory=list)
    """Deletions of offsets of groups that stay, and of how many."""


class GroupExpiry:
    """Goes through all groups again and again."""

    def __init__(
        self,
        *,
        memory: GroupMemory,
        journal: GroupJournal,
        offsets: GroupOffsets,
        deletion: GroupDeletion,
        queries: "Queries",
        view: "StateView",
        now_ms: Callable[[], int | None],
        settings: GroupSettings,
        turns: Turns,
    ) -> None:
        """
        Args:
            now_ms: what ages are measured by; see `GroupCoordinator`.
        """
        self._memory = memory
        self._journal = journal
        self._offsets = offsets
        self._deletion = deletion
        self._queries = queries
        self._view = view
        self._now_ms = now_ms
        self._settings = settings
        self._turns = turns
        # Up to which group all was looked at; and of the next one, up to which of its offsets.
        self._up_to = ""
        self._within: tuple[str, tuple[bytes, int]] | None = None

    async def expire(self) -> int:
        """Delete expired offsets and empty groups of the next `expire_groups_max` groups; call now
        and then.

        Returns: how many groups and offsets the journal was asked to delete.
        """
        deleted, groups_left = 0, self._settings.expire_groups_max
        while groups_left > 0:
            now_ms = self._now_ms()
            if now_ms is None or self._memory.closed or not self._memory.shows_answers():
                break
            look = _Look()
            looked_at, is_end = self._look(look, now_ms, groups_left)
            groups_left -= looked_at
            deletions = self._deletion.begin(list(look.doomed), seen=look.doomed)
            outcomes = await self._deletion.outcomes(deletions)
            deleted += sum(error is GroupError.NONE for error in outcomes.values())
            for count, deletion in look.deletions:
                if await self._journal.finish(deletion) is GroupError.NONE:
                    deleted += count
            if is_end:
                break
            if self._turns.spend(rows=look.rows):
                await self._turns.wait()
        return deleted

    def _look(self, look: _Look, now_ms: int, groups_max: int) -> tuple[int, bool]:
        """Look at the next groups, up to ROWS_MAX rows.

        Returns: how many groups were looked at to their end, and whether there are no further ones.
        """
        looked_at = 0
        if self._within is not None:
            group_id, after = self._within
            self._within = None
            row = self._queries.group(group_id)
            if row is not None and not self._look_at(look, row, after, now_ms):
                return 0, False
            looked_at, self._up_to = 1, group_id
            groups_max -= 1
        limit = min(groups_max, LOOK_GROUPS)
        rows = self._queries.groups_page(self._up_to, limit=limit) if limit else []
        for row in rows:
            if look.rows >= ROWS_MAX or not self._look_at(look, row, _BEGIN, now_ms):
                return looked_at, False
            looked_at, self._up_to = looked_at + 1, row.group_id
        if len(rows) < limit:
            self._up_to = ""
            return looked_at, True
        return looked_at, False

    def _look_at(self, look: _Look, row: "GroupRow", after: tuple[bytes, int], now_ms: int) -> bool:
        """Look at a group's next offsets; false: it has further ones."""
        look.rows += 1
        # A share group has no offsets to expire by: it stays until it is deleted.
        if row.kind is GroupKind.SHARE:
            return True
        # Another agent's groups are its own to expire.
        if self._memory.refused(row.group_id) is not GroupError.NONE:
            return True
        loaded = self._memory.groups.get(row.group_id)
        # A group in the middle of something has no need to expire now.
        if loaded is not None and not self._may_expire(loaded):
            return True
        offsets = self._queries.group_offsets_page(row.group_id, after, limit=ROWS_MAX)
        look.rows += len(offsets)
        is_end = len(offsets) < ROWS_MAX
        self._decide(look, row, offsets, now_ms, is_whole=is_end and after == _BEGIN)
        if not is_end:
            self._within = row.group_id, next(reversed(offsets))
        return is_end

    def _decide(
        self,
        look: _Look,
        row: "GroupRow",
        offsets: "Mapping[tuple[bytes, int], OffsetRow]",
        now_ms: int,
        *,
        is_whole: bool,
    ) -> None:
        """
        Args:
            offsets: some of the group's; `is_whole`: all of them.
        """
        loaded = self._memory.groups.get(row.group_id)
        plan = expired_of(
            row,
            offsets,
            now_ms=now_ms,
            retention_ms=self._settings.offsets_retention_ms,
            is_read=self._is_read_in(loaded),
        )
        expired = list(offsets) if plan.whole_group else list(plan.offsets)
        if plan is NOTHING or not (is_whole or expired):
            return
        if self._queries.pending_page(row.group_id, _BEGIN, limit=1):
            # Apply would keep what an open transaction has offsets of: in a later round.
            return
        try:
            loaded = loaded or self._memory.find(row.group_id, row=row)
        except CorruptDataError as error:
            heard(Cause.GROUP_UNREADABLE, error, logger, "left out a group")
            return
        assert loaded is not None
        if plan.whole_group and is_whole:
            self._deletion.end(loaded)
            look.doomed[loaded] = seen_of(row, offsets)
            return
        seen_ms = [offsets[key].commit_ms for key in expired]
        deletion = self._offsets.begin_deletion(loaded, expired, seen_ms=seen_ms)
        look.deletions.append((len(expired), deletion))

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
