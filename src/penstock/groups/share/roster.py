"""The members of a share group, and what each has to read. Pure.

A heartbeat changes members in memory; what changed is journaled, one save at a time, and no answer
is given before the journal has all that it is made of.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from penstock.groups.consumer.messages import Catalog
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer, Timer
from penstock.groups.settings import GroupSettings
from penstock.groups.share.assignor import assign
from penstock.groups.share.configs import ShareConfigs
from penstock.groups.share.durable import encode_member
from penstock.groups.share.member import ShareMember
from penstock.groups.share.messages import (
    Effect,
    SaveShareMembers,
    ShareHeartbeat,
    ShareHeartbeatReply,
)

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
TOPICS_MAX: Final = 10_000
TOPICS_BYTES_MAX: Final = 512 << 10
"""Names of one subscription: each is looked up whenever a topic changes, and journaled."""


class ShareRoster:
    """See the module. Puts its effects in the list that it was made with."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        configs: Callable[[], ShareConfigs],
        effects: list[Effect],
    ) -> None:
        self.epoch = 0
        """Grows whenever the target has to be made again."""
        self.target_epoch = 0
        """The epoch of what members are assigned."""
        self.members: dict[str, ShareMember] = {}
        self._group_id = group_id
        self._settings = settings
        self._configs = configs
        self._effects = effects
        self._catalog_generation: int | None = None
        self._counts: dict[bytes, int] = {}
        self._targets: dict[str, Mapping[bytes, frozenset[int]]] = {}
        self._subscriptions: dict[tuple[str, ...], int] = {}
        """How many members have each."""
        self._resolved: dict[tuple[str, ...], frozenset[bytes]] = {}
        self._is_dirty = False
        self._dirty: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._save_count = 0
        self._is_saving = False
        self._waiting: list[Reply] = []
        self._next_waiting: list[Reply] = []

    @property
    def is_saved(self) -> bool:
        """The journal has all of it."""
        return not (self._is_dirty or self._is_saving)

    def topics(self) -> frozenset[str]:
        """The topics that members name."""
        return frozenset(name for names in self._subscriptions for name in names)

    def target(self, member_id: str) -> Mapping[bytes, frozenset[int]]:
        """The partitions that a member is to read."""
        member = self.members[member_id]
        return self._targets.get(member_id, member.assigned)

    def waiting(self) -> list[int]:
        """The requests that wait for the journal."""
        return [reply.request for reply in (*self._waiting, *self._next_waiting)]

    def restore(
        self,
        epoch: int,
        target_epoch: int,
        counts: Mapping[bytes, int],
        members: Iterable[ShareMember],
        *,
        is_partial: bool,
    ) -> None:
        """Take up what is journaled.

        Args:
            is_partial: the last save was journaled in part: assignments may be of two epochs.
        """
        for member in members:
            self.members[member.member_id] = member
            self._subscribe((), member.topics)
            self._begin_session(member.member_id)
        self.epoch = epoch
        self.target_epoch = target_epoch
        self._counts = dict(counts)
        if is_partial:
            self._bump()

    def heartbeat(self, request: int, beat: ShareHeartbeat, catalog: Catalog) -> None:
        """A member joins, lives or leaves, by a heartbeat in which `fault_of` finds no fault."""
        leaves = beat.epoch == LEAVING_EPOCH
        reply = self._leave(beat) if leaves else self._live(beat, catalog)
        self._reply(Reply(request, reply))

    def remove(self, member_id: str) -> None:
        """A member left, or was not heard for a session."""
        member = self.members.pop(member_id)
        self._subscribe(member.topics, ())
        self._targets.pop(member_id, None)
        self._dirty.pop(member_id, None)
        self._removed[member_id] = None
        self._effects.append(CancelTimer(Timer("session", member_id)))
        self._bump()

    def saved(self) -> None:
        """The journal has taken a save."""
        self._is_saving = False
        self._effects += self._waiting
        self._waiting = []

    def save_if_due(self) -> None:
        """Begin a save, if something changed and none is under way."""
        if self._is_saving or not self._is_dirty:
            return
        self._save_count += 1
        self._is_saving, self._is_dirty = True, False
        self._waiting, self._next_waiting = self._next_waiting, []
        dirty, self._dirty = self._dirty, {}
        removed, self._removed = self._removed, {}
        self._effects.append(
            SaveShareMembers(
                save=self._save_count,
                epoch=self.epoch,
                target_epoch=self.target_epoch,
                counts=dict(self._counts),
                is_empty=not self.members,
                rows={member_id: encode_member(self.members[member_id]) for member_id in dirty},
                removed=tuple(removed),
            )
        )

    # -- a heartbeat -----------------------------------------------------------------------------

    def _leave(self, beat: ShareHeartbeat) -> ShareHeartbeatReply:
        if beat.member_id not in self.members:
            return self._unknown(beat)
        self.remove(beat.member_id)
        return ShareHeartbeatReply(member_id=beat.member_id, epoch=LEAVING_EPOCH)

    def _live(self, beat: ShareHeartbeat, catalog: Catalog) -> ShareHeartbeatReply:
        joins = beat.epoch == JOINING_EPOCH
        before = self.members.get(beat.member_id)
        refusal = self._refusal(beat, before)
        if refusal is not None:
            return refusal
        member = before or ShareMember(beat.member_id)
        topics = member.topics if beat.topics is None else tuple(sorted(set(beat.topics)))
        changed = replace(
            member,
            topics=topics,
            rack=member.rack if beat.rack is None else beat.rack,
            client_id=beat.client_id,
            client_host=beat.client_host,
        )
        self._subscribe(member.topics, topics)
        if before is None or topics != before.topics:
            self._bump()
        if changed != before:
            self._put(changed)
        self._look_at(catalog)
        if self.epoch > self.target_epoch:
            self._assign()
        target = self.target(beat.member_id)
        if changed.epoch != self.target_epoch or changed.assigned != target:
            changed = replace(
                changed,
                epoch=self.target_epoch,
                previous_epoch=changed.epoch,
                assigned=target,
            )
            self._put(changed)
        self._begin_session(beat.member_id)
        says_all = joins or beat.topics is not None or changed.assigned != member.assigned
        # An answer of the epoch before was lost: what it said is said again.
        says_all = says_all or beat.epoch != member.epoch
        return ShareHeartbeatReply(
            member_id=beat.member_id,
            epoch=changed.epoch,
            assigned=changed.assigned if says_all else None,
        )

    def _refusal(
        self, beat: ShareHeartbeat, member: ShareMember | None
    ) -> ShareHeartbeatReply | None:
        if beat.epoch == JOINING_EPOCH:
            size_max = self._settings.share_size_max
            if member is None and len(self.members) >= size_max:
                message = f"The share group has reached its maximum capacity of {size_max} members."
                return ShareHeartbeatReply(error=GroupError.GROUP_MAX_SIZE_REACHED, message=message)
            return None
        if member is None:
            return self._unknown(beat)
        if beat.epoch in {member.epoch, member.previous_epoch}:
            return None
        relation = "smaller" if beat.epoch < member.epoch else "greater"
        message = (
            f"The share group member has a {relation} member epoch ({beat.epoch}) than the one"
            f" known by the group coordinator ({member.epoch}). The member must abandon all its"
            " partitions and rejoin."
        )
        return ShareHeartbeatReply(error=GroupError.FENCED_MEMBER_EPOCH, message=message)

    def _unknown(self, beat: ShareHeartbeat) -> ShareHeartbeatReply:
        message = f"Member {beat.member_id} is not a member of group {self._group_id}."
        return ShareHeartbeatReply(error=GroupError.UNKNOWN_MEMBER_ID, message=message)

    # -- members and targets -----------------------------------------------------------------------

    def _put(self, member: ShareMember) -> None:
        self.members[member.member_id] = member
        self._removed.pop(member.member_id, None)
        self._dirty[member.member_id] = None
        self._is_dirty = True

    def _subscribe(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        if before == after:
            return
        counts = self._subscriptions
        if after:
            counts[after] = counts.get(after, 0) + 1
        if before:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]

    def _bump(self) -> None:
        if self.epoch == self.target_epoch:
            self.epoch += 1
        self._is_dirty = True

    def _look_at(self, catalog: Catalog) -> None:
        """Begin an epoch if the topics that members subscribe to are others, or have others."""
        if catalog.generation == self._catalog_generation and self.epoch == self.target_epoch:
            return
        self._catalog_generation = catalog.generation
        counts: dict[bytes, int] = {}
        self._resolved.clear()
        for names in self._subscriptions:
            shapes = [shape for name in names if (shape := catalog.shape(name)) is not None]
            self._resolved[names] = frozenset(shape.topic_id for shape in shapes)
            counts.update((shape.topic_id, shape.partitions) for shape in shapes)
        if counts != self._counts:
            self._counts = counts
            self._bump()

    def _assign(self) -> None:
        """Make a target for the present epoch; members hear of it at their next heartbeats."""
        wanted = {
            member_id: self._resolved.get(member.topics, frozenset())
            for member_id, member in self.members.items()
        }
        self._targets = dict(assign(wanted, self._counts))
        self.target_epoch = self.epoch
        self._is_dirty = True

    # -- effects -----------------------------------------------------------------------------------

    def _begin_session(self, member_id: str) -> None:
        timer = Timer("session", member_id)
        self._effects.append(SetTimer(timer, self._configs().session_timeout_ms))

    def _reply(self, reply: Reply) -> None:
        if self._is_dirty:
            self._next_waiting.append(reply)
        elif self._is_saving:
            # It may be made of what is under way to the journal.
            self._waiting.append(reply)
        else:
            self._effects.append(reply)


def fault_of(beat: ShareHeartbeat) -> str:
    """Return the fault of a heartbeat by itself, as Kafka words it; empty: there is none."""
    if not beat.member_id:
        return "MemberId can't be empty."
    if beat.epoch < LEAVING_EPOCH:
        return f"MemberEpoch is {beat.epoch}, but must be greater than or equal to -1."
    if beat.rack == "":
        return "RackId can't be empty."
    if beat.epoch == JOINING_EPOCH and not beat.topics:
        return "SubscribedTopicNames must be set in first request."
    if beat.topics is not None:
        length = sum(map(len, beat.topics))
        if len(beat.topics) > TOPICS_MAX or length > TOPICS_BYTES_MAX:
            return (
                f"SubscribedTopicNames are {len(beat.topics)} names of {length} characters,"
                f" {TOPICS_MAX} of {TOPICS_BYTES_MAX} are allowed."
            )
    return ""
