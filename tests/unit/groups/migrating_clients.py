"""Clients of both protocols, as libraries behave: what each reads, and what it asks for next."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.groups.consumer.messages import Heartbeat
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.errors import GroupError
from penstock.groups.messages import JoinedMember, JoinReply, Leaver, Protocol, SyncRequest
from penstock.groups.subscription import read_assignment, read_subscription, write_assignment
from unit.groups.fakes import join_request

TOPIC = "flights"
PARTITIONS = 4
GROUP = "g"
Numbers = frozenset[int]
NOTHING: Numbers = frozenset()
LATER = {GroupError.COORDINATOR_NOT_AVAILABLE, GroupError.NOT_COORDINATOR}
"""The answers after which a client asks the same again."""


def subscription(owned: Sequence[int] = (), *, rack: str | None = None) -> bytes:
    """What a classic consumer of the topic says, in version 3."""
    topics = struct.pack(">hi", 3, 1) + struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    has = write_assignment({TOPIC: owned} if owned else {})[2:-4]
    named = struct.pack(">h", -1) if rack is None else struct.pack(">h", len(rack)) + rack.encode()
    return topics + struct.pack(">i", -1) + has + struct.pack(">i", 7) + named


class Client:
    """One member. `act` sends its next request, and takes the answer."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.has: Numbers = NOTHING
        """The partitions that it reads."""
        self.epoch = 0
        """The epoch or generation that it was last answered with all that it is made of."""
        self.is_fenced = False
        """Another process has its place."""
        self.is_refused = False
        """The group takes no member of its protocol."""

    async def act(self, groups: GroupCoordinator) -> None:
        raise NotImplementedError

    async def leave(self, groups: GroupCoordinator) -> None:
        raise NotImplementedError


class ConsumerClient(Client):
    """A client of KIP-848."""

    def __init__(self, name: str, instance_id: str | None, topic_id: bytes) -> None:
        super().__init__(name, instance_id)
        self._topic_id = topic_id
        self._wants: Numbers = NOTHING
        self._says_all = True

    async def act(self, groups: GroupCoordinator) -> None:
        joins = self.epoch == 0
        says_all = joins or self._says_all
        # What it must give up goes first.
        if self.has - self._wants:
            self.has &= self._wants
        owned = {self._topic_id: self.has} if self.has else {}
        beat = Heartbeat(
            member_id=self.name,
            epoch=self.epoch,
            instance_id=self.instance_id if joins else None,
            rebalance_timeout_ms=60_000 if says_all else -1,
            topics=(TOPIC,) if says_all else None,
            owned=owned,
        )
        self._says_all = True
        reply = await groups.consumer_heartbeat(GROUP, beat)
        self.is_refused = joins and reply.error is GroupError.GROUP_ID_NOT_FOUND
        if reply.error is GroupError.NONE:
            self.epoch, self._says_all = reply.epoch, False
            if reply.assigned is not None:
                self._wants = reply.assigned.get(self._topic_id, NOTHING)
            if not self.has - self._wants:
                self.has = self._wants
        elif reply.error is GroupError.FENCED_INSTANCE_ID:
            self.is_fenced, self.has = True, NOTHING
        elif reply.error not in LATER:
            assert reply.error in {
                GroupError.UNKNOWN_MEMBER_ID,
                GroupError.FENCED_MEMBER_EPOCH,
                GroupError.GROUP_ID_NOT_FOUND,
                GroupError.UNRELEASED_INSTANCE_ID,
            }, reply
            self.epoch, self.has, self._wants = 0, NOTHING, NOTHING

    async def leave(self, groups: GroupCoordinator) -> None:
        self.has = NOTHING
        if self.epoch:
            await groups.consumer_heartbeat(GROUP, Heartbeat(member_id=self.name, epoch=-1))


class ClassicClient(Client):
    """A client of the classic protocol, eager or cooperative."""

    def __init__(self, name: str, instance_id: str | None, *, is_cooperative: bool) -> None:
        super().__init__(name, instance_id)
        self._assignor = "cooperative-sticky" if is_cooperative else "range"
        self._is_cooperative = is_cooperative
        self._member_id = ""
        self._generation = -1
        self._must_join = True
        self._joined: JoinReply | None = None

    async def act(self, groups: GroupCoordinator) -> None:
        if self._must_join:
            await self._join(groups)
        elif self._joined is not None:
            await self._sync(groups, self._joined)
        else:
            error = groups.heartbeat(GROUP, self._member_id, self.instance_id, self._generation)
            self._must_join = error is GroupError.REBALANCE_IN_PROGRESS
            if error is not GroupError.NONE and not self._must_join:
                self._take_error(error)

    async def _join(self, groups: GroupCoordinator) -> None:
        if not self._is_cooperative:
            self.has = NOTHING
        said = subscription(sorted(self.has))
        new_id = "" if self._member_id else groups.new_member_id(self.instance_id or self.name)
        request = join_request(
            self._member_id,
            new_member_id=new_id,
            instance_id=self.instance_id,
            protocols=(Protocol(self._assignor, said),),
        )
        reply = await groups.join(GROUP, request)
        self.is_refused = reply.error is GroupError.INCONSISTENT_GROUP_PROTOCOL
        if reply.error is GroupError.NONE:
            self._member_id, self._generation = reply.member_id, reply.generation
            self._joined, self._must_join = reply, False
        elif self.is_refused:
            self.has = NOTHING
        elif reply.error is not GroupError.REBALANCE_IN_PROGRESS:
            self._take_error(reply.error)

    async def _sync(self, groups: GroupCoordinator, joined: JoinReply) -> None:
        given: Mapping[str, bytes] = {}
        if joined.leader == self._member_id and not joined.skip_assignment:
            given = self._assign(joined.members)
        request = SyncRequest(
            member_id=self._member_id,
            instance_id=self.instance_id,
            generation=self._generation,
            protocol_type="consumer",
            protocol_name=self._assignor,
            assignments=dict(given),
        )
        reply = await groups.sync(GROUP, request)
        if reply.error is GroupError.NONE:
            found = read_assignment(reply.assignment)
            assert found is not None
            assigned = frozenset(found.partitions.get(TOPIC, ()))
            # What it has given up it says by joining again.
            self._must_join = self._is_cooperative and bool(self.has - assigned)
            self.has, self._joined, self.epoch = assigned, None, self._generation
        elif reply.error is GroupError.REBALANCE_IN_PROGRESS:
            self._joined, self._must_join = None, True
        else:
            self._take_error(reply.error)

    def _take_error(self, error: GroupError) -> None:
        if error in LATER:
            return
        assert error in {
            GroupError.UNKNOWN_MEMBER_ID,
            GroupError.ILLEGAL_GENERATION,
            GroupError.FENCED_INSTANCE_ID,
        }, error
        self.has, self._joined, self._must_join = NOTHING, None, True
        self.is_fenced = error is GroupError.FENCED_INSTANCE_ID
        if error is GroupError.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    def _assign(self, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        owned = {member.member_id: _owned(member.metadata) for member in members}
        shares = _sticky(owned) if self._is_cooperative else _dealt(sorted(owned))
        return {name: write_assignment({TOPIC: sorted(some)}) for name, some in shares.items()}

    async def leave(self, groups: GroupCoordinator) -> None:
        self.has = NOTHING
        groups.leave(GROUP, [Leaver(self._member_id, self.instance_id)])


def _owned(metadata: bytes) -> Numbers:
    said = read_subscription(metadata)
    assert said is not None
    return frozenset(said.owned.get(TOPIC, ()))


def _dealt(names: Sequence[str]) -> Mapping[str, set[int]]:
    shares: dict[str, set[int]] = {name: set() for name in names}
    for number in range(PARTITIONS):
        shares[names[number % len(names)]].add(number)
    return shares


def _sticky(owned: Mapping[str, Numbers]) -> Mapping[str, set[int]]:
    """Give each its own up to its share, and to others what nobody has: what a member gives up is
    in no hands until it has said so."""
    share = -(-PARTITIONS // len(owned))
    shares: dict[str, set[int]] = {
        name: set(sorted(some)[:share]) for name, some in sorted(owned.items())
    }
    free = sorted(set(range(PARTITIONS)).difference(*owned.values()))
    for number in free:
        least: Any = min(shares, key=lambda name: (len(shares[name]), name))
        shares[least].add(number)
    return shares
