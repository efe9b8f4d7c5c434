"""Carries a consumer group's effects out: timers and journal are the test's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.member import decode_member
from penstock.groups.consumer.messages import (
    Effect,
    Heartbeat,
    HeartbeatReply,
    ReadAgain,
    SaveMembers,
    TopicShape,
)
from penstock.groups.consumer.partitions import NONE, Partitions
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer, Timer
from penstock.groups.settings import GroupSettings


def topic_id(name: str) -> bytes:
    """The id of a topic of one letter."""
    return name.encode() * 16


A = topic_id("a")


class Topics:
    """A catalog that a test changes."""

    def __init__(self, **counts: int) -> None:
        self.counts = dict(counts)
        self.generation = 0

    def set(self, name: str, count: int) -> None:
        """Make, extend or (with 0) delete a topic."""
        self.generation += 1
        self.counts[name] = count
        if not count:
            del self.counts[name]

    def shape(self, name: str) -> TopicShape | None:
        """See `Catalog`."""
        count = self.counts.get(name)
        return None if count is None else TopicShape(topic_id(name), count)

    def matching(self, regex: str) -> frozenset[str]:
        """See `Catalog`; of regular expressions it knows a letter and `.*`."""
        return frozenset(name for name in self.counts if name.startswith(regex.rstrip(".*")))


def no_fault(regex: str) -> str | None:
    """See `RegexFault`."""
    return "missing )" if regex.startswith("(") else None


class Shell:
    """Journals at once, or when a test lets it (`holds`)."""

    def __init__(self, catalog: Topics, group_settings: GroupSettings | None = None) -> None:
        self.catalog = catalog
        self.settings = group_settings or GroupSettings()
        self.configs: dict[str, str] = {}
        self.group = self._new()
        self.replies: dict[int, HeartbeatReply] = {}
        self.timers: dict[Timer, int] = {}
        self.saves: list[SaveMembers] = []
        self.rows: dict[str, bytes] = {}
        self.stored: tuple[int, int, Mapping[bytes, int]] = (0, 0, {})
        self.holds = False
        self.requests = 0

    def _new(self) -> ConsumerGroup:
        return ConsumerGroup("g", self.settings, regex_fault=no_fault, configs=lambda: self.configs)

    def do(self, effects: Iterable[Effect]) -> None:
        """Carry them out."""
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request not in self.replies, "answered twice"
                    assert isinstance(effect.reply, HeartbeatReply)
                    self.replies[effect.request] = effect.reply
                case SetTimer():
                    self.timers[effect.timer] = effect.delay_ms
                case CancelTimer():
                    self.timers.pop(effect.timer, None)
                case SaveMembers():
                    assert not self.saves, "one save at a time"
                    self.saves.append(effect)
                case ReadAgain():
                    self.read_again()
        if not self.holds:
            self.journal()

    def journal(self, error: GroupError = GroupError.NONE) -> None:
        """Answer the save that is under way, and those that follow."""
        while self.saves:
            (save,) = self.saves
            self.saves.clear()
            if error is GroupError.NONE:
                for member_id in save.removed:
                    self.rows.pop(member_id, None)
                self.rows.update(save.rows)
                self.stored = (save.epoch, save.target_epoch, dict(save.counts))
                assert save.is_empty == (not self.rows)
            self.do(self.group.saved(save.save, error))

    def read_again(self, *, is_partial: bool = False) -> None:
        """Begin with what is journaled, as the next coordinator does."""
        self.timers.clear()
        self.group = self._new()
        epoch, target_epoch, counts = self.stored
        self.do(
            self.group.restore(
                epoch=epoch,
                target_epoch=target_epoch,
                counts=counts,
                members=[
                    decode_member(member_id, row, group_id="g")
                    for member_id, row in sorted(self.rows.items())
                ],
                is_partial=is_partial,
            )
        )

    def ask(self, beat: Heartbeat) -> int:
        """Send a heartbeat; the number of its reply."""
        self.requests += 1
        request = self.requests
        self.do(self.group.heartbeat(request, beat, self.catalog))
        return request

    def beat(self, member_id: str, epoch: int, **fields: object) -> HeartbeatReply:
        """Send a heartbeat and get its reply."""
        request = self.ask(Heartbeat(member_id=member_id, epoch=epoch, **fields))  # type: ignore[arg-type]
        return self.replies[request]

    def join(self, member_id: str, *topics: str, **fields: object) -> HeartbeatReply:
        """Join and get the reply."""
        given = {"rebalance_timeout_ms": 60_000, "topics": topics, "owned": NONE, **fields}
        return self.beat(member_id, 0, **given)


def numbers(assigned: Partitions | None, topic: bytes = A) -> list[int]:
    """Partition numbers of one topic."""
    assert assigned is not None
    return sorted(assigned.get(topic, ()))
