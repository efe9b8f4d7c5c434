"""Jobs beside the simulated cluster, and writers of streams among them; `sim.compactor` has the
others.

They do by themselves what a driver's process, its executors and Spark do: die between any two
steps, hang past their lease and come back, run tasks twice, send what they have committed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import RetryableError
from penstock.objects.origins import open_origins
from penstock.pipeline import api_messages as messages
from penstock.pipeline.api_messages import (
    JobOpen,
    JobRequest,
    OutputObject,
    Topics,
    TopicsRequest,
    WriteRequest,
    WriteRun,
    Written,
)
from penstock.ports.objects import ObjectStore
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.sums import crcs_of
from penstock.segment import RunDescriber, build_segment, job_object_key
from penstock.state.schema import PIPELINE_LEVEL
from sim.actors import Actor
from sim.api import ApiCaller, ProblemError
from sim.connections import BrokenError
from sim.history import Place
from sim.inherited import PARENT_URL, InheritedStore
from support.simulated.link import SimulatedLink
from support.simulated.store import SimulatedStore

if TYPE_CHECKING:
    from sim.world import World

T = TypeVar("T")

STORE_PATIENCE_S = 3.0
TRIES_MAX = 12
LEVEL_NOT_ON = "level_not_on"
GONE = {"unknown_job", "out_of_order_commit", "object_condemned", "bad_object"}
"""Refusals of a job that was closed while its driver was away."""


class Outside(Actor):
    """A process that reads and writes the bucket itself, and talks to agents by their API."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._api = ApiCaller(world, self.chance.fork())
        link = SimulatedLink(
            world.loop, self.chance.fork(), server=world.loop.world, timeout_s=STORE_PATIENCE_S
        )
        permille = world.store_permille
        link.fail_permille = link.lost_permille = link.twice_permille = permille
        self._store_link = link
        self._store: ObjectStore = SimulatedStore(world.bucket, link)
        if world.parent_bucket is not None:
            parent = InheritedStore(world, world.parent_bucket, link)
            self._store = open_origins(self._store, [PARENT_URL], lambda _: parent)

    async def ask(self, method: str, path: str, message: object, answer: type[T]) -> T:
        """Ask agent after agent, some times.

        Raises:
            BrokenError: none answered.
            ProblemError: it is refused.
        """
        for _ in range(TRIES_MAX):
            try:
                return await self._api.call(self.agent(), method, path, message, answer)
            except BrokenError:
                self.move()
                await self.pause(0.05, 0.5)
            except ProblemError as error:
                if error.problem.reason != LEVEL_NOT_ON or not self._may_lack_level():
                    raise
                self.history.count("job before its level")
                await self.pause(0.3, 1)
        raise BrokenError(f"{method} {path}: nobody answers")

    def _may_lack_level(self) -> bool:
        return self.world.profile.level < PIPELINE_LEVEL

    async def open_job(self, kind: str) -> JobOpen:
        """A new job, with a lease that may end before it does."""
        request = JobRequest(
            kind=kind,
            name=self.name,
            lease_ms=1_000 + self.chance.below(4_000),
            age_max_ms=5_000 + self.chance.below(20_000),
        )
        return await self.ask("POST", messages.JOBS_PATH, request, JobOpen)

    async def close_job(self, job: int) -> None:
        """As its owner."""
        await self.ask("DELETE", f"{messages.JOBS_PATH}/{job}", None, dict)

    async def renew_job(self, job: int) -> bool:
        """Whether it goes on."""
        try:
            await self.ask("POST", f"{messages.JOBS_PATH}/{job}/renew", None, dict)
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
                    topics = await self.ask("POST", messages.TOPICS_PATH, TopicsRequest(), Topics)
                    self._ids = {topic.name: topic.topic_id for topic in topics.topics}
                    self._job = job
                request = await self._stage(rows, self._job)
                if self.chance.happens(0.05):
                    # Executors have ended their part; the driver dies, and the next one replays.
                    self._job = None
                    continue
                if self.chance.happens(0.05):
                    await self.pause(0.5, 6)
                written = await self.ask("POST", messages.WRITE_PATH, request, Written)
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
                    crcs=crcs_of([batch]),
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
            written = await self.ask("POST", messages.WRITE_PATH, request, Written)
        except (BrokenError, ProblemError) as error:
            self.history.count(f"zombie's write: {type(error).__name__}")
            return
        if not written.repeated:
            self.history.violate("stored-twice", f"{self.name} {request.batch_id}: {written}")
        self.history.count("zombie's write repeated")
