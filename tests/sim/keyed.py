"""Topics that are compacted by key, and who writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.records.decode import Record
from sim.admin import Admin
from sim.chance import Chance
from sim.history import Place
from sim.identity import HEADER, KEYED, Identity, is_keyed
from sim.producer import Batch, Producer

if TYPE_CHECKING:
    from sim.world import World

KEYS = tuple(b"%c" % letter for letter in b"abcdefghijkl")
TOMBSTONES = 0.3
CODECS = ("none", "lz4")


class KeyedProducer(Producer):
    """An idempotent producer of records with few keys, and of tombstones among them."""

    def __init__(self, world: World, name: str, count: int) -> None:
        super().__init__(world, name, count)
        # So slow that cleanings come between.
        self.think_s = max(world.think_s, 0.3)

    def _places(self) -> list[Place]:
        return [place for place in self.world.places if is_keyed(place)]

    def _numbered(self, place: Place, values: list[bytes], records: list[Record]) -> Batch:
        batch = super()._numbered(place, values, records)
        session = self._sessions[place]
        # What the journal says of a stored batch is all by which its records are known there.
        self.world.keyed_sent[place, session.producer_id, session.epoch, batch.sequence] = (
            batch.values
        )
        return batch

    def _codec(self) -> str:
        return self.chance.pick(CODECS)

    def _records(self, place: Place, count: int) -> tuple[list[bytes], list[Record]]:
        names: list[bytes] = []
        records: list[Record] = []
        now_ms = self.world.clock.now_ms()
        for at in range(count):
            is_tombstone = self.chance.happens(TOMBSTONES)
            key = self.chance.pick(KEYS)
            identity = Identity.make(self.name, self._sent, key, is_tombstone=is_tombstone)
            self._sent += 1
            self.history.sending(place, identity.name)
            pad = b"x" * self.chance.below(self.world.value_bytes_max)
            names.append(identity.name)
            records.append(
                Record(
                    offset_delta=at,
                    timestamp=now_ms,
                    key=key,
                    value=None if is_tombstone else identity.name + pad,
                    headers=((HEADER, identity.name),),
                )
            )
        return names, records


async def create_topic(world: World, admin: Admin, chance: Chance) -> None:
    """Make one, with configs that let cleanings come within a run's seconds."""
    world.keyed_retention_ms = chance.pick((0, 500, 3_000))
    configs = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": chance.pick(("0", "0.3")),
        "delete_retention_ms": str(world.keyed_retention_ms),
        "min_compaction_lag_ms": chance.pick(("0", "0", "700")),
        "max_compaction_lag_ms": chance.pick((str(2**63 - 1), "1500")),
    }
    partitions = 1 + chance.below(2)
    if chance.happens(0.25):
        configs |= {"cleanup_policy": "compact,delete", "retention_bytes": "4000"}
        world.history.expires(KEYED)
    if chance.happens(0.5):
        # Of a WAL nothing is cleaned before it was moved.
        configs["penstock_durability"] = "object"
    await admin.create(KEYED, partitions, **(world.durability() | configs))
