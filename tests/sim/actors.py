"""Clients of the simulated cluster: producers, consumers, watchers, admins, members of groups.

They do what real client libraries do about errors, and tell the history what they saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.kafka.errors import ErrorCode
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from sim.history import Place
from sim.identity import is_keyed
from sim.wire import BrokenError, Client

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

T = TypeVar("T")

WINDOW = 5
_UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


class Actor:
    """One client process with a script."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.history = world.history
        self.loop = world.loop
        self.chance = world.chance.fork()
        self.name = name
        self.client = Client(world, name, self.chance)
        self._agent: Agent | None = None

    def agent(self) -> Agent:
        """The agent that it uses now; it stays with one until that fails it."""
        if self._agent is None or self._agent.removed:
            self._agent = self.chance.pick(self.world.agents)
        return self._agent

    def move(self) -> None:
        """Try another one."""
        self._agent = None

    async def pause(self, least: float = 0.05, most: float = 0.4) -> None:
        """Think."""
        await asyncio.sleep(self.chance.uniform(least, most))

    async def until_answered(self, call: Callable[[Agent], Awaitable[tuple[int, T]]]) -> T:
        """Ask agent after agent until one answers with no error."""
        while True:
            try:
                code, value = await call(self.agent())
                if not code:
                    return value
            except BrokenError:
                pass
            self.move()
            await self.pause()


@dataclass(slots=True)
class Batch:
    """One batch on its way. `sent`: it may have reached an agent."""

    sequence: int
    values: list[bytes]
    data: bytes
    tries: int = 0


@dataclass(slots=True)
class Session:
    """A producer id, and where its sequence in one partition is."""

    producer_id: int
    epoch: int
    next_sequence: int = 0


class Producer(Actor):
    """An idempotent producer; several batches in flight per partition, as librdkafka and Java do:
    after a failure what was in flight is sent again one by one, the oldest first."""

    def __init__(self, world: World, name: str, count: int) -> None:
        super().__init__(world, name)
        self.left = count
        self.think_s = world.think_s
        self._sessions: dict[Place, Session] = {}
        self._sent = 0
        self._is_eager = self.chance.happens(0.5)
        """Doesn't wait for a partition to know it before several batches are in flight (as
        librdkafka; Java sends the first one alone)."""

    async def run(self) -> None:
        """Send everything, until all is acknowledged."""
        lanes: list[asyncio.Task[None]] = []
        places = self.chance.shuffled(self._places())[: 1 + self.chance.below(3)]
        share = -(-self.left // len(places))
        lanes = [asyncio.create_task(self._lane(place, share)) for place in places]
        await asyncio.gather(*lanes)

    def _places(self) -> list[Place]:
        """Where it may write."""
        return [place for place in self.world.places if not is_keyed(place)]

    async def _initialize(self, agent: Agent) -> tuple[int, Session]:
        code, producer_id, epoch = await self.client.producer_id(agent)
        return code, Session(producer_id, epoch)

    async def _lane(self, place: Place, count: int) -> None:
        window: list[Batch] = []
        in_doubt = False
        first = True
        self._sessions[place] = await self.until_answered(self._initialize)
        while count > 0 or window:
            if self.history.is_deleted(place[0]):
                return
            if not in_doubt:
                if self.chance.happens(0.1):
                    # As if it had been restarted: what it sent is acknowledged.
                    self._sessions[place] = await self.until_answered(self._initialize)
                    first = True
                if not self.world.stopping:
                    await self.pause(0, self.think_s)
                room = 1 if first and not self._is_eager else 1 + self.chance.below(WINDOW)
                while count > 0 and len(window) < room:
                    window.append(self._batch(place))
                    count -= len(window[-1].values)
                codes = await asyncio.gather(*(self._attempt(place, one) for one in window))
                window = [one for one, code in zip(window, codes, strict=True) if code]
                in_doubt = bool(window)
                first = first and in_doubt
                continue
            oldest = window[0]
            code = await self._attempt(place, oldest)
            if not code:
                window.pop(0)
                in_doubt = bool(window)
                first = False
                continue
            if code in {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}:
                # All before it are acknowledged, and nothing else is in flight.
                self.history.violate(
                    "sequence-broken",
                    f"{self.name} {place} sequence {oldest.sequence} {oldest.values}",
                )
            self.move()
            await self.pause()

    def _batch(self, place: Place) -> Batch:
        values, records = self._records(place, 1 + self.chance.below(3))
        session = self._sessions[place]
        sequence = session.next_sequence
        session.next_sequence += len(values)
        data = encode_batch(
            records,
            codec=self._codec(),
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            base_sequence=sequence,
        )
        return Batch(sequence, values, bytes(data))

    def _codec(self) -> str:
        return "none"

    def _records(self, place: Place, count: int) -> tuple[list[bytes], list[Record]]:
        """New records, and what tells each from all others."""
        values = []
        for _ in range(count):
            size = self.chance.below(self.world.value_bytes_max)
            value = f"{self.name}/{self._sent}/".encode() + b"x" * size
            self._sent += 1
            self.history.sending(place, value)
            values.append(value)
        now_ms = self.world.clock.now_ms()
        return values, [
            Record(offset_delta=at, timestamp=now_ms, key=None, value=value, headers=())
            for at, value in enumerate(values)
        ]

    async def _attempt(self, place: Place, batch: Batch) -> int:
        """Send once; the error code, 0 when acknowledged."""
        batch.tries += 1
        began_s = self.loop.time()
        try:
            code, base = await self.client.produce(self.agent(), *place, batch.data)
        except BrokenError:
            self.move()
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code in _UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        if code == ErrorCode.NONE:
            for at, value in enumerate(batch.values):
                self.history.acked(place, base + at, value)
            self.world.acked(place, base, batch.values)
            if self.chance.happens(0.15):
                await self._ask_another(place)
        else:
            self.history.count(f"produce {ErrorCode(code).name}")
        return code

    async def _ask_another(self, place: Place) -> None:
        """Where the end is, of an agent that may not have heard of what was just acknowledged."""
        began_s = self.loop.time()
        agent = self.chance.pick(self.world.agents)
        try:
            code, offset = await self.client.list_offset(agent, *place, latest=True)
        except BrokenError:
            return
        if not code and not self.history.is_deleted(place[0]):
            self.history.listed(place, offset, began_s, latest=True, who=self.name)


class Consumer(Actor):
    """Reads partitions by assignment and commits how far it came under a group of its own."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.group = f"simple-{name}"
        self._coordinator: Agent | None = None

    async def run(self) -> None:
        """Read until the world stops."""
        places = self.chance.shuffled(self.world.places)[:2]
        await asyncio.gather(*(self._follow(place) for place in places))

    async def _follow(self, place: Place) -> None:
        position = 0
        while not self.world.stopping and not self.history.is_deleted(place[0]):
            began_s = self.loop.time()
            try:
                code, records, following, _, _ = await self.client.fetch(
                    self.agent(), *place, position
                )
            except BrokenError:
                self.move()
                await self.pause()
                continue
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.history.out_of_range(place, position, began_s, self.name)
                position = await self._earliest(place, position)
                continue
            if code:
                if code in _UNKNOWN:
                    self.history.unknown(place, began_s, self.name)
                self.history.count(f"fetch {ErrorCode(code).name}")
                self.move()
                await self.pause()
                continue
            self.history.read(place, position, records, self.name, following=following)
            position = max(position, following)
            if self.chance.happens(self.world.profile.commit_share):
                await self._commit(place, position)
            if self.chance.happens(0.1):
                self.move()
            if self.chance.happens(0.05):
                position = await self._committed(place, position)
            await self.pause(0, 0.1)

    async def _earliest(self, place: Place, position: int) -> int:
        began_s = self.loop.time()
        try:
            code, offset = await self.client.list_offset(self.agent(), *place, latest=False)
        except BrokenError:
            self.move()
            return position
        if code:
            await self.pause()
            return position
        self.history.listed(place, offset, began_s, latest=False, who=self.name)
        return max(position, offset)

    async def find_coordinator(self) -> Agent | None:
        """Who coordinates its group, as far as the agent knows that is asked."""
        if self._coordinator is None:
            code, node_id = await self.client.find_coordinator(self.agent(), self.group)
            if code:
                return None
            self._coordinator = self.world.agent_by_id(node_id)
        return self._coordinator

    async def _commit(self, place: Place, offset: int) -> None:
        try:
            agent = await self.find_coordinator()
            if agent is None:
                return
            commit = self.history.committing(self.group, place, offset)
            code = await self.client.commit_offset(agent, self.group, place, offset)
        except BrokenError:
            self._coordinator = None
            self.move()
            return
        if code == ErrorCode.NONE:
            self.history.committed_offset(commit)
        else:
            self._coordinator = None
            self.history.commit_refused(commit)
            self.history.count(f"commit {ErrorCode(code).name}")

    async def _committed(self, place: Place, position: int) -> int:
        began_s = self.loop.time()
        try:
            agent = await self.find_coordinator()
            if agent is None:
                return position
            code, offset = await self.client.fetch_offset(agent, self.group, place)
        except BrokenError:
            self._coordinator = None
            self.move()
            return position
        if code:
            self._coordinator = None
            return position
        self.history.fetched_offset(self.group, place, offset, began_s, self.name)
        # Going on from there must not skip what was trimmed meanwhile unnoticed.
        return position


class Watcher(Actor):
    """Asks random agents for the ends of partitions, and reads acknowledged records again."""

    async def run(self) -> None:
        """Ask until the world stops."""
        while not self.world.stopping:
            await self.pause(0.02, 0.3)
            agent = self.chance.pick(self.world.agents)
            cleaned = [place for place in self.world.places if is_keyed(place)]
            try:
                if cleaned and self.chance.happens(0.4):
                    await self._read_anywhere(agent, self.chance.pick(cleaned))
                elif self.chance.happens(0.5):
                    await self._list(agent, self.chance.pick(self.world.places))
                elif self.history.committed and self.chance.happens(0.4):
                    await self._ask_offset(agent)
                else:
                    await self._read_again(agent)
            except BrokenError:
                continue

    async def _list(self, agent: Agent, place: Place) -> None:
        latest = self.chance.happens(0.7)
        began_s = self.loop.time()
        code, offset = await self.client.list_offset(agent, *place, latest=latest)
        if code in _UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        elif code:
            self.history.count(f"list {ErrorCode(code).name}")
        elif not self.history.is_deleted(place[0]):
            self.history.listed(place, offset, began_s, latest=latest, who=self.name)

    async def _ask_offset(self, agent: Agent) -> None:
        """Whoever takes itself for a group's coordinator has to know what was committed."""
        group, place = self.chance.pick(list(self.history.committed))
        began_s = self.loop.time()
        code, offset = await self.client.fetch_offset(agent, group, place)
        if not code:
            self.history.fetched_offset(group, place, offset, began_s, self.name)

    async def _read_again(self, agent: Agent) -> None:
        """At once, at another agent than the one that gave the acknowledgement."""
        if not self.world.recent_acks:
            return
        await self._read(agent, *self.chance.pick(self.world.recent_acks))

    async def _read_anywhere(self, agent: Agent, place: Place) -> None:
        """In a gap, perhaps, or in the middle of a batch."""
        end, _ = self.history.partitions[place].end.at(self.loop.time())
        await self._read(agent, place, self.chance.below(max(1, end)))

    async def _read(self, agent: Agent, place: Place, offset: int) -> None:
        began_s = self.loop.time()
        code, records, following, _, _ = await self.client.fetch(agent, *place, offset)
        if code in _UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.history.out_of_range(place, offset, began_s, self.name)
        elif not code:
            self.history.read(place, offset, records, self.name, following=following)
            self.history.count("read again" if records else "read again, nothing yet")


class Admin(Actor):
    """Makes topics and partitions, deletes some topics, and deletes records."""

    async def run(self) -> None:
        """Until the world stops."""
        number = 0
        while not self.world.stopping:
            await self.pause(0.2, 1.5)
            what = self.chance.below(6)
            try:
                if what == 0 and number < 4:
                    number += 1
                    await self.create(f"{self.name}-{number}", 1 + self.chance.below(2))
                elif what == 1:
                    await self._delete_topic()
                elif what == 2:
                    await self._add_partitions()
                else:
                    await self._delete_records(self.chance.pick(self.world.places))
            except BrokenError:
                self.move()

    async def create(self, name: str, partitions: int, **configs: str) -> None:
        """Make a topic, however often one has to ask."""
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        while True:
            try:
                code = await self.client.create_topic(self.agent(), name, partitions, settings)
            except BrokenError:
                code = int(ErrorCode.REQUEST_TIMED_OUT)
            if code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                break
            self.history.count(f"create {ErrorCode(code).name}")
            self.move()
            await self.pause()
        self.history.created(name, partitions)
        self.world.add_places(name, range(partitions))

    async def _delete_topic(self) -> None:
        names = [
            name
            for name in sorted(self.history.topics)
            if name.startswith(self.name) and not self.history.is_deleted(name)
        ]
        if not names:
            return
        name = self.chance.pick(names)
        self.history.deleting(name)
        self.world.drop_places(name)
        code = await self.client.delete_topic(self.agent(), name)
        self.history.count(f"delete topic {ErrorCode(code).name}")

    async def _add_partitions(self) -> None:
        name = self.chance.pick(self.world.places)[0]
        count = sum(place[0] == name for place in self.world.places)
        if count > 4:
            return
        code = await self.client.create_partitions(self.agent(), name, count + 1)
        if not code:
            self.history.created(name, count + 1)
            self.world.add_places(name, range(count + 1))

    async def _delete_records(self, place: Place) -> None:
        began_s = self.loop.time()
        end, _ = self.history.partitions[place].end.at(began_s)
        if end <= 0 or not self.chance.happens(self.world.trim_share):
            return
        offset = self.chance.below(end + 1)
        self.history.trimming(place, offset)
        code, start = await self.client.delete_records(self.agent(), *place, offset)
        if code in _UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        elif not code:
            if start < offset:
                self.history.violate("log-start", f"{place}: {start} after deleting to {offset}")
            self.history.trimmed(place, start)


class Member(Actor):
    """A member of a consumer group by the classic protocol; its leader deals partitions out."""

    def __init__(self, world: World, name: str, group: str, topic: str, partitions: int) -> None:
        super().__init__(world, name)
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.member = ""
        self.generation = -1
        self._coordinator: Agent | None = None

    async def run(self) -> None:
        """Join, read, commit, join again, until the world stops."""
        while not self.world.stopping:
            try:
                share = await self._join()
                if share is None:
                    await self.pause(0.05, 0.3)
                else:
                    await self._work(share)
            except BrokenError:
                self._coordinator = None
                self.move()
                await self.pause()

    async def _find(self) -> Agent | None:
        if self._coordinator is None:
            code, node_id = await self.client.find_coordinator(self.agent(), self.group)
            if code:
                self.move()
                return None
            self._coordinator = self.world.agent_by_id(node_id)
        return self._coordinator

    def _failed(self, code: int) -> None:
        self.history.count(f"group {ErrorCode(code).name}")
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member = ""
        if code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._coordinator = None
            self.move()

    async def _join(self) -> list[int] | None:
        agent = await self._find()
        if agent is None:
            return None
        answer = await self.client.join(agent, self.group, self.member)
        code = int(answer.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member = answer.member_id
            answer = await self.client.join(agent, self.group, self.member)
            code = int(answer.error_code)
        if code:
            self._failed(code)
            return None
        self.member, self.generation = answer.member_id, answer.generation_id
        self.history.count("joined")
        leader = answer.leader
        shares: dict[str, bytes] = {}
        if leader == self.member:
            names = [member.member_id for member in answer.members]
            for number in range(self.partitions):
                name = names[number % len(names)]
                shares[name] = shares.get(name, b"") + bytes([number])
        answer = await self.client.sync(agent, self.group, self.member, self.generation, shares)
        if int(answer.error_code):
            self._failed(int(answer.error_code))
            return None
        share = list(bytes(answer.assignment))
        self.history.assigned_to(self.group, self.generation, leader, share, self.member)
        return share

    async def _work(self, share: list[int]) -> None:
        """Read and commit until the group rebalances."""
        positions: dict[int, int] = {}
        while not self.world.stopping:
            agent = self._coordinator
            if agent is None:
                return
            for number in share:
                place = (self.topic, number)
                if number not in positions:
                    began_s = self.loop.time()
                    code, offset = await self.client.fetch_offset(agent, self.group, place)
                    if code:
                        self._failed(code)
                        return
                    self.history.fetched_offset(self.group, place, offset, began_s, self.name)
                    positions[number] = max(0, offset)
                await self._step(agent, place, positions)
            code = await self.client.heartbeat(agent, self.group, self.member, self.generation)
            if code:
                self._failed(code)
                return
            if self.chance.happens(0.03):
                # A client that is gone without a word, and comes back as a new one.
                self.member = ""
                await self.pause(0.5, 3)
                return
            await self.pause(0.1, 0.4)

    async def _step(self, agent: Agent, place: Place, positions: dict[int, int]) -> None:
        began_s = self.loop.time()
        at = positions[place[1]]
        code, records, following, _, _ = await self.client.fetch(agent, *place, at, 50)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.history.out_of_range(place, at, began_s, self.name)
            code, start = await self.client.list_offset(agent, *place, latest=False)
            if not code:
                positions[place[1]] = max(at, start)
            return
        if code:
            return
        self.history.read(place, at, records, self.name)
        if following == at:
            return
        positions[place[1]] = following
        commit = self.history.committing(self.group, place, following, generation=self.generation)
        code = await self.client.commit_offset(
            agent,
            self.group,
            place,
            following,
            generation=self.generation,
            member=self.member,
        )
        if code:
            self.history.commit_refused(commit)
            self._failed(code)
        else:
            self.history.committed_offset(commit)


def describe(actors: list[Any]) -> str:
    """For reports."""
    return ", ".join(actor.name for actor in actors)
