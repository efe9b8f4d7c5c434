"""The machine of one share group: heartbeats, acquisitions and acknowledgements in, effects out.
Pure.

docs/share-groups.md says what each event does. `roster` has the members, `deliveries` the
partitions. What is answered is journaled before; a refused save makes memory worthless: the group
is read again.

Source: KIP-932, and what a broker of Kafka 4.3 answers.
"""

from collections.abc import Callable, Iterable, Mapping

from penstock.groups.consumer.messages import Catalog, ReadAgain
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import Reply, Timer
from penstock.groups.settings import GroupSettings
from penstock.groups.share.configs import ShareConfigs
from penstock.groups.share.deliveries import LOCK_TIMER, Deliveries
from penstock.groups.share.member import ShareMember
from penstock.groups.share.messages import (
    Effect,
    Place,
    ShareHeartbeat,
    ShareHeartbeatReply,
    SharesReply,
)
from penstock.groups.share.partition import SharePartition
from penstock.groups.share.roster import ShareRoster
from penstock.groups.share.saving import SHARE_PROTOCOL_TYPE


class ShareGroup:
    """One group. Made empty; `restore` gives back what is journaled of it."""

    __slots__ = ("_effects", "deliveries", "group_id", "is_dead", "roster")

    def __init__(
        self, group_id: str, settings: GroupSettings, configs: Callable[[], ShareConfigs]
    ) -> None:
        """
        Args:
            configs: those of this group, as they are now.
        """
        self.group_id = group_id
        self.is_dead = False
        self._effects: list[Effect] = []
        self.roster = ShareRoster(group_id, settings, configs, self._effects)
        self.deliveries = Deliveries(configs, self._effects)

    # -- what others ask -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The group's epoch, under the name that classic groups have for theirs."""
        return self.roster.epoch

    @property
    def protocol_type(self) -> str:
        """The protocol type that tools show."""
        return SHARE_PROTOCOL_TYPE

    @property
    def state(self) -> GroupState:
        """The state that tools show."""
        if self.is_dead:
            return GroupState.DEAD
        return GroupState.STABLE if self.roster.members else GroupState.EMPTY

    @property
    def is_idle(self) -> bool:
        """No member is there, and nothing is in memory that the journal has not."""
        return not self.roster.members and self.roster.is_saved and self.deliveries.is_idle

    def topics(self) -> frozenset[str] | None:
        """The topics that members name."""
        return self.roster.topics()

    def is_subscribed(self, topic_name: str) -> bool:
        """Whether a member may read that topic."""
        return topic_name in self.roster.topics()

    # -- members ---------------------------------------------------------------------------------

    def restore(
        self,
        *,
        epoch: int,
        target_epoch: int,
        counts: Mapping[bytes, int],
        members: Iterable[ShareMember],
        is_partial: bool,
        partitions: Mapping[Place, SharePartition],
    ) -> list[Effect]:
        """Take up what is journaled. Members have a full session from now, and what they had
        acquired is available."""
        self.roster.restore(epoch, target_epoch, counts, members, is_partial=is_partial)
        self.deliveries.restore(partitions)
        return self._take()

    def heartbeat(self, request: int, beat: ShareHeartbeat, catalog: Catalog) -> list[Effect]:
        """A member joins, lives or leaves."""
        if self.is_dead:
            reply = ShareHeartbeatReply(error=GroupError.COORDINATOR_NOT_AVAILABLE)
            return [Reply(request, reply)]
        self.roster.heartbeat(request, beat, catalog)
        return self._take()

    def commit(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        """A share group has no committed offsets."""
        del member_id, instance_id, generation
        return GroupError.GROUP_ID_NOT_FOUND

    def commit_in_transaction(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError:
        """Likewise."""
        return self.commit(member_id, instance_id, generation)

    def commit_seen(self, member_id: str) -> list[Effect]:
        """Likewise: no commit is ever taken."""
        del member_id
        return []

    def timer_fired(self, timer: Timer) -> list[Effect]:
        """A timer's time has passed."""
        if self.is_dead:
            return []
        if timer.kind == LOCK_TIMER:
            self.deliveries.expire(int(timer.member_id))
        elif timer.member_id in self.roster.members:
            self.roster.remove(timer.member_id)
        return self._take()

    def session_passed_unheard(self, member_id: str) -> None:
        """A member could not be heard: its session begins again, and nothing is to be known."""

    # -- the journal -------------------------------------------------------------------------------

    def carried_out(self) -> list[Effect]:
        """Return the effects of what was asked of `deliveries`."""
        return self._take()

    def saved(self, save: int, error: GroupError) -> list[Effect]:
        """The journal has answered a save of members."""
        del save
        if self.is_dead:
            return []
        if error is GroupError.NONE:
            self.roster.saved()
            return self._take()
        return self._give_up(error)

    def saved_shares(self, error: GroupError) -> list[Effect]:
        """The journal has answered a save of partitions."""
        if self.is_dead:
            return []
        if error is GroupError.NONE:
            self.deliveries.saved()
            return self._take()
        return self._give_up(error)

    def end(self, error: GroupError) -> list[Effect]:
        """The group is served here no more (deleted, moved, or the server ends): answer all."""
        self.is_dead = True
        effects: list[Effect] = [
            Reply(request, ShareHeartbeatReply(error=error)) for request in self.roster.waiting()
        ]
        effects += [Reply(request, SharesReply(error)) for request in self.deliveries.waiting()]
        return effects

    def _give_up(self, error: GroupError) -> list[Effect]:
        return [*self.end(error), ReadAgain()]

    def _take(self) -> list[Effect]:
        self.roster.save_if_due()
        self.deliveries.save_if_due()
        effects = list(self._effects)
        self._effects.clear()
        return effects
