"""The members of a group: who leads, which instance is who, what all of them know. Pure.

Members keep the order in which they came; among equals the first is chosen, so that the same
events always give the same leader and the same protocol.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from penstock.groups.member import Member
from penstock.groups.messages import JoinedMember, Protocol


class Roster:
    """The members by id."""

    __slots__ = ("_instances", "_members", "leader")

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self.leader: str = ""
        """The member that assigns; empty when there are no members."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        """The member of that id."""
        return self._members.get(member_id)

    def member_of_instance(self, instance_id: str | None) -> str | None:
        """The id of the member that now has that instance id (KIP-345)."""
        return None if instance_id is None else self._instances.get(instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks for: the group waits for its slowest."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    @property
    def joined_count(self) -> int:
        """Members whose join waits."""
        return sum(member.join_request is not None for member in self)

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if not self.leader:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        """Take a member out; when it led, the one that came first leads."""
        member = self._members.pop(member_id)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), "")
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new id; it keeps its place, its assignment and its lead."""
        renamed = {}
        for member_id, member in self._members.items():
            if member_id == old_id:
                member.member_id = member_id = new_id
            renamed[member_id] = member
        self._members = renamed
        member = renamed[new_id]
        assert member.instance_id is not None
        self._instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """Keep the leader if its join waits, else take the first whose does.

        Returns: whether there is such a leader.
        """
        leader = self._members.get(self.leader)
        if leader is not None and leader.join_request is not None:
            return True
        for member in self:
            if member.join_request is not None:
                self.leader = member.member_id
                return True
        return False

    def knows_one_of(self, protocols: Iterable[Protocol]) -> bool:
        """Whether every member knows one and the same of these protocols."""
        common = self._common_protocols()
        return any(protocol.name in common for protocol in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that all members know."""
        common = self._common_protocols()
        return Counter(member.vote(common) for member in self).most_common(1)[0][0]

    def joined_members(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        """All members, as their leader sees them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol_name))
            for member in self
        )

    def _common_protocols(self) -> set[str]:
        counts = Counter(
            name for member in self for name in {protocol.name for protocol in member.protocols}
        )
        return {name for name, count in counts.items() if count == len(self._members)}
