"""Drivers of compaction beside the simulated cluster: the real planning and item code, with deaths,
hangs and twins between any two steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline import api_messages as messages
from penstock.pipeline.api_messages import (
    OutputObject,
    Producers,
    ProducersRequest,
    Replaced,
    ReplaceRequest,
    RunPage,
    RunsRequest,
    Topics,
    TopicsRequest,
)
from penstock.pipeline.compaction.items import (
    CompactionSettings,
    InputObject,
    Item,
    ItemDone,
    ItemPartition,
    JoinItem,
    KeyedItem,
)
from penstock.pipeline.compaction.join import join_runs
from penstock.pipeline.compaction.keyed import clean_partition
from penstock.pipeline.compaction.merge import PartitionMerger
from penstock.pipeline.compaction.plan import plan
from penstock.records.batch import patch_base_offset
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.merging import Merging
from penstock.state.schema import MERGING_LEVEL
from sim.api import ProblemError
from sim.chance import Chance
from sim.connections import BrokenError
from sim.pipeline import GONE, Outside

ITEMS_PER_ROUND = 4
SETTINGS = CompactionSettings(
    run_bytes_target=2_000,
    object_bytes_target=4_000,
    growth=2,
    old_growth=2,
    small_bytes=1,
)


@dataclass(slots=True)
class Attempt:
    """`ItemStore` of one attempt: what was read before, and what is to be put."""

    chance: Chance
    bodies: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """By key: (position, bytes) of each input run."""
    puts: list[list[Buffer]] = field(default_factory=list)

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        """See `ItemStore`."""
        for position, body in self.bodies[key]:
            if position <= start and end <= position + len(body):
                return body[start - position : end - position]
        raise AssertionError(f"{key} {start} to {end} is in no input")

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        """See `ItemStore`."""
        space[:] = b"".join(self.get_range(key, start, end) for key, start, end, _ in ranges)

    def put(self, parts: Sequence[Buffer]) -> str:
        """See `ItemStore`; the key is known once it is put."""
        # They may lie in memory that the item's code uses again.
        self.puts.append([b"".join(parts)])
        return ""

    def token_bytes(self, count: int) -> bytes:
        """See `ItemStore`."""
        return self.chance.token_bytes(count)


@functools.cache
def load_kernels() -> None:
    """Clean a partition of two batches, so that what is compiled for it is there."""
    chance = Chance(0)
    attempt = Attempt(chance)
    inputs: list[int] = []
    body = b""
    for number, codec in enumerate(("none", "lz4")):
        records = [
            Record(offset_delta=at, timestamp=0, key=b"%d" % at, value=b"x", headers=())
            for at in range(2 - number)
        ]
        batch = encode_batch(records, codec=codec)
        patch_base_offset(memoryview(batch), 2 * number, 0)
        inputs += [2 * number, 2 * number + len(records), 0, len(body), len(batch)]
        body += bytes(batch)
    attempt.bodies["key"] = [(0, body)]
    item = KeyedItem(
        objects=[InputObject(key="key", raw=0)],
        partition=ItemPartition(topic_id="00" * 16, partition=0, inputs=inputs),
        clean_end=0,
        cleanable_end=3,
        young_ms=0,
        now_ms=0,
        delete_retention_ms=0,
        reason="",
    )
    assert clean_partition(item, attempt, map_bytes=1).dropped_records == 1
    partition = msgspec.structs.replace(item.partition, merging=Merging())
    joined = JoinItem(objects=item.objects, partitions=[partition], reason="")
    assert join_runs(joined, attempt, merge=PartitionMerger()).merged_batches == 2


class Compactor(Outside):
    """Drivers of compaction, one after the other."""

    async def run(self) -> None:
        """Until the world stops."""
        while not self.world.stopping:
            await self._rest()
            try:
                await self._drive()
            except BrokenError:
                self.history.count("compaction given up")
            except CorruptDataError:
                if not self.world.rot.is_stored:
                    raise
                self.history.count("compaction met damage")

    async def _drive(self) -> None:
        job = (await self.open_job("compaction")).job
        n = 0
        for _ in range(1 + self.chance.below(3)):
            items = await self._plan()
            for item in self._choose(items):
                if self.world.stopping:
                    return
                done = await self._work(job, item)
                if done is None:
                    continue
                if self.chance.happens(0.1):
                    self.history.count("compaction killed before its commit")
                    return
                if self.chance.happens(0.1):
                    # Until its lease is over, perhaps; it doesn't know.
                    await self.pause(0.5, 7)
                elif self.chance.happens(0.3) and not await self.renew_job(job):
                    self.history.count("compaction lost its lease")
                    if self.chance.happens(0.5):
                        return
                n += 1
                if not await self._commit(job, n, done):
                    return
        if self.chance.happens(0.7):
            await self.close_job(job)

    async def _plan(self) -> list[Item]:
        topics = await self.ask("POST", messages.TOPICS_PATH, TopicsRequest(), Topics)
        pages: list[RunPage] = []
        after = ""
        while True:
            request = RunsRequest(after=after, limit=1 + self.chance.below(40))
            pages.append(await self.ask("POST", messages.RUNS_PATH, request, RunPage))
            after = pages[-1].after
            if not after:
                break
        planned = plan(
            pages,
            {topic.topic_id: topic for topic in topics.topics},
            SETTINGS,
            now_ms=topics.time_ms,
            whole=True,
            merges=topics.level >= MERGING_LEVEL,
        )
        return planned.items

    async def _work(self, job: int, item: Item) -> ItemDone | None:
        """Read, run and put; None: an input is gone, which it may be once the job is closed."""
        if isinstance(item, KeyedItem):
            # After the listing: a batch that is in a listed run is known to whoever answers.
            asked = ProducersRequest(
                partitions=[(item.partition.topic_id, item.partition.partition)]
            )
            answer = await self.ask("POST", messages.PRODUCERS_PATH, asked, Producers)
            item = msgspec.structs.replace(item, producers=answer.producers[0])
        attempt = await self._read_inputs(job, item)
        if attempt is None:
            return None
        try:
            done = self._run(item, attempt)
        except CorruptDataError as error:
            if self.world.rot.is_stored:
                self.history.count("compaction met damage")
                return None
            self.history.violate("compaction-corrupt", f"{self.name} job {job}: {error}")
        keys: list[str] = []
        for _ in range(1 + self.chance.happens(0.1)):
            # The second time a twin, of which the driver takes the one that it hears of.
            keys = [await self.put(job, parts) for parts in attempt.puts]
        if isinstance(item, KeyedItem):
            self.world.cleaning_ms.update((key, item.now_ms) for key in keys)
        return msgspec.structs.replace(
            done,
            objects=[
                OutputObject(key=key, size_bytes=each.size_bytes)
                for key, each in zip(keys, done.objects, strict=True)
            ],
        )

    async def _read_inputs(self, job: int, item: Item) -> Attempt | None:
        attempt = Attempt(self.chance)
        partitions = [item.partition] if isinstance(item, KeyedItem) else item.partitions
        for partition in partitions:
            rows = zip(*[iter(partition.inputs)] * 5, strict=True)
            for _, _, index, position, length in rows:
                key = item.objects[index].key
                try:
                    body = await self.read(key, position, position + length)
                except NotFoundError:
                    self.history.count("compaction input gone")
                    self.world.oracle.input_gone(job, key)
                    return None
                attempt.bodies.setdefault(key, []).append((position, body))
        return attempt

    def _run(self, item: Item, attempt: Attempt) -> ItemDone:
        if isinstance(item, JoinItem):
            done = join_runs(item, attempt, merge=PartitionMerger())
            if done.merged_batches:
                self.history.count("compaction merged batches")
            return done
        # So little memory that keys are taken by parts of their hashes, and runs in pieces.
        return clean_partition(
            item,
            attempt,
            map_bytes=self.chance.pick((1, 1 << 20)),
            lot_bytes=self.chance.pick((100, 1_000, 1 << 20)),
            chunk_bytes=self.chance.pick((1, 500, 1 << 20)),
        )

    async def _commit(self, job: int, n: int, done: ItemDone) -> bool:
        """Whether the job goes on."""
        request = ReplaceRequest(
            job=job,
            n=n,
            input_keys=done.input_keys,
            objects=done.objects,
            partitions=done.partitions,
        )
        try:
            answer = await self.ask("POST", messages.REPLACE_PATH, request, Replaced)
        except ProblemError as error:
            if error.problem.reason not in GONE:
                self.history.violate("commit-refused", f"{self.name} job {job} n {n}: {error}")
            self.history.count(f"compaction refused: {error.problem.reason}")
            return False
        for code in answer.codes:
            self.history.count(f"replaced {code}".strip())
        return True

    async def _rest(self) -> None:
        await self.pause(0.1, 1.5)

    def _choose(self, items: list[Item]) -> list[Item]:
        return self.chance.shuffled(items)[:ITEMS_PER_ROUND]


class Cleaner(Compactor):
    """One that is in a hurry, and cleans by key before it joins."""

    async def _rest(self) -> None:
        await self.pause(0.05, 0.4)

    def _choose(self, items: list[Item]) -> list[Item]:
        chosen = super()._choose(items)
        keyed = [item for item in items if isinstance(item, KeyedItem)]
        return [*keyed, *(item for item in chosen if item not in keyed)][:ITEMS_PER_ROUND]
