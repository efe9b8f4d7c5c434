"""Jobs beside the simulated cluster: drivers that compact, and writers of streams.

They plan and join with the real code, and do by themselves what a driver's process, its executors
and Spark do around it: die between any two steps, hang past their lease and come back, run tasks
twice, send what they have committed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Buffer

from penstock.lake import door
from penstock.lake.compaction.items import CompactionSettings, ItemDone, JoinItem
from penstock.lake.compaction.join import join_runs
from penstock.lake.compaction.plan import plan
from penstock.lake.door import (
    JobOpen,
    JobRequest,
    OutputObject,
    Replaced,
    ReplaceRequest,
    RunPage,
    RunsRequest,
    Topics,
    TopicsRequest,
    WriteRequest,
    WriteRun,
    Written,
)
from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.segment import RunDescriber, build_segment, job_object_key
from penstock.testing.simulated_link import SimulatedLink
from penstock.testing.simulated_store import SimulatedStore
from sim.actors import Actor
from sim.door import Door, ProblemError
from sim.history import Place
from sim.wire import BrokenError

if TYPE_CHECKING:
    from sim.world import World

T = TypeVar("T")

STORE_PATIENCE_S = 3.0
ITEMS_PER_ROUND = 4
TRIES_MAX = 12
SETTINGS = CompactionSettings(
    run_bytes_target=2_000,
    object_bytes_target=4_000,
    growth=2,
    old_growth=2,
    small_bytes=1,
)
GONE = {"unknown_job", "out_of_order_commit", "object_condemned", "bad_object"}
"""Refusals of a job that was closed while its driver was away."""


class Outside(Actor):
    """A process that reads and writes the bucket itself, and talks to agents by their door."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._door = Door(world, self.chance.fork())
        link = SimulatedLink(
            world.loop, self.chance.fork(), server=world.loop.world, timeout_s=STORE_PATIENCE_S
        )
        permille = world.store_permille
        link.fail_permille = link.lost_permille = link.twice_permille = permille
        self._store_link = link
        self._store = SimulatedStore(world.bucket, link)

    async def ask(self, method: str, path: str, message: object, answer: type[T]) -> T:
        """Ask agent after agent, some times.

        Raises:
            BrokenError: none answered.
            ProblemError: it is refused.
        """
        for _ in range(TRIES_MAX):
            try:
                return await self._door.call(self.agent(), method, path, message, answer)
            except BrokenError:
                self.move()
                await self.pause(0.05, 0.5)
        raise BrokenError(f"{method} {path}: nobody answers")

    async def open_job(self, kind: str) -> JobOpen:
        """A new job, with a lease that may end before it does."""
        request = JobRequest(
            kind=kind,
            name=self.name,
            lease_ms=1_000 + self.chance.below(4_000),
            age_max_ms=5_000 + self.chance.below(20_000),
        )
        return await self.ask("POST", door.JOBS_PATH, request, JobOpen)

    async def close_job(self, job: int) -> None:
        """As its owner."""
        await self.ask("DELETE", f"{door.JOBS_PATH}/{job}", None, dict)

    async def renew_job(self, job: int) -> bool:
        """Whether it goes on."""
        try:
            await self.ask("POST", f"{door.JOBS_PATH}/{job}/renew", None, dict)
        except ProblemError:
            return False
        return True

    async def put(self, job: int, parts: Sequence[Buffer]) -> str:
        """Put an object under a name of this attempt's own."""
        self._calm()
        while True:
            key = job_object_key(job=job, name=self.chance.token_bytes(16).hex())
            try:
                await self._store.put(key, parts, if_absent=True)
            except RetryableError:
                # An executor's task is tried again, and is another attempt.
                await self.pause(0.05, 0.5)
            else:
                return key

    async def read(self, key: str, start: int, end: int) -> bytes:
        """Bytes of an object. Raises: NotFoundError."""
        self._calm()
        while True:
            try:
                return bytes(await self._store.get_range(key, start, end))
            except RetryableError:
                await self.pause(0.05, 0.5)

    def _calm(self) -> None:
        if self.world.stopping:
            link = self._store_link
            link.fail_permille = link.lost_permille = link.twice_permille = 0


# -- compaction ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Fetched:
    """`ItemStore` of one attempt: what was read before, and what is to be put."""

    bodies: dict[tuple[str, int, int, str], bytes]
    job: int
    parts: list[Buffer] = field(default_factory=list)

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        """See `ItemStore`."""
        return self.bodies[key, start, end, origin]

    def get_ranges(self, ranges: Sequence[tuple[str, int, int, str]]) -> Sequence[Buffer]:
        """See `ItemStore`."""
        return [self.bodies[wanted] for wanted in ranges]

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        """See `ItemStore`."""
        space[:] = b"".join(self.bodies[wanted] for wanted in ranges)

    def put(self, parts: Sequence[Buffer]) -> str:
        """See `ItemStore`; the key is known once it is put."""
        self.parts = list(parts)
        return ""

    def token_bytes(self, count: int) -> bytes:
        """See `ItemStore`."""
        raise AssertionError(count)


class Compactor(Outside):
    """Drivers of compaction, one after the other."""

    async def run(self) -> None:
        """Until the world stops."""
        while not self.world.stopping:
            await self.pause(0.1, 1.5)
            try:
                await self._drive()
            except BrokenError:
                self.history.count("compaction given up")

    async def _drive(self) -> None:
        job = (await self.open_job("compaction")).job
        n = 0
        for _ in range(1 + self.chance.below(3)):
            items = await self._plan()
            for item in self.chance.shuffled(items)[:ITEMS_PER_ROUND]:
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

    async def _plan(self) -> list[JoinItem]:
        topics = await self.ask("POST", door.TOPICS_PATH, TopicsRequest(), Topics)
        pages: list[RunPage] = []
        after = ""
        while True:
            request = RunsRequest(after=after, limit=1 + self.chance.below(40))
            pages.append(await self.ask("POST", door.RUNS_PATH, request, RunPage))
            after = pages[-1].after
            if not after:
                break
        planned = plan(
            pages,
            {topic.topic_id: topic for topic in topics.topics},
            SETTINGS,
            now_ms=topics.time_ms,
            whole=True,
        )
        return [item for item in planned.items if isinstance(item, JoinItem)]

    async def _work(self, job: int, item: JoinItem) -> ItemDone | None:
        """Read, join and put; None: an input is gone, which it may be once the job is closed."""
        bodies: dict[tuple[str, int, int, str], bytes] = {}
        for partition in item.partitions:
            rows = zip(*[iter(partition.inputs)] * 5, strict=True)
            for _, _, index, position, length in rows:
                source = item.objects[index]
                wanted = (source.key, position, position + length, source.origin)
                try:
                    bodies[wanted] = await self.read(*wanted[:3])
                except NotFoundError:
                    self.history.count("compaction input gone")
                    self.world.oracle.input_gone(job, source.key)
                    return None
        fetched = Fetched(bodies, job)
        try:
            done = join_runs(item, fetched)
        except CorruptDataError as error:
            self.history.violate("compaction-corrupt", f"{self.name} job {job}: {error}")
        for _ in range(1 + self.chance.happens(0.1)):
            # The second time a twin, of which the driver takes the one that it hears of.
            key = await self.put(job, fetched.parts)
        (output,) = done.objects
        return ItemDone(
            input_keys=done.input_keys,
            objects=[OutputObject(key=key, size_bytes=output.size_bytes)],
            partitions=done.partitions,
            read_bytes=done.read_bytes,
            written_bytes=done.written_bytes,
            batches=done.batches,
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
            answer = await self.ask("POST", door.REPLACE_PATH, request, Replaced)
        except ProblemError as error:
            if error.problem.reason not in GONE:
                self.history.violate("commit-refused", f"{self.name} job {job} n {n}: {error}")
            self.history.count(f"compaction refused: {error.problem.reason}")
            return False
        for code in answer.codes:
            self.history.count(f"replaced {code}".strip())
        return True


# -- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one batch of a stream: the same ones however often it is replayed."""

    batch_id: int
    values: dict[Place, list[bytes]]


class StreamWriter(Outside):
    """A streaming query that writes: batch after batch, each replayed until it is answered."""

    def __init__(self, world: World, name: str, count: int) -> None:
        super().__init__(world, name)
        self._count = count
        self._sent = 0
        self._job: int | None = None
        self._ids: dict[str, str] = {}
        self._last: WriteRequest | None = None

    async def run(self) -> None:
        """All batches, one after the other."""
        for batch_id in range(self._count):
            rows = self._rows(batch_id)
            written = await self._write(rows)
            self._acknowledge(rows, written)
            if not self.world.stopping:
                await self.pause(0, 3 * self.world.think_s)
                if self._last is not None and self.chance.happens(0.1):
                    await self._come_back(self._last)

    def _rows(self, batch_id: int) -> Rows:
        # Topics that nobody deletes: what is written to one that is gone is another story.
        places = [place for place in self.world.places if place[0] in ("t0", "t1")]
        values: dict[Place, list[bytes]] = {}
        for place in self.chance.shuffled(places)[: 1 + self.chance.below(3)]:
            values[place] = []
            for _ in range(1 + self.chance.below(4)):
                value = f"{self.name}/{self._sent}/".encode()
                value += b"x" * self.chance.below(self.world.value_bytes_max)
                self._sent += 1
                self.history.sending(place, value)
                values[place].append(value)
        return Rows(batch_id, values)

    async def _write(self, rows: Rows) -> Written:
        while True:
            try:
                if self._job is None or self.chance.happens(0.1):
                    job = (await self.open_job("write")).job
                    topics = await self.ask("POST", door.TOPICS_PATH, TopicsRequest(), Topics)
                    self._ids = {topic.name: topic.topic_id for topic in topics.topics}
                    self._job = job
                request = await self._stage(rows, self._job)
                if self.chance.happens(0.05):
                    # Executors have ended their part; the driver dies, and the next one replays.
                    self._job = None
                    continue
                if self.chance.happens(0.05):
                    await self.pause(0.5, 6)
                written = await self.ask("POST", door.WRITE_PATH, request, Written)
            except BrokenError:
                self.history.count("write replayed")
            except ProblemError as error:
                if error.problem.reason not in GONE:
                    self.history.violate("commit-refused", f"{self.name} {rows.batch_id}: {error}")
                self.history.count(f"write refused: {error.problem.reason}")
                self._job = None
            else:
                self._last = request
                return written

    async def _stage(self, rows: Rows, job: int) -> WriteRequest:
        """Put the objects of one attempt."""
        objects: list[OutputObject] = []
        runs: list[WriteRun] = []
        for index, (place, values) in enumerate(sorted(rows.values.items())):
            now_ms = self.world.clock.now_ms()
            records = [
                Record(offset_delta=at, timestamp=now_ms, key=None, value=value, headers=())
                for at, value in enumerate(values)
            ]
            batch = bytearray(encode_batch(records, codec="none"))
            topic_id = self._ids[place[0]]
            described = RunDescriber(base_offset=0, operation="write", subject=str(place))
            described.add(memoryview(batch), raw_offset=0)
            run = described.describe(bytes.fromhex(topic_id), place[1])
            segment = build_segment([run], offsets_final=False)
            key = await self.put(job, segment.parts)
            objects.append(OutputObject(key=key, size_bytes=segment.size_bytes))
            runs.append(
                WriteRun(
                    topic_id=topic_id,
                    partition=place[1],
                    object=index,
                    position=segment.positions[0],
                    batches=[len(batch), len(values), run.max_timestamp, -1, -1, -1],
                )
            )
        return WriteRequest(
            job=job,
            writer_id=self.name,
            batch_id=rows.batch_id,
            incarnation=f"checkpoint of {self.name}",
            objects=objects,
            runs=runs,
        )

    def _acknowledge(self, rows: Rows, written: Written) -> None:
        names = {topic_id: name for name, topic_id in self._ids.items()}
        found: dict[Place, Any] = {
            (names[each.topic_id], each.partition): each for each in written.ranges
        }
        self.history.count("written again" if written.repeated else "written")
        if found.keys() != rows.values.keys():
            self.history.violate("spurious-offset", f"{self.name} {rows.batch_id}: {written}")
        for place, values in rows.values.items():
            base, end = found[place].start, found[place].end
            if end - base != len(values):
                self.history.violate("spurious-offset", f"{self.name} {rows.batch_id}: {written}")
            for at, value in enumerate(values):
                self.history.acked(place, base + at, value)
            self.world.acked(place, base, values)

    async def _come_back(self, request: WriteRequest) -> None:
        """A driver that took itself for alive sends what it had begun: it is the last batch, which
        gets its first answer."""
        try:
            written = await self.ask("POST", door.WRITE_PATH, request, Written)
        except (BrokenError, ProblemError) as error:
            self.history.count(f"zombie's write: {type(error).__name__}")
            return
        if not written.repeated:
            self.history.violate("stored-twice", f"{self.name} {request.batch_id}: {written}")
        self.history.count("zombie's write repeated")
