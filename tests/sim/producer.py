"""Producers of the simulated cluster: they do what real client libraries do about errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kafka.errors import ErrorCode
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from sim.actors import UNKNOWN, Actor
from sim.connections import BrokenError
from sim.history import Place
from sim.identity import is_keyed

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

WINDOW = 5


@dataclass(slots=True)
class Batch:
    """One batch on its way. `sent`: it may have reached an agent."""

    sequence: int
    values: list[bytes]
    records: list[Record]
    data: bytes
    tries: int = 0


@dataclass(slots=True)
class Session:
    """A producer id, and where its sequence in one partition is."""

    producer_id: int
    epoch: int
    next_sequence: int = 0
    acked: list[bytes] = field(default_factory=list)
    """Values of the records that were acknowledged to it there."""


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
        if not code:
            self.history.named(producer_id, self.name)
        return code, Session(producer_id, epoch)

    async def _lane(self, place: Place, count: int) -> None:
        window: list[Batch] = []
        in_doubt = False
        first = True
        self._sessions[place] = await self.until_answered(self._initialize)
        while count > 0 or window:
            if self.history.is_deleted(place[0]) or place in self.world.lost_places:
                return
            if not in_doubt:
                if self.chance.happens(self.world.profile.session_share):
                    # As if it had been restarted: what it sent is acknowledged.
                    self._sessions[place] = await self.until_answered(self._initialize)
                    first = True
                if not self.world.stopping:
                    await self.pause(0, self.think_s)
                    await self._until_beat()
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
                if not self.history.has_lost(self._sessions[place].acked):
                    self.history.violate(
                        "sequence-broken",
                        f"{self.name} {place} sequence {oldest.sequence} {oldest.values}",
                    )
                await self._begin_sequences_again(place, window)
            self.move()
            await self.pause()

    async def _until_beat(self) -> None:
        """Send when the other producers do, as those that linger under load."""
        beat_s = self.world.profile.beat_s
        if beat_s:
            await asyncio.sleep(beat_s - self.loop.time() % beat_s)

    async def _begin_sequences_again(self, place: Place, window: list[Batch]) -> None:
        """A restored log has lost records before these, and so has none of these. Clients number
        them again from 0: with the next epoch, as Java does, or with another producer id.
        Source: KIP-360."""
        session = self._sessions[place]
        if self.chance.happens(0.5):
            self._sessions[place] = Session(session.producer_id, session.epoch + 1)
        else:
            self._sessions[place] = await self.until_answered(self._initialize)
        window[:] = [self._numbered(place, one.values, one.records) for one in window]
        self.history.count("sequences begun again")

    def _batch(self, place: Place) -> Batch:
        values, records = self._records(place, 1 + self.chance.below(3))
        return self._numbered(place, values, records)

    def _numbered(self, place: Place, values: list[bytes], records: list[Record]) -> Batch:
        """A batch with the session's next sequences."""
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
        return Batch(sequence, values, records, bytes(data))

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
        if code in UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        if code == ErrorCode.NONE:
            for at, value in enumerate(batch.values):
                self.history.acked(place, base + at, value)
            self.world.acked(place, base, batch.values)
            self._sessions[place].acked += batch.values
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
