"""Readers of committed records of the simulated cluster, and the last look at all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.records.batch import HEADER_BYTES, stored_header
from penstock.records.decode import decode_batch
from sim.actors import Actor
from sim.committed import PARTITIONS, TOPIC
from sim.connections import BrokenError
from sim.history import Place
from support import raw_wire

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World


class CommittedReader(Actor):
    """Reads committed records of the transactional topic, as consumers do."""

    async def run(self) -> None:
        """Read until the world stops."""
        positions = {(TOPIC, number): 0 for number in range(PARTITIONS)}
        while not self.world.stopping:
            for place, position in positions.items():
                try:
                    _, following, _ = await self.read(self.agent(), place, position)
                except BrokenError:
                    following = -1
                if following < 0:
                    self.move()
                else:
                    positions[place] = following
            if self.chance.happens(0.2):
                self.move()
            if self.chance.happens(0.1):
                positions = dict.fromkeys(positions, 0)
            await self.pause(0, 0.2)

    async def read(
        self, agent: Agent, place: Place, position: int
    ) -> tuple[dict[int, bytes], int, bool]:
        """Committed records from an offset on, where to go on (-1: an error), and whether nothing
        is open. Raises: BrokenError."""
        body = raw_wire.fetch_request(
            *place, position, wait_ms=100, bytes_max=20_000, committed=True
        )
        connection = self.client.connection(agent)
        answer = raw_wire.fetch_answer(
            await connection.exchange("fetch", raw_wire.FETCH_VERSION, body), place[1]
        )
        if answer.code:
            return {}, -1, False
        found: dict[int, bytes] = {}
        inside: set[int] = set()
        aborted = sorted(answer.aborted, key=lambda one: one[1])
        following, at = position, 0
        data = memoryview(answer.batches)
        while len(data) - at >= HEADER_BYTES:
            header = stored_header(data, at)
            batch = data[at : at + header.length]
            if len(batch) < header.length:
                break
            while aborted and aborted[0][1] < header.end_offset:
                inside.add(aborted.pop(0)[0])
            if header.attributes & raw_wire.CONTROL:
                inside.discard(header.producer_id)
            elif header.producer_id not in inside:
                for record in decode_batch(batch):
                    offset = header.base_offset + record.offset_delta
                    if offset >= position:
                        found[offset] = record.value or b""
            following = max(following, header.end_offset)
            at += header.length
        for offset, value in found.items():
            self.world.transactions.read(place, offset, value, f"{self.name} at {agent}")
        return found, following, answer.last_stable == answer.high_watermark == following


async def check_transactions(world: World) -> None:
    """Every transaction is there whole or not at all, from two agents."""
    for agent in world.chance.shuffled(world.agents)[:2]:
        reader = CommittedReader(world, f"final-committed-{agent.number}")
        read: dict[Place, dict[int, bytes]] = {}
        offsets: dict[str, int] = {}
        await world.within(
            world.heal_s,
            world.on_node(reader.name, _read_all(world, reader, agent, read, offsets)),
            f"committed records can't be read from {agent}",
        )
        world.transactions.check(read, offsets)


async def _read_all(
    world: World,
    reader: CommittedReader,
    agent: Agent,
    read: dict[Place, dict[int, bytes]],
    offsets: dict[str, int],
) -> None:
    for number in range(PARTITIONS):
        place = (TOPIC, number)
        records = read.setdefault(place, {})
        position, is_end = 0, False
        while not is_end:
            try:
                found, following, is_end = await reader.read(agent, place, position)
            except BrokenError:
                found, following = {}, -1
            records.update(found)
            if following > position:
                position = following
            elif not is_end:
                # What was left open times out.
                await asyncio.sleep(0.2)
    for name in sorted({producer for producer, _ in world.transactions.facts}):
        while name not in offsets:
            try:
                code, node = await reader.client.find_coordinator(agent, f"group-{name}")
                asked = world.agent_by_id(node) if not code else None
                if asked is not None:
                    code, offset = await reader.client.fetch_offset(
                        asked, f"group-{name}", (TOPIC, 0), stable=True
                    )
                    if not code:
                        offsets[name] = offset
                        break
            except BrokenError:
                pass
            await asyncio.sleep(0.2)
