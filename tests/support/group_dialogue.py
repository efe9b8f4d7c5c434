"""Dialogues of members of both protocols with a group, as text: tests/golden/migration.

A line that begins with `>` is a request, the indented lines after it its answer, as a broker of
Kafka 4.3.1 gives it. Where ours is another one, the lines of Kafka's begin with `kafka:`, and those
of ours, which follow, with `ours:`; a comment says why. The group has the file's name, and every
file has `> policy`, which is `group.consumer.migration.policy`. Words in brackets may be left out:

| line | what is sent |
| --- | --- |
| `join NAME [with=ASSIGNOR,...] [has=0,1] [instance=I] [type=T] [said=bad] [waits]` | JoinGroup |
| `answer NAME` | nothing: the answer to a join that waits |
| `sync NAME [NAME=0,1 ...] [instance=I] [with=ASSIGNOR] [at=GENERATION]` | SyncGroup |
| `live NAME [instance=I] [at=GENERATION]` | Heartbeat |
| `leave NAME[/INSTANCE] ...` | LeaveGroup; `-` is the empty member id |
| `beat NAME EPOCH [reads] [has=0,1] [instance=I]` | ConsumerGroupHeartbeat |
| `commit NAME [at=GENERATION]` | OffsetCommit |
| `list`, `describe`, `consumers` | ListGroups, DescribeGroups, ConsumerGroupDescribe |
| `until STATE` | nothing: ListGroups says so by then |

An EPOCH `here` is the member's last one; `reads` says all that a member says when it joins. A join
that is `shown` shows that it got its id first.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from penstock.groups.subscription import read_assignment, write_assignment

TOPIC = "flights"
PARTITIONS = 4
TRIES_MAX = 1200
"""How often a state is looked for, every tenth of a second."""
NOT_SAID = timedelta(milliseconds=-1)


class Face(Protocol):
    """A broker, as one request after the other."""

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        """Send one request; its answer."""
        ...

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        """A nested entity of a request."""
        ...


def expected(written: str, whose: str) -> str:
    """The text with the answers of one of both: `kafka` or `ours`."""
    other = {"kafka": "ours", "ours": "kafka"}[whose]
    lines = [line for line in written.splitlines() if not line.startswith(f"  {other}: ")]
    return "".join(f"{line.replace(f'  {whose}: ', '  ', 1)}\n" for line in lines)


def merged(kafka: str, ours: str) -> str:
    """The text with the answers of both, of the same requests; the inverse of `expected`."""
    said: list[str] = []
    for one, other in zip(_blocks(kafka), _blocks(ours), strict=True):
        assert one[0] == other[0]
        said.append(one[0])
        if one == other:
            said += one[1:]
        else:
            said += [line.replace("  ", "  kafka: ", 1) for line in one[1:]]
            said += [line.replace("  ", "  ours: ", 1) for line in other[1:]]
    return "\n".join(said) + "\n"


def _blocks(text: str) -> list[list[str]]:
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def policy_of(written: str) -> str:
    """What the broker's policy has to be."""
    (line,) = (line for line in written.splitlines() if line.startswith("> policy "))
    return line.split()[2]


class GroupDialogue:
    """The members of one group."""

    def __init__(self, face: Face, group_id: str, topic_id: uuid.UUID) -> None:
        self._face = face
        self._group_id = group_id
        self._topic_id = topic_id
        self._ids: dict[str, str] = {}
        """Member ids by name."""
        self._names: dict[str, str] = {"": "-"}
        self._generations: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Task[list[str]]] = {}

    async def play(self, written: str) -> str:
        """The text with the answers as they are."""
        said: list[str] = []
        for line in written.splitlines():
            if line.startswith("> "):
                said.append(line)
                words = line[2:].split()
                play: Callable[..., Awaitable[list[str]]] = getattr(self, f"_{words[0]}")
                said += [f"  {self._named(one)}" for one in await play(*words[1:])]
            elif not line.startswith("  "):
                said.append(line)
        assert not self._waiting
        return "\n".join(said) + "\n"

    def _named(self, said: str) -> str:
        for member_id, name in self._names.items():
            said = said.replace(member_id, name) if member_id else said
        return said

    def _learn(self, name: str, member_id: str) -> None:
        if member_id:
            self._ids[name] = member_id
            self._names[member_id] = name

    # -- the classic protocol ----------------------------------------------------------------------

    async def _policy(self, policy: str) -> list[str]:
        del policy
        return []

    async def _join(self, name: str, *words: str) -> list[str]:
        task = asyncio.create_task(self._join_answer(name, *words))
        if "waits" not in words:
            return await task
        self._waiting[name] = task
        return []

    async def _answer(self, name: str) -> list[str]:
        return await self._waiting.pop(name)

    async def _join_answer(self, name: str, *words: str) -> list[str]:
        options = _options(words)
        said = b"\xff" if options.get("said") == "bad" else _subscription(_numbers(options))
        protocols = tuple(
            self._face.part(
                "join_group", 9, "JoinGroupRequestProtocol", name=assignor, metadata=said
            )
            for assignor in options.get("with", "range").split(",")
        )
        fields = {
            "group_id": self._group_id,
            "session_timeout": timedelta(seconds=300),
            "rebalance_timeout": timedelta(seconds=300),
            "member_id": self._ids.get(name, ""),
            "group_instance_id": options.get("instance"),
            "protocol_type": options.get("type", "consumer"),
            "protocols": protocols,
            "reason": None,
        }
        reply = await self._face.call("join_group", 9, **fields)
        self._learn(name, reply.member_id)
        said_first = []
        if reply.error_code.name == "member_id_required":
            fields["member_id"] = reply.member_id
            said_first = ["member_id_required"] if "shown" in words else []
            reply = await self._face.call("join_group", 9, **fields)
        if reply.error_code.value:
            return [*said_first, reply.error_code.name]
        self._generations[name] = reply.generation_id
        members = ",".join(sorted(self._names[member.member_id] for member in reply.members))
        skips = " skips assignment" if reply.skip_assignment else ""
        begun = f"generation {reply.generation_id} {reply.protocol_type}/{reply.protocol_name}"
        leader = self._names.get(reply.leader, "?")
        return [*said_first, f"{begun} leader {leader} members {members or '-'}{skips}"]

    async def _sync(self, name: str, *words: str) -> list[str]:
        options = _options(words)
        given = [(one, said) for one, said in options.items() if one in self._ids]
        assignments = tuple(
            self._face.part(
                "sync_group",
                5,
                "SyncGroupRequestAssignment",
                member_id=self._ids[one],
                assignment=_assignment(said),
            )
            for one, said in given
        )
        reply = await self._face.call(
            "sync_group",
            5,
            **self._member(name, options),
            protocol_type="consumer",
            protocol_name=options.get("with", "range"),
            assignments=assignments,
        )
        if reply.error_code.value:
            return [str(reply.error_code.name)]
        assignment = read_assignment(reply.assignment)
        count = None if assignment is None else len(assignment.partitions.get(TOPIC, ()))
        return [f"{reply.protocol_type}/{reply.protocol_name} {count} partitions"]

    async def _live(self, name: str, *words: str) -> list[str]:
        reply = await self._face.call("heartbeat", 4, **self._member(name, _options(words)))
        return [reply.error_code.name]

    def _member(self, name: str, options: dict[str, str]) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "generation_id": int(options.get("at", self._generations.get(name, -1))),
            "member_id": self._ids.get(name, name),
            "group_instance_id": options.get("instance"),
        }

    async def _leave(self, *names: str) -> list[str]:
        parts = []
        for name, _, instance in (one.partition("/") for one in names):
            member_id = "" if name == "-" else self._ids.get(name, name)
            parts.append(
                self._face.part(
                    "leave_group",
                    5,
                    "MemberIdentity",
                    member_id=member_id,
                    group_instance_id=instance or None,
                    reason=None,
                )
            )
        reply = await self._face.call(
            "leave_group", 5, group_id=self._group_id, members=tuple(parts)
        )
        if reply.error_code.value:
            return [str(reply.error_code.name)]
        return [
            f"{member.member_id or '-'}"
            + (f"/{member.group_instance_id}" if member.group_instance_id else "")
            + f" {member.error_code.name}"
            for member in reply.members
        ]

    # -- KIP-848 -----------------------------------------------------------------------------------

    async def _beat(self, name: str, epoch: str, *words: str) -> list[str]:
        options = _options(words)
        self._learn(name, self._ids.get(name, f"{name}-id"))
        has = options.get("has")
        owned: Any = None
        if has is not None or "reads" in words:
            part = self._face.part(
                "consumer_group_heartbeat",
                1,
                "TopicPartitions",
                topic_id=self._topic_id,
                partitions=tuple(_numbers(options)),
            )
            owned = (part,) if _numbers(options) else ()
        reply = await self._face.call(
            "consumer_group_heartbeat",
            1,
            group_id=self._group_id,
            member_id=self._ids[name],
            member_epoch=self._generations[name] if epoch == "here" else int(epoch),
            instance_id=options.get("instance"),
            rack_id=None,
            rebalance_timeout=timedelta(seconds=300) if "reads" in words else NOT_SAID,
            subscribed_topic_names=(TOPIC,) if "reads" in words else None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=owned,
        )
        if reply.error_code.value:
            return [f"{reply.error_code.name}: {reply.error_message}"]
        if reply.member_epoch > 0:
            self._generations[name] = reply.member_epoch
        if reply.assignment is None:
            return [f"epoch {reply.member_epoch}"]
        count = sum(len(topic.partitions) for topic in reply.assignment.topic_partitions)
        return [f"epoch {reply.member_epoch}, {count} partitions"]

    # -- offsets and tools -------------------------------------------------------------------------

    async def _commit(self, name: str, *words: str) -> list[str]:
        options = _options(words)
        partition = self._face.part(
            "offset_commit",
            9,
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topic = self._face.part(
            "offset_commit", 9, "OffsetCommitRequestTopic", name=TOPIC, partitions=(partition,)
        )
        member = self._member(name, options)
        generation = member.pop("generation_id")
        reply = await self._face.call(
            "offset_commit", 9, **member, generation_id_or_member_epoch=generation, topics=(topic,)
        )
        return [reply.topics[0].partitions[0].error_code.name]

    async def _listed(self) -> Any:
        """The group in ListGroups; None: it is not there."""
        reply = await self._face.call("list_groups", 5, states_filter=(), types_filter=())
        return next((one for one in reply.groups if one.group_id == self._group_id), None)

    async def _list(self) -> list[str]:
        found = await self._listed()
        if found is None:
            return ["none"]
        return [f"{found.group_type} {found.group_state} {found.protocol_type or '-'}"]

    async def _until(self, state: str) -> list[str]:
        for _ in range(TRIES_MAX):
            found = await self._listed()
            if found is not None and found.group_state == state:
                return []
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self._group_id} is not {state}: {await self._list()}")

    async def _describe(self) -> list[str]:
        reply = await self._face.call(
            "describe_groups", 6, groups=(self._group_id,), include_authorized_operations=False
        )
        (found,) = reply.groups
        if found.error_code.value:
            return [f"{found.error_code.name}: {found.error_message}"]
        said = [f"{found.group_state} {found.protocol_type or '-'}/{found.protocol_data or '-'}"]
        for member in sorted(found.members, key=lambda one: self._names[one.member_id]):
            assignment = read_assignment(member.member_assignment)
            count = None if assignment is None else len(assignment.partitions.get(TOPIC, ()))
            said.append(
                f"{member.member_id} {member.group_instance_id or '-'}"
                f" metadata {'yes' if member.member_metadata else 'no'}, {count} partitions"
            )
        return said

    async def _consumers(self) -> list[str]:
        reply = await self._face.call(
            "consumer_group_describe",
            1,
            group_ids=(self._group_id,),
            include_authorized_operations=False,
        )
        (found,) = reply.groups
        if found.error_code.value:
            return [f"{found.error_code.name}: {found.error_message}"]
        epochs = f"epoch {found.group_epoch} target {found.assignment_epoch}"
        said = [f"{found.group_state} {epochs} {found.assignor_name}"]
        for member in sorted(found.members, key=lambda one: self._names[one.member_id]):
            has, wants = (
                sum(len(topic.partitions) for topic in one.topic_partitions)
                for one in (member.assignment, member.target_assignment)
            )
            topics = ",".join(member.subscribed_topic_names)
            said.append(
                f"{member.member_id} {member.instance_id or '-'} epoch {member.member_epoch}"
                f" has {has} of {wants}, type {member.member_type}, reads {topics}"
            )
        return said


def _options(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _numbers(options: dict[str, str]) -> list[int]:
    return [int(number) for number in options.get("has", "").split(",") if number]


def _assignment(said: str) -> bytes:
    """What a leader gives; `mine` is of an assignor that puts more than topics into it."""
    if said == "mine":
        return write_assignment({TOPIC: [0]})[:-4] + struct.pack(">i", 2) + b"me"
    if said == "bad":
        return b"\xff"
    return write_assignment({TOPIC: [int(number) for number in said.split(",") if number]})


def _subscription(owned: Sequence[int]) -> bytes:
    """The bytes of a consumer of the topic, in version 3."""
    topics = struct.pack(">hi", 3, 1) + struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    has = write_assignment({TOPIC: owned} if owned else {})[2:-4]
    return topics + struct.pack(">i", -1) + has + struct.pack(">ih", -1, -1)
