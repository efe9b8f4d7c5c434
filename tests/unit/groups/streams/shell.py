"""Carries a streams group's effects out: timers and journal are the test's."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups.consumer.messages import ReadAgain
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer, Timer
from penstock.groups.settings import GroupSettings
from penstock.groups.streams.durable import decode_group
from penstock.groups.streams.machine import StreamsGroup
from penstock.groups.streams.member import decode_member
from penstock.groups.streams.messages import Effect, SaveStreams, StreamsHeartbeat, StreamsReply
from penstock.groups.streams.saving import streams_commands
from penstock.groups.streams.topology import (
    TOPOLOGY_ROW,
    InternalTopic,
    Subtopology,
    Topology,
    decode_topology,
)
from penstock.state.commands import SaveMembers
from unit.groups.consumer.shell import Topics

COUNT = Topology(
    0,
    (
        Subtopology("0", sources=("a",), repartition_sinks=("r",)),
        Subtopology(
            "1",
            repartition_sources=(InternalTopic("r"),),
            changelogs=(InternalTopic("s", configs=(("cleanup.policy", "compact"),)),),
        ),
    ),
)
"""A word count's: it reads a, writes and reads r, and keeps s."""
NO_WAITS = {
    "streams.initial.rebalance.delay.ms": "0",
    "streams.assignment.interval.ms": "0",
}


class Shell:
    """Journals at once, or when a test lets it (`holds`)."""

    def __init__(self, catalog: Topics, **configs: str) -> None:
        self.catalog = catalog
        self.configs = {**NO_WAITS, **configs}
        self.settings = GroupSettings()
        self.group = self._new()
        self.replies: dict[int, StreamsReply] = {}
        self.timers: dict[Timer, int] = {}
        self.saves: list[SaveStreams] = []
        self.rows: dict[str, bytes] = {}
        self.stored: SaveMembers | None = None
        self.holds = False
        self.requests = 0

    def _new(self) -> StreamsGroup:
        return StreamsGroup("g", self.settings, configs=lambda: self.configs)

    def do(self, effects: Iterable[Effect]) -> None:
        """Carry them out."""
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request not in self.replies, "answered twice"
                    assert isinstance(effect.reply, StreamsReply)
                    self.replies[effect.request] = effect.reply
                case SetTimer():
                    self.timers[effect.timer] = effect.delay_ms
                case CancelTimer():
                    self.timers.pop(effect.timer, None)
                case SaveStreams():
                    assert not self.saves, "one save at a time"
                    self.saves.append(effect)
                case ReadAgain():
                    self.read_again()
        if not self.holds:
            self.journal()

    def journal(self, error: GroupError = GroupError.NONE, *, parts: int = -1) -> None:
        """Answer the save that is under way, and those that follow.

        Args:
            parts: how many commands of the save are journaled at all; -1: all.
        """
        while self.saves:
            (save,) = self.saves
            self.saves.clear()
            commands = list(streams_commands(save, group_id="g", shard_epoch=0))
            taken = commands if error is GroupError.NONE else commands[: max(0, parts)]
            for command in taken:
                for member_id in command.removed:
                    self.rows.pop(member_id, None)
                self.rows.update(command.rows)
                self.stored = command
            self.do(self.group.saved(save.save, error))

    def fire(self, timer: Timer) -> None:
        """Let a timer's time pass."""
        del self.timers[timer]
        self.do(self.group.timer_fired(timer))

    def read_again(self) -> None:
        """Begin with what is journaled, as the next coordinator does."""
        self.timers.clear()
        self.saves.clear()
        self.group = self._new()
        if self.stored is None:
            return
        rows = dict(self.rows)
        topology = rows.pop(TOPOLOGY_ROW, None)
        self.do(
            self.group.restore(
                epoch=self.stored.generation,
                state=decode_group(self.stored.state, group_id="g"),
                topology=None if topology is None else decode_topology(topology, group_id="g"),
                members=[
                    decode_member(member_id, row, group_id="g")
                    for member_id, row in sorted(rows.items())
                ],
            )
        )

    def ask(self, beat: StreamsHeartbeat) -> int:
        """Send a heartbeat; the number of its reply."""
        self.requests += 1
        request = self.requests
        self.do(self.group.heartbeat(request, beat, self.catalog))
        return request

    def beat(self, member_id: str, epoch: int, **fields: object) -> StreamsReply:
        """Send a heartbeat and get its reply."""
        beat = StreamsHeartbeat(member_id=member_id, epoch=epoch, **fields)  # type: ignore[arg-type]
        return self.replies[self.ask(beat)]

    def join(self, member_id: str, topology: Topology = COUNT, **fields: object) -> StreamsReply:
        """Join and get the reply."""
        return self.beat(member_id, 0, **joining(member_id, topology), **fields)


def joining(member_id: str, topology: Topology = COUNT) -> dict[str, object]:
    """The fields of a heartbeat that joins."""
    return {
        "rebalance_timeout_ms": 60_000,
        "topology": topology,
        "active": {},
        "standby": {},
        "warmup": {},
        "process_id": f"process-{member_id}",
    }
