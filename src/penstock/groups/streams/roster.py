"""The members of a streams group, what each runs, and what each is to run. Pure.

Events change members in memory; what changed is journaled, one `SaveStreams` at a time, and no
answer is given before the journal has all that it is made of. A refused save makes memory
worthless: the group is read again.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.groups.consumer.member import MemberState
from penstock.groups.consumer.messages import Catalog, ReadAgain
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.member_saves import MemberSaves
from penstock.groups.messages import CancelTimer, Reply, SetTimer, Timer
from penstock.groups.settings import GroupSettings
from penstock.groups.streams.assignor import Worker, assign_tasks
from penstock.groups.streams.configured import Configured, configure
from penstock.groups.streams.durable import DurableStreamsGroup
from penstock.groups.streams.member import StreamsMember, encode_member
from penstock.groups.streams.messages import Effect, SaveStreams, StreamsReply
from penstock.groups.streams.reconcile import Free
from penstock.groups.streams.tasks import NONE, Task, Tasks, each_task
from penstock.groups.streams.topology import TOPOLOGY_ROW, Topology, encode_topology
from penstock.model.group_configs import (
    STREAMS_ASSIGNMENT_INTERVAL,
    STREAMS_INITIAL_DELAY,
    STREAMS_SESSION,
    STREAMS_STANDBY,
    group_number,
)

STREAMS_PROTOCOL_TYPE: Final = "streams"
FIRST_EPOCH: Final = 1
"""The epoch of a group before its first member, as in Kafka."""
NOT_VALIDATED: Final = -1
REST_TIMER: Final = Timer("rest")
DELAY_TIMER: Final = Timer("initial")
_TIMERS: Final = ("session", "rebalance")


class StreamsRoster:
    """See the module. Made empty; `restore` gives back what is journaled of it."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        configs: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """
        Args:
            configs: gives the group's own configs as they are now (`penstock.model.group_configs`).
        """
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        """Grows whenever the target has to be made again."""
        self.target_epoch = FIRST_EPOCH
        """The epoch that the members' targets are of."""
        self.members: dict[str, StreamsMember] = {}
        self.topology: Topology | None = None
        """The topology of the first member that joined; others must have the same."""
        self.configured: Configured | None = None
        """The topology with the topics that there are; None: not looked at yet."""
        self.is_dead = False
        self._settings = settings
        self._configs = configs
        self._validated_epoch = 0
        self._topics_hash = b""
        self._standby_replicas = -1
        self._catalog_generation: int | None = None
        self._found_hash = b""
        # Programs by task, in each role, and by the member that has the task.
        self._owners: tuple[dict[Task, dict[str, str]], ...] = ({}, {}, {})
        self._rests = False
        self._is_delayed = False
        self._effects: list[Effect] = []
        self._saves = MemberSaves()

    # -- what others ask -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The group's epoch, under the name that classic groups have for theirs."""
        return self.epoch

    @property
    def protocol_type(self) -> str:
        """The protocol type that tools show."""
        return STREAMS_PROTOCOL_TYPE

    @property
    def state(self) -> GroupState:
        """The state that tools show. Looks at each member."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.topology is None or self.topology.epoch != self._validated_epoch:
            return GroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        is_settled = all(one.is_settled(self.target_epoch) for one in self.members.values())
        return GroupState.STABLE if is_settled else GroupState.RECONCILING

    @property
    def is_idle(self) -> bool:
        """No member is there, and nothing is in memory that the journal has not."""
        return not self.members and self._saves.is_settled

    def topics(self) -> frozenset[str] | None:
        """The topics that the members read."""
        if self.topology is None or not self.members:
            return frozenset()
        return frozenset(name for one in self.topology.subtopologies for name in one.inputs)

    def is_subscribed(self, topic_name: str) -> bool:
        """Whether a member may read that topic."""
        topics = self.topics()
        return topics is not None and topic_name in topics

    # -- events ----------------------------------------------------------------------------------

    def restore(
        self,
        *,
        epoch: int,
        state: DurableStreamsGroup,
        topology: Topology | None,
        members: Iterable[StreamsMember],
    ) -> list[Effect]:
        """Take up what is journaled. Members have a full session from now."""
        assert not self.members
        for member in members:
            self._own(member, member)
            self.members[member.member_id] = member
            self._begin_session(member.member_id)
            if member.state is MemberState.UNREVOKED:
                self._begin_revocation(member)
        self.epoch = epoch
        self.target_epoch = state.target_epoch
        self.topology = topology
        self._validated_epoch = state.validated_epoch
        self._topics_hash = state.topics_hash
        self._standby_replicas = state.standby_replicas
        if state.is_partial:
            self._bump()
        return self._take()

    def saved(self, save: int, error: GroupError) -> list[Effect]:
        """The journal has answered a `SaveStreams`."""
        del save
        if self.is_dead:
            return []
        if error is GroupError.NONE:
            self._effects += self._saves.saved()
            return self._take()
        return [*self.end(error), ReadAgain()]

    def end(self, error: GroupError) -> list[Effect]:
        """The group is served here no more (deleted, moved, or the server ends): answer all."""
        self.is_dead = True
        failed = StreamsReply(error=error)
        self._effects += [Reply(one.request, failed) for one in self._saves.give_up()]
        return self._take()

    # -- members and targets -----------------------------------------------------------------------

    def _put(self, member: StreamsMember) -> None:
        self._own(self.members.get(member.member_id), member)
        self.members[member.member_id] = member
        self._saves.put(member.member_id)

    def _forget(self, member: StreamsMember) -> None:
        del self.members[member.member_id]
        self._own(member, None)
        self._saves.remove(member.member_id)
        self._effects += [CancelTimer(Timer(kind, member.member_id)) for kind in _TIMERS]
        self._bump()

    def _own(self, before: StreamsMember | None, after: StreamsMember | None) -> None:
        for owners, role in zip(self._owners, range(3), strict=True):
            if before is not None:
                for tasks in (before.assigned, before.revoking):
                    for task in each_task(tasks.roles[role]):
                        held = owners.get(task, {})
                        if before.member_id in held:
                            del held[before.member_id]
                            if not held:
                                del owners[task]
            if after is not None:
                for tasks in (after.assigned, after.revoking):
                    for task in each_task(tasks.roles[role]):
                        owners.setdefault(task, {})[after.member_id] = after.about.process_id

    def _free_for(self, process_id: str) -> Free:
        """Say which tasks a member of a program may be given."""
        active, standby, warmup = self._owners

        def is_elsewhere(task: Task, *roles: dict[Task, dict[str, str]]) -> bool:
            return all(process_id not in owners.get(task, {}).values() for owners in roles)

        def is_free(name: str, number: int) -> bool:
            task = name, number
            return task not in active and is_elsewhere(task, standby, warmup)

        def is_free_of_others(name: str, number: int) -> bool:
            return is_elsewhere((name, number), active, standby, warmup)

        return Free(active=is_free, other=is_free_of_others)

    def _bump(self) -> None:
        self.epoch += 1
        self._saves.is_dirty = True

    def _look_at(self, topology: Topology, catalog: Catalog) -> Configured:
        """Bring the topology together with the topics that there are.

        Raises:
            TopologyError: it can't be used.
        """
        is_known = topology is self.topology and catalog.generation == self._catalog_generation
        if self.configured is None or not is_known:
            configured = configure(topology, catalog.shape)
            self._catalog_generation = catalog.generation
            self._found_hash = topics_hash(topology, catalog)
            self.configured = configured
        return self.configured

    def _note(self, topology: Topology, configured: Configured) -> bool:
        """Note what epochs depend on besides members; whether it is other than it was."""
        validated_epoch = topology.epoch if configured.is_ready else NOT_VALIDATED
        replicas = self._number(STREAMS_STANDBY)
        before = self._topics_hash, self._validated_epoch, self._standby_replicas
        after = self._found_hash, validated_epoch, replicas
        self._topics_hash, self._validated_epoch, self._standby_replicas = after
        return before != after

    def _assign(self, configured: Configured) -> None:
        """Make a target for the present epoch."""
        tasks = configured.tasks if configured.is_ready else {}
        targets = assign_tasks(
            [
                Worker(
                    member_id=member.member_id,
                    process_id=member.about.process_id,
                    before=member.target,
                )
                for member in self.members.values()
            ],
            tasks,
            is_stateful=lambda name: bool(configured.subtopologies[name].changelogs),
            standby_replicas=max(0, self._standby_replicas),
        )
        for member_id, target in targets.items():
            member = self.members[member_id]
            if member.target != target:
                self._put(replace(member, target=target))
        self.target_epoch = self.epoch
        self._saves.is_dirty = True
        rest_ms = self._rest_ms()
        if rest_ms:
            self._rests = True
            self._effects.append(SetTimer(REST_TIMER, rest_ms))

    def _rest_ms(self) -> int:
        """Return how long the group rests after a target."""
        return self._number(STREAMS_ASSIGNMENT_INTERVAL)

    def _delay(self) -> None:
        """Have the first members of a group wait for others."""
        delay_ms = self._number(STREAMS_INITIAL_DELAY)
        if delay_ms and not self._is_delayed:
            self._is_delayed = True
            self._effects.append(SetTimer(DELAY_TIMER, delay_ms))

    def _target_of(self, member_id: str) -> Tasks:
        return NONE if self._is_delayed else self.members[member_id].target

    # -- effects -----------------------------------------------------------------------------------

    def _number(self, config: str) -> int:
        return group_number(config, self._configs(), self._settings.group_defaults)

    def _begin_session(self, member_id: str) -> None:
        timer = Timer("session", member_id)
        self._effects.append(SetTimer(timer, self._number(STREAMS_SESSION)))

    def _begin_revocation(self, member: StreamsMember) -> None:
        timer = Timer("rebalance", member.member_id)
        self._effects.append(SetTimer(timer, max(0, member.about.rebalance_timeout_ms)))

    def _take(self) -> list[Effect]:
        begun = None if self.is_dead else self._saves.begin()
        if begun is not None:
            rows = {one: self._row(one) for one in begun.dirty}
            state = DurableStreamsGroup(
                target_epoch=self.target_epoch,
                validated_epoch=self._validated_epoch,
                topics_hash=self._topics_hash,
                standby_replicas=self._standby_replicas,
            )
            self._effects.append(
                SaveStreams(
                    save=begun.number,
                    epoch=self.epoch,
                    state=state,
                    is_empty=not self.members,
                    rows=rows,
                    removed=begun.removed,
                )
            )
        effects, self._effects = self._effects, []
        return effects

    def _row(self, member_id: str) -> bytes:
        if member_id != TOPOLOGY_ROW:
            return encode_member(self.members[member_id])
        assert self.topology is not None
        return encode_topology(self.topology)


def topics_hash(topology: Topology, catalog: Catalog) -> bytes:
    """Return a hash of those topics of a topology that there are; no bytes: there are none."""
    shapes = [
        (name, shape.topic_id, shape.partitions)
        for name in sorted(topology.required)
        if (shape := catalog.shape(name)) is not None
    ]
    return hashlib.sha256(msgspec.msgpack.encode(shapes)).digest()[:16] if shapes else b""
