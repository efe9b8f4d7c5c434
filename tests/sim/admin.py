"""The administrator of the simulated cluster's topics."""

from __future__ import annotations

from penstock.kafka.errors import ErrorCode
from sim.actors import UNKNOWN, Actor
from sim.connections import BrokenError
from sim.history import Place


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
                elif not self.world.places:
                    # The cluster was restored to a moment before the first topic.
                    continue
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

    async def delete(self, name: str) -> None:
        """Delete a topic, however often one has to ask."""
        self.history.deleting(name)
        self.world.drop_places(name)
        code = -1
        while code not in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
            try:
                code = await self.client.delete_topic(self.agent(), name)
            except BrokenError:
                self.move()
            await self.pause()

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
        if code in UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        elif not code:
            if start < offset:
                self.history.violate("log-start", f"{place}: {start} after deleting to {offset}")
            self.history.trimmed(place, start)
