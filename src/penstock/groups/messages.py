"""Events that a group's machine takes and effects that it gives, as values. Pure.

Effects are carried out in the order in which the machine gives them. A `request` is a number that
the shell gives to a waiting request; each gets exactly one reply.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.groups.errors import GroupError

NO_GENERATION: Final = -1


class Protocol(NamedTuple):
    """A way to divide the work that a member knows, with what it tells the leader about itself."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """One JoinGroup.

    `member_id` is empty for a member that has none; then `new_member_id` is the one it gets.
    `id_required`: it must come back with that id (KIP-394, version 4 and later).
    `may_skip_assignment`: the client knows that field (KIP-814, version 9 and later).
    """

    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    id_required: bool
    may_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """One SyncGroup. `assignments` is the leader's; protocol type and name are None before
    version 5."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class Leaver(NamedTuple):
    """A member that shall leave: by its id, or by instance id alone (an administrator asks)."""

    member_id: str
    instance_id: str | None


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The answer to a join. `members` is filled for the leader."""

    error: GroupError = GroupError.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """The answer to a sync."""

    error: GroupError = GroupError.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeaveResult(NamedTuple):
    """The outcome for one member that should leave."""

    member_id: str
    instance_id: str | None
    error: GroupError


# -- effects -----------------------------------------------------------------------------------


class Timer(NamedTuple):
    """The name of a timer of a group: `join`, `sync`, `save`, or with a member's id `session` and,
    in consumer groups, `rebalance`; there `rest`, too."""

    kind: str
    member_id: str = ""


JOIN_TIMER: Final = Timer("join")
SYNC_TIMER: Final = Timer("sync")
SAVE_TIMER: Final = Timer("save")


class Reply(NamedTuple):
    """Answer a waiting request, with the reply that its API has."""

    request: int
    reply: object


class SetTimer(NamedTuple):
    """Set a timer, in place of one of that name: `timer_fired` after `delay_ms`."""

    timer: Timer
    delay_ms: int


class CancelTimer(NamedTuple):
    """Take a timer back, if it is set."""

    timer: Timer


class Save(NamedTuple):
    """Journal this state, then call `saved(save, error)`. Saves are journaled in order."""

    save: int
    generation: int
    protocol_type: str
    empty: bool
    state: bytes


Effect = Reply | SetTimer | CancelTimer | Save
