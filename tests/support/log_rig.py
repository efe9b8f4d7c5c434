"""An agent on a temporary directory: real journal, real WAL, real files, a clock of the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from penstock.log import LogSettings
from penstock.log.append.plan import PartitionAppend
from penstock.log.wals.claims import WalFolder
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.objects import open_store
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import TopicCreated
from penstock.state.commands import CreateTopic
from penstock.system.believed_clock import BelievedClock
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from support.batches import ANY
from support.own_agent import OwnAgent, open_own_agent
from support.simulated.clock import ManualClock

NOW = 1_790_000_000_000
FILE_BYTES = 1 << 20
BELIEVED_AFTER_MS = 600_000


def small_limits(**changes: Any) -> LogSettings:
    values: dict[str, Any] = {
        "frame_bytes_max": FILE_BYTES // 2,
        "append_wait_ms_max": 10_000,
        "tail_cache_bytes": 1 << 20,
        "block_cache_bytes": 256 << 10,
        "block_bytes": 16 << 10,
        "segment_bytes": 1 << 30,
        "segment_age_ms": 3_600_000,
        "delete_grace_ms": 60_000,
        "state_check_interval_ms": 0,
    }
    return LogSettings(**(values | changes))


class Rig:
    """One start of an agent that has its directory for itself. Use `run_rig`."""

    def __init__(
        self,
        path: Path,
        clock: ManualClock,
        believed: BelievedClock,
        pool: ThreadPoolExecutor,
        own: OwnAgent,
        fatal: list[BaseException],
    ) -> None:
        self.path = path
        self.clock = clock
        self.believed = believed
        self.pool = pool
        self.fatal = fatal
        self._own = own
        foundation = own.foundation
        self.agent = own.agent
        self.own_wal = own.own_wal
        self.journal, self.order = foundation.journal, foundation.order
        self.queries, self.view = foundation.queries, foundation.view
        self.wal = foundation.wal_writer
        self.wal_reader = self.own_wal._parts.readers[0]
        self.store = foundation.store
        self.log = foundation.log
        self.upkeep = foundation.upkeep

    @classmethod
    async def start(cls, path: Path, limits: LogSettings, clock: ManualClock) -> Self:
        """Open what lies at `path`, and begin to append and to read."""
        path.mkdir(parents=True, exist_ok=True)
        fatal: list[BaseException] = []
        believed = BelievedClock(clock, after_ms=BELIEVED_AFTER_MS)
        pool = ThreadPoolExecutor(2)
        try:
            own = await open_own_agent(
                path / "metadata.sqlite",
                wal_folder=WalFolder(
                    device=PosixDevice(path),
                    random=SystemRandom(),
                    file_bytes=FILE_BYTES,
                    bytes_max=8 * FILE_BYTES,
                ),
                clock=believed,
                random=SystemRandom(),
                limits=limits,
                store=open_store(path / "objects", executor=pool),
                pool=pool,
                on_fatal=fatal.append,
            )
        except BaseException:
            pool.shutdown()
            raise
        await own.start()
        return cls(path, clock, believed, pool, own, fatal)

    async def close(self, *, drain: bool) -> None:
        """`drain` false leaves the WAL as a crash would."""
        await (self._own.drain() if drain else self._own.crash())
        self.pool.shutdown()
        self._own.close_files()

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> list[PartitionKey]:
        """Create a topic; its partition keys."""
        (answer,) = await self.log.commit(
            [
                CreateTopic(
                    name=name,
                    topic_id=SystemRandom().token_bytes(16),
                    partitions=partitions,
                    configs={key.replace("_", "."): value for key, value in configs.items()},
                )
            ]
        )
        assert isinstance(answer, TopicCreated), answer
        return [partition_key(TopicKey(answer.topic_key), number) for number in range(partitions)]

    async def append(
        self,
        key: PartitionKey,
        *values: bytes,
        timestamp: int = NOW,
        codec: str = "none",
        producer: tuple[int, int, int] = (-1, -1, -1),
        keys: Sequence[bytes] | None = None,
    ) -> PartitionAppend:
        """Append one batch of these values, with these keys or none; raises what befell it."""
        records = [
            Record(
                offset_delta=i,
                timestamp=timestamp + i,
                key=None if keys is None else keys[i],
                value=value,
                headers=(),
            )
            for i, value in enumerate(values)
        ]
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        append = PartitionAppend(key, check_batch(memoryview(batch), ANY, NOW))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.log.append([append], timeout_ms=5_000, done=done)
        await answer
        return append

    async def read_all(
        self, key: PartitionKey, offset: int | None = None
    ) -> list[tuple[int, bytes]]:
        """(offset, value) of all records from `offset` (the log start) on."""
        from penstock.records.batch import stored_header
        from penstock.records.decode import decode_batch

        at = self.log.log_start(key) if offset is None else offset
        found = []
        while at < self.log.high_watermark(key):
            read = await self.log.reader.read_loaded(key, at, 40_000)
            assert read is not None, at
            data = b"".join(read.views)
            position = 0
            while position < len(data):
                header = stored_header(data, position)
                batch = memoryview(data)[position : position + header.length]
                for record in decode_batch(batch):
                    found.append((header.base_offset + record.offset_delta, record.value or b""))
                position += header.length
            assert read.end_offset > at
            at = read.end_offset
        return [row for row in found if offset is None or row[0] >= offset]

    async def drain(self) -> None:
        """Move the WAL to segments."""
        assert await self.own_wal.uploader.drain(60), self.own_wal.uploader.last_error

    def forget_memory(self) -> None:
        """Empty the tail cache, so that reads go to the WAL or the objects."""
        for key in list(self.log.tail.partitions()):
            self.log.tail.forget(key)


@asynccontextmanager
async def opened_rig(
    path: Path, *, drain: bool = False, clock: ManualClock | None = None, **limits: Any
) -> AsyncIterator[Rig]:
    """A log started on `path`, and stopped at the end with or without draining its WAL."""
    rig = await Rig.start(path, small_limits(**limits), clock or ManualClock(now_ms=NOW))
    try:
        yield rig
    finally:
        await rig.close(drain=drain)
    assert not rig.fatal, rig.fatal


def run_rig(path: Path, test: Callable[[Rig], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test on one of several starts of a log; where it has one, it is the fixture `rig`."""

    async def main() -> None:
        async with opened_rig(path, **options) as rig:
            await asyncio.wait_for(test(rig), 120)

    asyncio.run(main())
