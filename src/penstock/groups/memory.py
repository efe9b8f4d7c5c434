"""The groups in memory: machines with their timers and waiting requests, read and let go.

All on the event loop. A request that waits is a future under a number; a machine's effects
resolve it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.groups.durable import decode_state
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.messages import CancelTimer, Effect, Reply, Save, SetTimer, Timer
from penstock.groups.offsets import OffsetCache
from penstock.groups.settings import GroupSettings
from penstock.groups.state import ClassicGroup
from penstock.groups.timers import GroupTimers
from penstock.metadata.commands import SaveGroup

if TYPE_CHECKING:
    from penstock.metadata.queries import Queries
    from penstock.metadata.rows import GroupRow

PAGE_GROUPS: Final = 1_000


class LoadedGroup:
    """A group in memory. `stored`: the state machine has it, too."""

    __slots__ = ("machine", "offsets", "stored", "timers")

    def __init__(self, machine: ClassicGroup, timers: GroupTimers, *, stored: bool) -> None:
        self.machine = machine
        self.timers = timers
        self.offsets = OffsetCache()
        self.stored = stored

    @property
    def is_idle(self) -> bool:
        """Nothing is in memory that the journal has not."""
        return (
            self.machine.is_idle
            and self.machine.state is GroupState.EMPTY
            and not self.timers
            and not self.offsets.commits_open
        )


class GroupMemory:
    """All groups that are in use, and some that were. Use on the event loop only."""

    def __init__(
        self, *, journal: GroupJournal, queries: "Queries", settings: GroupSettings
    ) -> None:
        self._journal = journal
        self._queries = queries
        self._settings = settings
        self.closed = False
        self.groups: dict[str, LoadedGroup] = {}
        # Those that could be dropped from memory, the longest unused first.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self._request_count = 0

    async def close(self) -> None:
        """End: every request that waits is told to look for the coordinator again."""
        self.closed = True
        for loaded in self.groups.values():
            self.carry_out(loaded, loaded.machine.end(GroupError.NOT_COORDINATOR))
            loaded.timers.cancel_all()
        await self._journal.close()
        self.groups.clear()
        self._idle.clear()

    def rows(self) -> "Iterator[GroupRow]":
        """All groups that the state machine has."""
        after = ""
        while rows := self._queries.groups_page(after, limit=PAGE_GROUPS):
            yield from rows
            after = rows[-1].group_id

    def find(
        self, group_id: str, *, create: bool = False, row: "GroupRow | None" = None
    ) -> LoadedGroup | None:
        """The group in memory, read if need be; None when there is none and none is to be made."""
        loaded = self.groups.get(group_id)
        if loaded is not None:
            return loaded
        row = row or self._queries.group(group_id)
        if row is None and not create:
            return None
        machine = ClassicGroup(group_id, self._settings)

        def fired(timer: Timer) -> None:
            self.carry_out(made, machine.timer_fired(timer))

        timers = GroupTimers(asyncio.get_running_loop(), fired)
        made = LoadedGroup(machine, timers, stored=row is not None)
        # Read before it is kept: a damaged group must not pass for an empty one at its next use.
        durable = None if row is None else decode_state(row.state, group_id=group_id)
        self.groups[group_id] = made
        if row is not None and durable is not None:
            effects = machine.restore(row.generation, row.protocol_type, durable)
            self.carry_out(made, effects)
        return made

    def settle(self, loaded: LoadedGroup) -> None:
        """After anything happened to a group: keep it, or let it go when there are too many."""
        group_id = loaded.machine.group_id
        if self.groups.get(group_id) is not loaded:
            # Deleted meanwhile; another one may have its name.
            return
        if not loaded.is_idle:
            self._idle.pop(group_id, None)
            return
        if not loaded.stored:
            # It came into being for a member that went away; nothing knows of it.
            self.forget(group_id)
            return
        self._idle[group_id] = None
        self._idle.move_to_end(group_id)
        while len(self._idle) > self._settings.idle_groups_max:
            oldest = next(iter(self._idle))
            self.forget(oldest)

    def forget(self, group_id: str) -> None:
        """Let a group go; it is read again at its next use."""
        self._idle.pop(group_id, None)
        self.groups.pop(group_id, None)

    # -- effects -------------------------------------------------------------------------------

    def carry_out(self, loaded: LoadedGroup, effects: list[Effect]) -> None:
        """Do what a machine says, in its order."""
        timers = loaded.timers
        for effect in effects:
            if type(effect) is SetTimer:
                timers.set(effect.timer, effect.delay_ms)
            elif type(effect) is CancelTimer:
                timers.cancel(effect.timer)
            elif type(effect) is Reply:
                future = self.waiting.pop(effect.request, None)
                if future is not None and not future.done():
                    future.set_result(effect.reply)
            else:
                assert type(effect) is Save
                # Counted from now, so that the group stays in memory until it is stored.
                loaded.offsets.commits_open += 1
                self._journal.own(self._save(loaded, effect))
        self.settle(loaded)

    def request(self) -> tuple[int, asyncio.Future[Any]]:
        """A number for a request that may wait, and what `answer` waits for."""
        self._request_count += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting[self._request_count] = future
        return self._request_count, future

    async def answer(self, request: int, future: asyncio.Future[Any]) -> Any:
        """Wait for the machine's reply."""
        # Its deadline is the machine's: sessions and rebalances end, so every request is answered.
        try:
            return await future
        finally:
            self.waiting.pop(request, None)

    async def _save(self, loaded: LoadedGroup, save: Save) -> None:
        machine = loaded.machine
        try:
            answer = await self._journal.commit(
                SaveGroup(
                    group_id=machine.group_id,
                    generation=save.generation,
                    protocol_type=save.protocol_type,
                    empty=save.empty,
                    state=save.state,
                    shard_epoch=self._journal.shard_epoch(machine.group_id),
                )
            )
        finally:
            loaded.offsets.commits_open -= 1
        failed = isinstance(answer, GroupError)
        loaded.stored = loaded.stored or not failed
        error = answer if isinstance(answer, GroupError) else GroupError.NONE
        self.carry_out(loaded, machine.saved(save.save, error))
