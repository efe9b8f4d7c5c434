"""Dialogues with one share group's machine as text: what tests/golden/shares is made of.

    > configs delivery_count_limit=2
    > topic NAME PARTITIONS     a topic of one letter is made, or gets partitions
    > beat NAME EPOCH [TOPIC ...]
    > begin NAME PARTITION OFFSET
    > fetch MEMBER PARTITION LAST [max=N] [strict] [hole=A-B]
                                the log is read up to LAST; offsets A to B hold no record
    > say NAME MEMBER PARTITION FIRST-LAST:TYPES ...
    > release MEMBER
    > saved [ERROR]             the journal answers the save of members
    > stored [ERROR]            the journal answers the save of partitions
    > wait MS                   time passes; timers that fire are named
    > restart                   a new machine takes up what was saved and stored
    > show
Lines that begin with `>` are said to the machine; the lines below each are what it did. NAME is
what the reply is shown under. Partitions are those of topic `a`. Lines of `#` are comments.
"""

from __future__ import annotations

from typing import Any

from penstock.groups.consumer.messages import ReadAgain
from penstock.groups.errors import GroupError
from penstock.groups.messages import CancelTimer, Reply, SetTimer
from penstock.groups.settings import GroupSettings
from penstock.groups.share.configs import ShareConfigs
from penstock.groups.share.durable import decode_member, decode_share
from penstock.groups.share.machine import ShareGroup
from penstock.groups.share.messages import (
    Effect,
    RecordsFreed,
    SaveShareMembers,
    SaveSharePartitions,
    ShareHeartbeat,
    ShareHeartbeatReply,
)
from penstock.groups.share.partition import AckBatch, Stretch
from unit.groups.consumer.shell import A, Topics
from unit.groups.fakes import VirtualTimers


class Dialogue:
    """Plays the lines of one file."""

    def __init__(self) -> None:
        self.configs = ShareConfigs()
        self.topics = Topics()
        self.timers = VirtualTimers()
        self.group = self._group()
        self.names: dict[int, str] = {}
        self.members: list[SaveShareMembers] = []
        self.member_rows: dict[str, bytes] = {}
        self.kept_members: SaveShareMembers | None = None
        self.rows: list[SaveSharePartitions] = []
        self.kept: dict[int, tuple[int, bytes]] = {}
        self.out: list[str] = []

    def play(self, text: str) -> str:
        """The whole dialogue with the answers that the machine gives now."""
        lines: list[str] = []
        for line in text.splitlines():
            if not line.startswith(">"):
                if line.startswith("#") or not line.strip():
                    lines.append(line)
                continue
            lines.append(line)
            self.out = []
            words = line[1:].split()
            getattr(self, f"_{words[0]}")(words[1:])
            lines += [f"  {one}" for one in self.out]
        return "\n".join(lines) + "\n"

    # -- what is said ------------------------------------------------------------------------------

    def _group(self) -> ShareGroup:
        return ShareGroup("g", GroupSettings(), lambda: self.configs)

    def _configs(self, words: list[str]) -> None:
        values: Any = {key: int(value) for key, value in (word.split("=") for word in words)}
        self.configs = ShareConfigs(**values)

    def _topic(self, words: list[str]) -> None:
        self.topics.set(words[0], int(words[1]))

    def _beat(self, words: list[str]) -> None:
        topics = tuple(words[2:]) or None
        beat = ShareHeartbeat(member_id=words[0], epoch=int(words[1]), topics=topics)
        self._do(self.group.heartbeat(self._request(words[0]), beat, self.topics))

    def _begin(self, words: list[str]) -> None:
        request = self._request(words[0])
        self.group.deliveries.begin(request, (A, int(words[1])), int(words[2]))
        self._do(self.group.carried_out())

    def _fetch(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words if "=" in word)
        place = (A, int(words[1]))
        offset = self.group.deliveries.next_offset(place, 0)
        last = int(words[2])
        if offset is None or offset > last:
            self.out.append("nothing")
            return
        stretches = [Stretch(offset, last)]
        if "hole" in options:
            begin, end = map(int, options["hole"].split("-"))
            stretches = [Stretch(offset, begin - 1), Stretch(end + 1, last)]
        found = self.group.deliveries.acquire(
            place,
            words[0],
            offset,
            stretches,
            records_max=int(options.get("max", 500)),
            cuts="strict" in words,
        )
        for one in found:
            self.out.append(f"{one.first}-{one.last} x{one.deliveries}")
        self._do(self.group.carried_out())

    def _say(self, words: list[str]) -> None:
        batches = []
        for word in words[3:]:
            bounds, _, types = word.partition(":")
            first, _, last = bounds.partition("-")
            kinds = [int(kind) for kind in types.split(",")]
            batches.append(AckBatch(int(first), int(last or first), kinds))
        said = {(A, int(words[2])): batches}
        faults = self.group.deliveries.acknowledge(self._request(words[0]), words[1], said)
        for fault in faults.values():
            self.out.append(f"{fault.error.name}: {fault.message}")
        self._do(self.group.carried_out())

    def _release(self, words: list[str]) -> None:
        self.group.deliveries.release(words[0], list(self.group.deliveries.partitions))
        self._do(self.group.carried_out())

    def _saved(self, words: list[str]) -> None:
        save = self.members.pop(0)
        if not words:
            self.kept_members = save
            self.member_rows |= save.rows
            for member_id in save.removed:
                del self.member_rows[member_id]
        error = GroupError[words[0]] if words else GroupError.NONE
        self._do(self.group.saved(save.save, error))

    def _stored(self, words: list[str]) -> None:
        save = self.rows.pop(0)
        if not words:
            self.kept |= {row[1]: (row[2], row[3]) for row in save.rows}
        self._do(self.group.saved_shares(GroupError[words[0]] if words else GroupError.NONE))

    def _wait(self, words: list[str]) -> None:
        until_ms = self.timers.now_ms + int(words[0])
        while (timer := self.timers.next(until_ms)) is not None:
            self.out.append(f"at {self.timers.now_ms} ms {' '.join(timer).strip()} timer fired")
            self._do(self.group.timer_fired(timer))

    def _restart(self, words: list[str]) -> None:
        self.group = self._group()
        now_ms, self.timers = self.timers.now_ms, VirtualTimers()
        self.timers.now_ms = now_ms
        kept = self.kept_members
        assert kept is not None
        effects = self.group.restore(
            epoch=kept.epoch,
            target_epoch=kept.target_epoch,
            counts=kept.counts,
            members=[
                decode_member(member_id, row, group_id="g")
                for member_id, row in self.member_rows.items()
            ],
            is_partial=False,
            partitions={
                (A, number): decode_share(start, state, subject="it")
                for number, (start, state) in self.kept.items()
            },
        )
        self._do(effects)
        self._show([])

    def _show(self, words: list[str]) -> None:
        group = self.group
        members = ", ".join(
            f"{member.member_id}@{member.epoch}={sorted(member.assigned.get(A, ()))}"
            for member in group.roster.members.values()
        )
        self.out.append(f"{group.state.value} epoch {group.generation}: {members or '-'}")
        for (_, number), share in sorted(group.deliveries.partitions.items()):
            spans = " ".join(
                f"{span.first}-{span.last}:{span.state.name}"
                + (f" x{span.count}" if span.count else "")
                + (f" {span.member}" if span.member else "")
                for span in share.spans
            )
            self.out.append(f"{number}: [{share.start}, {share.end}) {spans or '-'}")

    # -- what is done ------------------------------------------------------------------------------

    def _request(self, name: str) -> int:
        request = len(self.names) + 1
        self.names[request] = name
        return request

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers.set(effect.timer, effect.delay_ms)
                if effect.timer.kind != "session":
                    self.out.append(f"{' '.join(effect.timer)} timer in {effect.delay_ms} ms")
            elif isinstance(effect, CancelTimer):
                self.timers.cancel(effect.timer)
            elif isinstance(effect, SaveShareMembers):
                self.members.append(effect)
                rows = " ".join([*effect.rows, *(f"-{gone}" for gone in effect.removed)])
                self.out.append(f"save members: epoch {effect.epoch} {rows}")
            elif isinstance(effect, SaveSharePartitions):
                self.rows.append(effect)
                rows = ", ".join(f"{row[1]} from {row[2]}" for row in effect.rows)
                self.out.append(f"save partitions: {rows}")
            elif isinstance(effect, RecordsFreed):
                self.out.append("records freed")
            elif isinstance(effect, ReadAgain):
                self.out.append("read again")
            else:
                self.out.append(f"{self.names[effect.request]} <- {_reply(effect)}")


def _reply(effect: Reply) -> str:
    reply: Any = effect.reply
    if reply.error is not GroupError.NONE:
        return str(reply.error.name)
    if not isinstance(reply, ShareHeartbeatReply):
        return "done"
    assigned = "as before" if reply.assigned is None else sorted(reply.assigned.get(A, ()))
    return f"epoch {reply.epoch} partitions {assigned}"
