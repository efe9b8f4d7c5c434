"""The groups in memory: machines with their timers and waiting requests, read and let go.

All on the event loop. A request that waits is a future under a number; a machine's effects
resolve it.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer.catalog import regex_fault
from penstock.groups.consumer.durable import commands_of, decode_group
from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember, decode_member
from penstock.groups.consumer.messages import BecomeClassic, Catalog, HeartbeatReply, ReadAgain
from penstock.groups.consumer.messages import Effect as ConsumerEffect
from penstock.groups.consumer.messages import SaveMembers as SaveConsumers
from penstock.groups.durable import decode_state, encode_state
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.journal import GroupJournal
from penstock.groups.messages import (
    CancelTimer,
    Effect,
    Reply,
    Save,
    SetTimer,
    Timer,
)
from penstock.groups.migration import TopicName, downgraded
from penstock.groups.offsets import OffsetCache
from penstock.groups.ownership import Ownership
from penstock.groups.room import GroupRoom
from penstock.groups.settings import GroupSettings
from penstock.groups.share import durable as share_durable
from penstock.groups.share.configs import GroupConfigs, share_configs
from penstock.groups.share.machine import ShareGroup
from penstock.groups.share.messages import Effect as ShareEffect
from penstock.groups.share.messages import (
    RecordsFreed,
    SaveShareMembers,
    SaveSharePartitions,
)
from penstock.groups.share.saving import member_commands, share_commands
from penstock.groups.state import ClassicGroup
from penstock.groups.streams import durable as streams_durable
from penstock.groups.streams.machine import StreamsGroup
from penstock.groups.streams.member import decode_member as decode_streams_member
from penstock.groups.streams.messages import Effect as StreamsEffect
from penstock.groups.streams.messages import SaveStreams
from penstock.groups.streams.saving import streams_commands
from penstock.groups.streams.topology import TOPOLOGY_ROW, decode_topology
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.timers import GroupTimers
from penstock.model.errors import CorruptDataError
from penstock.state.commands import SaveGroup, SaveMembers, SaveShares
from penstock.state.rows import GroupKind
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

if TYPE_CHECKING:
    from penstock.state.read.queries import Queries
    from penstock.state.rows import GroupRow

logger = logging.getLogger(__name__)

Machine = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup
AnyEffect = Effect | ConsumerEffect | ShareEffect | StreamsEffect

PAGE_GROUPS: Final = 500
"""Groups that are read at a time: a turn's rows (`penstock.system.turns`)."""
READ_AGAIN_S: Final = 0.1
"""How soon groups are read that the database could not show, in seconds."""
UNSERVED_TURN_MS: Final = 500
"""How often a timer that has run out looks whether its group is served again."""


class TooManyGroupsError(Exception):
    """A group would begin, and there are as many as may be."""


class LoadedGroup:
    """A group in memory. `stored`: the state machine has it, too.

    `shard_epoch`: as of which it was read, and which all its writes carry. One that is read again
    after its shard went away and came back is another value, so that nothing of the former is
    ever written under the latter's epoch.
    """

    __slots__ = ("machine", "offsets", "shard_epoch", "stored", "timers", "watchers")

    def __init__(
        self,
        machine: Machine,
        timers: GroupTimers,
        *,
        shard_epoch: int,
        stored: bool,
    ) -> None:
        self.machine = machine
        self.timers = timers
        self.offsets = OffsetCache()
        self.shard_epoch = shard_epoch
        self.stored = stored
        self.watchers: set[Callable[[], None]] = set()
        """Called when records of a share group may be fetched that could not be."""

    @property
    def kind(self) -> GroupKind:
        """The protocol that the group has now."""
        if isinstance(self.machine, ShareGroup):
            return GroupKind.SHARE
        if isinstance(self.machine, StreamsGroup):
            return GroupKind.STREAMS
        is_consumer = isinstance(self.machine, ConsumerGroup)
        return GroupKind.CONSUMER if is_consumer else GroupKind.CLASSIC

    @property
    def is_idle(self) -> bool:
        """Nothing is in memory that the journal has not."""
        return (
            self.machine.is_idle
            and self.machine.state is GroupState.EMPTY
            and not self.timers
            and not self.offsets.commits_open
            and not self.offsets.uses_open
        )


class GroupMemory:
    """All groups that are in use, and some that were. Use on the event loop only."""

    def __init__(
        self,
        *,
        journal: GroupJournal,
        queries: "Queries",
        settings: GroupSettings,
        ownership: Ownership,
        shows_answers: Callable[[], bool],
        configs: GroupConfigs,
        topic_name: TopicName,
    ) -> None:
        self._configs = configs
        self.topic_name = topic_name
        self._journal = journal
        self._queries = queries
        self._settings = settings
        self.ownership = ownership
        self.shows_answers = shows_answers
        """Says whether the database shows all that has been answered."""
        self.closed = False
        self.groups: dict[str, LoadedGroup] = {}
        # Those that could be dropped from memory, the longest unused first.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._room = GroupRoom(
            queries, groups_max=settings.groups_max, held=lambda: len(self.groups)
        )
        self.waiting: dict[int, asyncio.Future[object]] = {}
        self._request_count = 0
        self._in_doubt: set[str] = set()

    async def close(self) -> None:
        """End: answer every waiting request with the advice to look for the coordinator again."""
        self.closed = True
        for loaded in self.groups.values():
            self.carry_out(loaded, loaded.machine.end(GroupError.NOT_COORDINATOR))
            loaded.timers.cancel_all()
        await self._journal.close()
        self.groups.clear()
        self._idle.clear()

    def refused(self, group_id: str) -> GroupError:
        """Return the error that any request for a group gets; NONE: it is served here, now."""
        if self.closed:
            return GroupError.NOT_COORDINATOR
        error = self.ownership.error(group_id)
        if error is GroupError.NONE and group_id not in self.groups and not self.shows_answers():
            # Read now it would go back to what it was; every client asks again.
            return GroupError.COORDINATOR_LOAD_IN_PROGRESS
        return error

    def release(self, is_gone: Callable[[str], bool]) -> None:
        """Drop groups that another agent coordinates; send their waiting requests there."""
        for group_id in [group_id for group_id in self.groups if is_gone(group_id)]:
            loaded = self.groups[group_id]
            self.carry_out(loaded, loaded.machine.end(GroupError.NOT_COORDINATOR))
            loaded.timers.cancel_all()
            self._doubt_offsets(loaded)
            self.forget(group_id)

    def load_page(self, after: str, is_wanted: Callable[[str], bool]) -> str | None:
        """Load those groups with members of one page that are wanted.

        Returns: where the next page begins; None behind the last.
        """
        rows = self._queries.groups_page(after, limit=PAGE_GROUPS)
        for row in rows:
            if row.empty_since_ms is None and is_wanted(row.group_id):
                try:
                    self.find(row.group_id, row=row)
                except CorruptDataError as error:
                    # Its clients get the error at each request; the other groups are well.
                    heard(Cause.GROUP_UNREADABLE, error, logger, "left out a group")
        return rows[-1].group_id if len(rows) == PAGE_GROUPS else None

    def rows(self) -> "Iterator[GroupRow]":
        """All groups that the state machine has."""
        after = ""
        while rows := self._queries.groups_page(after, limit=PAGE_GROUPS):
            yield from rows
            after = rows[-1].group_id

    def find(
        self,
        group_id: str,
        *,
        create: bool = False,
        kind: GroupKind = GroupKind.CLASSIC,
        row: "GroupRow | None" = None,
    ) -> LoadedGroup | None:
        """The group in memory, read if need be; None when there is none and none is to be made.

        Args:
            kind: of the one that is made; a group that is there has its own.

        Raises:
            TooManyGroupsError: there is none, and no further one may be made.
            CorruptDataError: what is stored of it is damaged.
        """
        loaded = self.groups.get(group_id)
        if loaded is not None:
            return loaded
        shard_epoch = self.ownership.epoch(group_id)
        if shard_epoch is None:
            return None
        row = row or self._queries.group(group_id)
        if row is None:
            if not create:
                return None
            if not self._room.begin(group_id):
                raise TooManyGroupsError
        # Read before it is kept: a damaged group must not pass for an empty one at its next use.
        machine, effects = self._read(row) if row else (self._new_machine(group_id, kind), [])

        def fired(timer: Timer, delay_ms: int) -> None:
            unserved_ms = delay_ms - 1000 * self.ownership.served_s()
            if unserved_ms > 0:
                # No member could be heard for all of that time, so no member's silence counts
                # against it: it counts from when the group was served again.
                if timer.kind == "session":
                    made.machine.session_passed_unheard(timer.member_id)
                timers.set_again(timer, max(UNSERVED_TURN_MS, math.ceil(unserved_ms)))
                return
            self.carry_out(made, made.machine.timer_fired(timer))

        timers = GroupTimers(asyncio.get_running_loop(), fired)
        made = LoadedGroup(machine, timers, shard_epoch=shard_epoch, stored=row is not None)
        self.groups[group_id] = made
        if group_id in self._in_doubt:
            self._in_doubt.remove(group_id)
            made.offsets.doubt()
        if row is not None:
            self.carry_out(made, effects)
        return made

    def become(self, loaded: LoadedGroup, kind: GroupKind) -> None:
        """Give a group without members the other protocol; it goes on from its generation."""
        if loaded.kind is not kind:
            before = loaded.machine
            assert before.is_idle
            if isinstance(before, StreamsGroup):
                self._drop_topology(loaded, before)
            loaded.machine = self._new_machine(before.group_id, kind, generation=before.generation)

    def _drop_topology(self, loaded: LoadedGroup, before: StreamsGroup) -> None:
        """Take a streams group's topology out of the journal: the group becomes a classic one."""
        command = SaveMembers(
            group_id=before.group_id,
            generation=before.generation,
            protocol_type="",
            kind=GroupKind.CLASSIC,
            empty=True,
            state=b"",
            rows=[],
            removed=[TOPOLOGY_ROW],
            shard_epoch=loaded.shard_epoch,
        )
        loaded.offsets.commits_open += 1
        self._journal.own(partial(self._commit_all, loaded, [command]))

    def upgrade(
        self, loaded: LoadedGroup, members: Iterable[ConsumerMember], catalog: Catalog
    ) -> None:
        """Give a group of classic members the protocol of KIP-848; what waits is answered with the
        advice to join again."""
        before = loaded.machine
        self.carry_out(loaded, before.end(GroupError.REBALANCE_IN_PROGRESS))
        loaded.timers.cancel_all()
        group = self._new_machine(before.group_id, GroupKind.CONSUMER)
        assert isinstance(group, ConsumerGroup)
        loaded.machine = group
        self.carry_out(
            loaded, group.take_over(epoch=before.generation, members=members, catalog=catalog)
        )

    def _downgrade(self, loaded: LoadedGroup, effect: BecomeClassic) -> None:
        """Make a group of KIP-848 with classic members alone a classic one."""
        before = loaded.machine
        assert isinstance(before, ConsumerGroup)
        group_id, generation = before.group_id, before.epoch
        durable = downgraded(before, self.topic_name, rebalances=effect.rebalances)
        loaded.timers.cancel_all()
        loaded.machine = classic = ClassicGroup(group_id, self._settings)
        command = SaveMembers(
            group_id=group_id,
            generation=generation,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            kind=GroupKind.CLASSIC,
            empty=False,
            state=encode_state(durable),
            rows=[],
            removed=list(effect.removed),
            shard_epoch=loaded.shard_epoch,
        )
        loaded.offsets.commits_open += 1
        self._journal.own(partial(self._save_downgraded, loaded, classic, command, effect.replies))
        self.carry_out(loaded, classic.restore(generation, CONSUMER_PROTOCOL_TYPE, durable))

    async def _save_downgraded(
        self,
        loaded: LoadedGroup,
        machine: ClassicGroup,
        command: SaveMembers,
        replies: Sequence[Reply],
    ) -> None:
        error = await self._commit_all(loaded, [command])
        if error is GroupError.NONE:
            self.carry_out(loaded, replies)
            return
        failed = HeartbeatReply(error=error)
        self.carry_out(loaded, [Reply(one.request, failed) for one in replies])
        if loaded.machine is machine and self.holds(loaded):
            self.carry_out(loaded, [*machine.end(error), ReadAgain()])

    def _new_machine(self, group_id: str, kind: GroupKind, *, generation: int = 0) -> Machine:
        if kind is GroupKind.SHARE:
            return ShareGroup(
                group_id, self._settings, lambda: share_configs(self._configs(group_id))
            )
        if kind is GroupKind.STREAMS:
            return StreamsGroup(group_id, self._settings, configs=partial(self._configs, group_id))
        if kind is GroupKind.CLASSIC:
            classic = ClassicGroup(group_id, self._settings)
            classic.generation = generation
            return classic
        group = ConsumerGroup(
            group_id,
            self._settings,
            regex_fault=regex_fault,
            configs=partial(self._configs, group_id),
        )
        group.epoch = group.target_epoch = generation
        return group

    def _read(self, row: "GroupRow") -> tuple[Machine, Sequence[AnyEffect]]:
        """Make the machine of what is stored, with the effects of that."""
        group_id = row.group_id
        machine = self._new_machine(group_id, row.kind)
        if isinstance(machine, ClassicGroup):
            durable = decode_state(row.state, group_id=group_id)
            return machine, machine.restore(row.generation, row.protocol_type, durable)
        if isinstance(machine, ShareGroup):
            return machine, self._read_share(machine, row)
        if isinstance(machine, StreamsGroup):
            return machine, self._read_streams(machine, row)
        group = decode_group(row.state, group_id=group_id)
        effects = machine.restore(
            epoch=row.generation,
            target_epoch=group.target_epoch,
            counts=dict(group.counts),
            members=[
                decode_member(member_id, state, group_id=group_id)
                for member_id, state in self._queries.group_members(group_id)
            ],
            is_partial=group.is_partial,
        )
        return machine, effects

    def _read_share(self, machine: ShareGroup, row: "GroupRow") -> Sequence[AnyEffect]:
        group_id = row.group_id
        group = share_durable.decode_group(row.state, group_id=group_id)
        return machine.restore(
            epoch=row.generation,
            target_epoch=group.target_epoch,
            counts=dict(group.counts),
            members=[
                share_durable.decode_member(member_id, state, group_id=group_id)
                for member_id, state in self._queries.group_members(group_id)
            ],
            is_partial=group.is_partial,
            partitions={
                (share.topic_id, share.partition): share_durable.decode_share(
                    share.start_offset,
                    share.state,
                    subject=f"partition {share.partition} of group {group_id}",
                )
                for share in self._queries.share_partitions(group_id)
            },
        )

    def _read_streams(self, machine: StreamsGroup, row: "GroupRow") -> Sequence[AnyEffect]:
        group_id = row.group_id
        rows = dict(self._queries.group_members(group_id))
        topology = rows.pop(TOPOLOGY_ROW, None)
        return machine.restore(
            epoch=row.generation,
            state=streams_durable.decode_group(row.state, group_id=group_id),
            topology=None if topology is None else decode_topology(topology, group_id=group_id),
            members=[
                decode_streams_member(member_id, state, group_id=group_id)
                for member_id, state in rows.items()
            ],
        )

    def settle(self, loaded: LoadedGroup) -> None:
        """Keep a group after anything happened to it, or let it go when there are too many."""
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

    def holds(self, loaded: LoadedGroup) -> bool:
        """Whether a group is still the one in memory: not let go of, nor read again since."""
        return self.groups.get(loaded.machine.group_id) is loaded

    def forget_this(self, loaded: LoadedGroup) -> None:
        """Forget a group, unless another value has taken its place meanwhile."""
        if self.holds(loaded):
            self.forget(loaded.machine.group_id)

    # -- effects -------------------------------------------------------------------------------

    def carry_out(self, loaded: LoadedGroup, effects: Sequence[AnyEffect]) -> None:
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
            elif type(effect) is RecordsFreed:
                for freed in tuple(loaded.watchers):
                    freed()
            elif type(effect) is ReadAgain:
                timers.cancel_all()
                self._doubt_offsets(loaded)
                self.forget_this(loaded)
                self._journal.own(partial(self._read_again, loaded.machine.group_id))
            elif type(effect) is BecomeClassic:
                self._downgrade(loaded, effect)
            else:
                # Counted from now, so that the group stays in memory until it is stored.
                loaded.offsets.commits_open += 1
                machine = loaded.machine
                if type(effect) is Save:
                    assert isinstance(machine, ClassicGroup)
                    self._journal.own(partial(self._save, loaded, machine, effect))
                elif type(effect) is SaveShareMembers:
                    self._journal.own(partial(self._save_share_members, loaded, effect))
                elif type(effect) is SaveSharePartitions:
                    self._journal.own(partial(self._save_shares, loaded, effect))
                elif type(effect) is SaveStreams:
                    assert isinstance(machine, StreamsGroup)
                    self._journal.own(partial(self._save_streams, loaded, machine, effect))
                else:
                    assert type(effect) is SaveConsumers
                    assert isinstance(machine, ConsumerGroup)
                    self._journal.own(partial(self._save_members, loaded, machine, effect))
        self.settle(loaded)

    def request(self) -> tuple[int, asyncio.Future[object]]:
        """A number for a request that may wait, and what `answer` waits for."""
        self._request_count += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self.waiting[self._request_count] = future
        return self._request_count, future

    async def answer(self, request: int, future: asyncio.Future[object]) -> object:
        """Wait for the machine's reply."""
        # Its deadline is the machine's: sessions and rebalances end, so every request is answered.
        try:
            return await future
        finally:
            self.waiting.pop(request, None)

    def _doubt_offsets(self, loaded: LoadedGroup) -> None:
        """Remember a group that is let go of while offsets of it may be on their way."""
        if loaded.offsets.commits_open or loaded.offsets.is_in_doubt:
            self._in_doubt.add(loaded.machine.group_id)

    async def _read_again(self, group_id: str) -> None:
        """Read a group that was forgotten, so that its members' sessions run."""
        while not self.closed and self.ownership.epoch(group_id) is not None:
            if self.refused(group_id) is GroupError.NONE:
                try:
                    self.find(group_id)
                except CorruptDataError as error:
                    heard(Cause.GROUP_UNREADABLE, error, logger, "left out a group")
                return
            await wait(READ_AGAIN_S)

    async def _save_members(
        self, loaded: LoadedGroup, machine: ConsumerGroup, save: SaveConsumers
    ) -> None:
        commands = commands_of(save, group_id=machine.group_id, shard_epoch=loaded.shard_epoch)
        error = await self._commit_all(loaded, commands)
        self.carry_out(loaded, machine.saved(save.save, error))

    async def _save_streams(
        self, loaded: LoadedGroup, machine: StreamsGroup, save: SaveStreams
    ) -> None:
        commands = streams_commands(save, group_id=machine.group_id, shard_epoch=loaded.shard_epoch)
        error = await self._commit_all(loaded, commands)
        self.carry_out(loaded, machine.saved(save.save, error))

    async def _save_share_members(self, loaded: LoadedGroup, save: SaveShareMembers) -> None:
        machine = loaded.machine
        assert isinstance(machine, ShareGroup)
        commands = member_commands(save, group_id=machine.group_id, shard_epoch=loaded.shard_epoch)
        error = await self._commit_all(loaded, commands)
        self.carry_out(loaded, machine.saved(save.save, error))

    async def _save_shares(self, loaded: LoadedGroup, save: SaveSharePartitions) -> None:
        machine = loaded.machine
        assert isinstance(machine, ShareGroup)
        commands = share_commands(save, group_id=machine.group_id, shard_epoch=loaded.shard_epoch)
        error = await self._commit_all(loaded, commands)
        self.carry_out(loaded, machine.saved_shares(error))

    async def _commit_all(
        self, loaded: LoadedGroup, commands: Iterable[SaveMembers | SaveShares]
    ) -> GroupError:
        """Journal commands one after the other, up to the first that is refused."""
        try:
            for command in commands:
                answer = await self._journal.commit(command)
                if isinstance(answer, GroupError):
                    return answer
                loaded.stored = True
        finally:
            loaded.offsets.commits_open -= 1
        return GroupError.NONE

    async def _save(self, loaded: LoadedGroup, machine: ClassicGroup, save: Save) -> None:
        # Meanwhile the group may have become one of the other protocol: this is its former machine.
        try:
            answer = await self._journal.commit(
                SaveGroup(
                    group_id=machine.group_id,
                    generation=save.generation,
                    protocol_type=save.protocol_type,
                    empty=save.empty,
                    state=save.state,
                    shard_epoch=loaded.shard_epoch,
                )
            )
        finally:
            loaded.offsets.commits_open -= 1
        failed = isinstance(answer, GroupError)
        loaded.stored = loaded.stored or not failed
        error = answer if isinstance(answer, GroupError) else GroupError.NONE
        self.carry_out(loaded, machine.saved(save.save, error))
