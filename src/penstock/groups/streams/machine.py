"""The machine of one streams group of KIP-1071: heartbeats in, effects out. Pure.

docs/streams-groups.md says what each event does. The members are in `roster`.

Source: KIP-1071, and GroupMetadataManager of Kafka 4.3.1.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from penstock.groups.consumer.member import JOINING_EPOCH, LEAVING_EPOCH, MemberState
from penstock.groups.consumer.member_commits import MemberCommits
from penstock.groups.consumer.messages import Catalog
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, Timer
from penstock.groups.settings import GroupSettings
from penstock.groups.streams.configured import Configured, Status, StatusCode
from penstock.groups.streams.endpoints import endpoint_partitions
from penstock.groups.streams.member import About, StreamsMember
from penstock.groups.streams.messages import (
    Effect,
    EndpointPartitions,
    StreamsHeartbeat,
    StreamsReply,
)
from penstock.groups.streams.reconcile import next_step
from penstock.groups.streams.roster import DELAY_TIMER, REST_TIMER, StreamsRoster
from penstock.groups.streams.tasks import each_task
from penstock.groups.streams.topology import TOPOLOGY_ROW, Topology, TopologyError


class _RefusedError(Exception):
    """A heartbeat that the group does not take; nothing has changed by then."""

    def __init__(self, error: GroupError, message: str) -> None:
        super().__init__(message)
        self.reply = StreamsReply(error=error, message=message)


class StreamsGroup(MemberCommits[StreamsMember], StreamsRoster):
    """One group. Made empty; `restore` gives back what is journaled of it."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        configs: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """See `StreamsRoster`."""
        super().__init__(group_id, settings, configs=configs)
        # Neither is journaled: a coordinator that takes the group up hears both again.
        self._shut_down_by: str | None = None
        self._endpoint_epoch = 0

    def heartbeat(self, request: int, beat: StreamsHeartbeat, catalog: Catalog) -> list[Effect]:
        """A member joins, lives or leaves, by a heartbeat that `validation.refused` takes."""
        if self.is_dead:
            return [Reply(request, StreamsReply(error=GroupError.COORDINATOR_NOT_AVAILABLE))]
        try:
            is_leaving = beat.epoch == LEAVING_EPOCH
            reply = self._leave(beat) if is_leaving else self._live(beat, catalog)
        except _RefusedError as error:
            reply = error.reply
        except TopologyError as error:
            reply = StreamsReply(error=GroupError.STREAMS_INVALID_TOPOLOGY, message=str(error))
        self._effects += self._saves.reply(Reply(request, reply))
        return self._take()

    def check_epoch(self, member_id: str, epoch: int) -> GroupError:
        """Compare the epoch that a member names with its own."""
        member = self.members.get(member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return GroupError.NONE if member.epoch == epoch else GroupError.STALE_MEMBER_EPOCH

    def owned_since(self, member_id: str, epoch: int, topic: str | None, partition: int) -> bool:
        """Whether a member has had the active task that reads a partition since an epoch, or
        before: what it commits in that epoch is its own, though its group has gone on."""
        member = self.members.get(member_id)
        if member is None or epoch > member.epoch or topic is None or self.topology is None:
            return False
        subtopology = self.topology.reader_of(topic)
        since = None if subtopology is None else member.since.get((subtopology, partition))
        return since is not None and since <= epoch

    def timer_fired(self, timer: Timer) -> list[Effect]:
        """A timer's time has passed."""
        if self.is_dead:
            return []
        if timer == REST_TIMER:
            # The next heartbeat of any member makes the target.
            self._rests = False
        elif timer == DELAY_TIMER:
            self._is_delayed = False
            if self.members and self.configured is not None and not self._rests:
                self._assign(self.configured)
        else:
            member = self.members.get(timer.member_id)
            # A member that has not given its tasks up in time keeps others from working.
            is_over = timer.kind != "rebalance" or (
                member is not None and member.state is MemberState.UNREVOKED
            )
            if member is not None and is_over:
                self._remove(member)
        return self._take()

    def session_passed_unheard(self, member_id: str) -> None:
        """A member could not be heard: its session begins again, and nothing is to be known."""

    # -- a heartbeat -----------------------------------------------------------------------------

    def _remove(self, member: StreamsMember) -> None:
        self._forget(member)
        if not self.members:
            self._shut_down_by = None

    def _leave(self, beat: StreamsHeartbeat) -> StreamsReply:
        member = self._known(beat)
        if beat.shuts_down:
            self._shut_down(beat.member_id)
        self._remove(member)
        return StreamsReply(member_id=beat.member_id, epoch=LEAVING_EPOCH, statuses=())

    def _live(self, beat: StreamsHeartbeat, catalog: Catalog) -> StreamsReply:
        joins = beat.epoch == JOINING_EPOCH
        size_max = self._settings.streams_size_max
        if joins and len(self.members) >= size_max:
            message = f"The streams group has reached its maximum capacity of {size_max} members."
            raise _RefusedError(GroupError.GROUP_MAX_SIZE_REACHED, message)
        before = self.members.get(beat.member_id) if joins else self._known(beat)
        is_new_group = self.topology is None
        topology = self._topology_of(beat)
        configured = self._look_at(topology, catalog)
        self._check_tasks(beat, configured)
        # Nothing is refused from here on.
        if topology is not self.topology:
            self.topology = topology
            self._saves.put(TOPOLOGY_ROW)
        was_empty = not self.members
        member = before or StreamsMember(beat.member_id)
        about = _updated(member.about, beat)
        if before is None or about != member.about:
            member = replace(member, about=about)
            self._put(member)
        statuses = list(self._staleness(member))
        has_changed = self._note(topology, configured)
        if has_changed or before is None or about != before.about:
            self._bump()
        if was_empty:
            self._delay()
        self._make_target(configured, statuses)
        member = self.members[beat.member_id]
        after = next_step(
            member,
            self._target_of(beat.member_id),
            self.target_epoch,
            beat.owned,
            self._free_for(about.process_id),
        )
        if after != member:
            self._put(after)
            if after.state is MemberState.UNREVOKED:
                self._begin_revocation(after)
            else:
                self._effects.append(CancelTimer(Timer("rebalance", beat.member_id)))
        self._begin_session(beat.member_id)
        # A group's first member begins neither: Kafka forgets both with the group that it made.
        if beat.shuts_down and not is_new_group:
            self._shut_down(beat.member_id)
        assigned_before = None if before is None else before.assigned
        is_other = joins or after.assigned != assigned_before
        # An answer may have been lost: Kafka's server leaves such a member without its tasks.
        says_all = is_other or beat.owned not in (None, after.assigned)
        if is_other and after.about.endpoint is not None and not is_new_group:
            self._endpoint_epoch += 1
        knows = beat.endpoint_epoch == self._endpoint_epoch and not is_new_group
        if configured.status is not None:
            statuses.append(configured.status)
        if self._shut_down_by is not None:
            statuses.append(_shutdown(self._shut_down_by))
        return StreamsReply(
            member_id=beat.member_id,
            epoch=after.epoch,
            statuses=tuple(statuses),
            tasks=after.assigned if says_all else None,
            endpoint_epoch=self._endpoint_epoch,
            endpoints=None if knows else self._endpoints(after, configured, catalog),
            missing=configured.missing,
        )

    def _known(self, beat: StreamsHeartbeat) -> StreamsMember:
        """Find the member of a heartbeat that doesn't join."""
        member = self.members.get(beat.member_id)
        if member is None:
            message = f"Member {beat.member_id} is not a member of group {self.group_id}."
            raise _RefusedError(GroupError.UNKNOWN_MEMBER_ID, message)
        if beat.epoch < 0 or beat.epoch == member.epoch:
            return member
        # An answer was lost: what the member has is then part of what it was given since.
        is_previous = beat.epoch == member.previous_epoch and beat.owned is not None
        if (
            is_previous
            and beat.epoch < member.epoch
            and beat.owned is not None
            and not beat.owned.minus(member.assigned)
        ):
            return member
        relation = "smaller" if beat.epoch < member.epoch else "greater"
        message = (
            f"The streams group member has a {relation} member epoch ({beat.epoch}) than the one"
            f" known by the group coordinator ({member.epoch}). The member must abandon all its"
            " partitions and rejoin."
        )
        raise _RefusedError(GroupError.FENCED_MEMBER_EPOCH, message)

    def _topology_of(self, beat: StreamsHeartbeat) -> Topology:
        """Return the group's topology: that of the first member that joined."""
        said = beat.topology
        if self.topology is None:
            assert said is not None, "who joins names one, and others joined"
            return said
        is_stale = said is not None and said.epoch < self.topology.epoch
        if said is not None and not is_stale and said != self.topology:
            message = "Topology updates are not supported yet."
            raise _RefusedError(GroupError.INVALID_REQUEST, message)
        return self.topology

    def _check_tasks(self, beat: StreamsHeartbeat, configured: Configured) -> None:
        if beat.owned is None or not configured.is_ready:
            return
        for role in beat.owned.roles:
            for name, number in each_task(role):
                count = configured.tasks.get(name)
                if count is None:
                    message = f"Subtopology {name} does not exist in the topology."
                    raise _RefusedError(GroupError.INVALID_REQUEST, message)
                if not 0 <= number < count:
                    message = (
                        f"Task {number} for subtopology {name} is invalid. Number of tasks for this"
                        f" subtopology: {count}"
                    )
                    raise _RefusedError(GroupError.INVALID_REQUEST, message)

    def _staleness(self, member: StreamsMember) -> list[Status]:
        assert self.topology is not None
        said, known = member.about.topology_epoch, self.topology.epoch
        if said >= known:
            return []
        detail = f"The member's topology epoch {said} is behind the group's topology epoch {known}."
        return [Status(StatusCode.STALE_TOPOLOGY, detail)]

    def _make_target(self, configured: Configured, statuses: list[Status]) -> None:
        """Make the target of a newer epoch, unless the group waits."""
        if self._is_delayed:
            why = "initial rebalance delay"
        elif self.epoch == self.target_epoch:
            return
        elif self._rests and self._rest_ms():
            why = "assignment interval"
        else:
            self._assign(configured)
            return
        detail = f"Assignment delayed due to the configured {why}."
        statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))

    def _shut_down(self, member_id: str) -> None:
        if self._shut_down_by is None:
            self._shut_down_by = member_id

    def _endpoints(
        self, member: StreamsMember, configured: Configured, catalog: Catalog
    ) -> tuple[EndpointPartitions, ...]:
        """The endpoints of all members, the one that asks last."""
        others = [one for one in self.members.values() if one.member_id != member.member_id]
        return tuple(endpoint_partitions([*others, member], configured, catalog))


def _updated(about: About, beat: StreamsHeartbeat) -> About:
    """Return what a member says of itself, with what a heartbeat says."""
    topology, timeout_ms = beat.topology, beat.rebalance_timeout_ms
    return About(
        client_id=beat.client_id,
        client_host=beat.client_host,
        rack=about.rack if beat.rack is None else beat.rack,
        process_id=about.process_id if beat.process_id is None else beat.process_id,
        topology_epoch=about.topology_epoch if topology is None else topology.epoch,
        rebalance_timeout_ms=about.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        endpoint=about.endpoint if beat.endpoint is None else beat.endpoint,
        tags=about.tags if beat.tags is None else beat.tags,
    )


def _shutdown(member_id: str) -> Status:
    detail = (
        f"Streams group member {member_id} encountered a fatal error and requested a shutdown for"
        " the entire application."
    )
    return Status(StatusCode.SHUTDOWN_APPLICATION, detail)
