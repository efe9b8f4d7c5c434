"""Dialogues with one group's machine as text: what the tests in tests/golden/groups are made of.

Lines that begin with `>` are said to the machine; the lines below each are what it did.

    > settings size_max=2 initial_rebalance_delay_ms=0
    > join NAME [id=ID] [as=ID] [instance=I] [protocols=range,sticky] [type=consumer]
           [session=10000] [rebalance=60000] [v4] [v9]
    > sync NAME GENERATION ID [instance=I] [protocol=range] [ID:ASSIGNMENT ...]
    > heartbeat ID GENERATION [instance=I]
    > leave ID|-[/instance] ...
    > commit ID|- GENERATION [instance=I]
    > saved N [ERROR]       the journal answers save N
    > wait MS               time passes; timers that fire are named
    > restart SAVE          a new machine takes up what was saved as SAVE
    > show
NAME is what the reply is shown under. Lines of `#` are comments and stay.
"""

from __future__ import annotations

from typing import Any

from penstock.groups.durable import decode_state
from penstock.groups.errors import GroupError
from penstock.groups.messages import (
    CancelTimer,
    Effect,
    JoinReply,
    Leaver,
    Protocol,
    Reply,
    Save,
    SetTimer,
    SyncRequest,
)
from penstock.groups.settings import GroupSettings
from penstock.groups.state import ClassicGroup
from unit.groups.fakes import VirtualTimers, join_request


class Dialogue:
    """Plays the lines of one file."""

    def __init__(self) -> None:
        self.settings = GroupSettings()
        self.group = ClassicGroup("g", self.settings)
        self.timers = VirtualTimers()
        self.names: dict[int, str] = {}
        self.saves: dict[int, Save] = {}
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

    # -- what is said --------------------------------------------------------------------------

    def _settings(self, words: list[str]) -> None:
        values = {key: int(value) for key, value in (word.split("=") for word in words)}
        self.settings = GroupSettings(**values)
        self.group = ClassicGroup("g", self.settings)

    def _join(self, words: list[str]) -> None:
        name, options, flags = words[0], *_options(words[1:])
        protocols = options.get("protocols", "range").split(",")
        request = self._request(name)
        join = join_request(
            member_id=options.get("id", ""),
            new_member_id=options.get("as", name),
            instance_id=options.get("instance"),
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(Protocol(*_protocol(one)) for one in protocols if one),
            id_required="v4" in flags,
            may_skip_assignment="v9" in flags,
        )
        self._do(self.group.join(request, join))

    def _sync(self, words: list[str]) -> None:
        name, generation, member_id = words[:3]
        options, rest = _options(words[3:])
        sync = SyncRequest(
            member_id=member_id,
            instance_id=options.get("instance"),
            generation=int(generation),
            protocol_type=options.get("type"),
            protocol_name=options.get("protocol"),
            assignments={who: what.encode() for who, what in (one.split(":") for one in rest)},
        )
        self._do(self.group.sync(self._request(name), sync))

    def _heartbeat(self, words: list[str]) -> None:
        options, _ = _options(words[2:])
        error, effects = self.group.heartbeat(words[0], options.get("instance"), int(words[1]))
        self.out.append(error.name)
        self._do(effects)

    def _leave(self, words: list[str]) -> None:
        leavers = []
        for word in words:
            member_id, _, instance_id = word.partition("/")
            leavers.append(Leaver("" if member_id == "-" else member_id, instance_id or None))
        results, effects = self.group.leave(leavers)
        for result in results:
            self.out.append(f"{result.member_id or '-'}: {result.error.name}")
        self._do(effects)

    def _commit(self, words: list[str]) -> None:
        options, _ = _options(words[2:])
        member_id = "" if words[0] == "-" else words[0]
        error = self.group.commit(member_id, options.get("instance"), int(words[1]))
        self.out.append(error.name)
        if error is GroupError.NONE:
            self._do(self.group.commit_seen(member_id))

    def _saved(self, words: list[str]) -> None:
        error = GroupError[words[1]] if len(words) > 1 else GroupError.NONE
        self._do(self.group.saved(int(words[0]), error))

    def _wait(self, words: list[str]) -> None:
        until_ms = self.timers.now_ms + int(words[0])
        while (timer := self.timers.next(until_ms)) is not None:
            self.out.append(f"at {self.timers.now_ms} ms {' '.join(timer).strip()} timer fired")
            self._do(self.group.timer_fired(timer))

    def _restart(self, words: list[str]) -> None:
        save = self.saves[int(words[0])]
        self.group = ClassicGroup("g", self.settings)
        now_ms, self.timers = self.timers.now_ms, VirtualTimers()
        self.timers.now_ms = now_ms
        state = decode_state(save.state, group_id="g")
        self._do(self.group.restore(save.generation, save.protocol_type, state))
        self._show([])

    def _show(self, words: list[str]) -> None:
        group = self.group
        members = ", ".join(
            f"{member.member_id}={member.assignment.decode()}" for member in group.roster
        )
        self.out.append(
            f"{group.state.value} generation {group.generation}"
            f" leader {group.roster.leader or '-'}: {members or '-'}"
        )

    # -- what is done --------------------------------------------------------------------------

    def _request(self, name: str) -> int:
        request = len(self.names) + 1
        self.names[request] = name
        return request

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers.set(effect.timer, effect.delay_ms)
                if effect.timer.kind != "session":
                    self.out.append(f"{effect.timer.kind} timer in {effect.delay_ms} ms")
            elif isinstance(effect, CancelTimer):
                self.timers.cancel(effect.timer)
            elif isinstance(effect, Save):
                self.saves[effect.save] = effect
                what = "empty" if effect.empty else _saved_members(effect)
                self.out.append(f"save {effect.save}: generation {effect.generation} {what}")
            else:
                self.out.append(f"{self.names[effect.request]} <- {_reply(effect)}")


def _protocol(word: str) -> tuple[str, bytes]:
    name, _, metadata = word.partition(":")
    return name, metadata.encode()


def _saved_members(save: Save) -> str:
    state = decode_state(save.state, group_id="g")
    return " ".join(f"{one.member_id}={one.assignment.decode()}" for one in state.members)


def _reply(effect: Reply) -> str:
    reply: Any = effect.reply
    if reply.error is not GroupError.NONE:
        member_id = f" member {reply.member_id or '-'}" if isinstance(reply, JoinReply) else ""
        return reply.error.name + member_id
    if isinstance(reply, JoinReply):
        told = ",".join(member.member_id for member in reply.members)
        skip = " skips assignment" if reply.skip_assignment else ""
        return (
            f"generation {reply.generation} {reply.protocol_name} member {reply.member_id}"
            f" leader {reply.leader} members {told or '-'}{skip}"
        )
    return f"assignment {reply.assignment.decode() or '-'}"


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    pairs = [word.split("=", 1) for word in words if "=" in word]
    return dict(pairs), [word for word in words if "=" not in word]  # type: ignore[arg-type]
