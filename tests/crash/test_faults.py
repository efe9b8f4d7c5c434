"""A full disk or a failing store refuses retriably and loses nothing; a failed sync or commit ends
all acknowledgement; and what was refused goes on once there is room, without a restart."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.log.append.plan import PartitionAppend
from penstock.log.upload import uploader
from penstock.model.errors import (
    FatalStorageError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.records.batch import check_batch
from penstock.replica import replica as replica_module
from penstock.state.answers import BatchStatus, TopicCreated
from penstock.state.commands import CreateTopic
from penstock.wal.recovery import FILE_SUFFIX
from support.batches import ANY, PLAIN, make_batch
from support.power import NOW
from support.power_promises import read_all
from support.simulated.clock import ManualClock
from support.simulated.cut import PowerCutError
from support.simulated.device import SimulatedDevice, SimulatedFile
from support.simulated.randomness import SeededRandom
from support.simulated_log import FILE_BYTES, WAL_BYTES_MAX, SimulatedLog

VALUE_BYTES = 3000
Body = Callable[[SimulatedLog, PartitionKey], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are tried again at once, so that recovery takes no second."""
    monkeypatch.setattr(uploader, "_RETRY_S", 0.01)


def run(
    folder: Path,
    body: Body,
    *,
    device: SimulatedDevice | None = None,
    plant: Callable[[SimulatedLog], None] | None = None,
    is_fatal: bool = False,
) -> None:
    """A log with one partition, on the threads of a server."""

    async def main() -> None:
        folder.mkdir(exist_ok=True)
        life = SimulatedLog(
            folder=folder,
            device=device or SimulatedDevice(),
            clock=ManualClock(now_ms=NOW),
            random=SeededRandom(1),
            stepped=False,
            on_cut=lambda _: None,
            plant=plant,
        )
        await life.start()
        try:
            topic = life.view.topic("t")
            if topic is None:
                (answer,) = await life.log.commit(
                    [
                        CreateTopic(
                            name="t",
                            topic_id=bytes(16),
                            partitions=1,
                            configs={"retention.ms": "-1"},
                        )
                    ]
                )
                assert isinstance(answer, TopicCreated), answer
                key = partition_key(TopicKey(answer.topic_key), 0)
            else:
                key = partition_key(topic.topic_key, 0)
            await asyncio.wait_for(body(life, key), 120)
        finally:
            await life.end()
        faults = [error for error in life.fatal if not isinstance(error, PowerCutError)]
        assert bool(faults) == is_fatal, faults

    asyncio.run(main())


def append(
    life: SimulatedLog,
    key: PartitionKey,
    value: bytes,
    *,
    sequence: int = -1,
    timeout_ms: int = 0,
) -> asyncio.Future[PartitionAppend]:
    """Append one record; the future holds what became of it."""
    producer = (7, 0, sequence) if sequence >= 0 else PLAIN
    data = make_batch(value, time=NOW, producer=producer)
    request = PartitionAppend(key, check_batch(memoryview(data), ANY, NOW))
    answer: asyncio.Future[PartitionAppend] = asyncio.get_running_loop().create_future()

    def done(error: PenstockError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(request)
        else:
            answer.set_exception(error)

    life.log.append([request], timeout_ms=timeout_ms, done=done)
    return answer


def value_of(number: int) -> bytes:
    return b"%d " % number + bytes(VALUE_BYTES)


async def fill(
    life: SimulatedLog, key: PartitionKey, stored: list[bytes], *, tries: int = 400
) -> None:
    """Append, by an idempotent producer, until the log says that it is full."""
    for _ in range(tries):
        value = value_of(len(stored))
        try:
            done = await append(life, key, value, sequence=len(stored))
        except StorageFullError:
            return
        assert done.status is BatchStatus.STORED
        assert done.base_offset == len(stored)
        stored.append(value)
    pytest.fail("it never was full")


async def goes_on(life: SimulatedLog, key: PartitionKey, stored: list[bytes]) -> None:
    """There is room again: appends succeed, with nothing lost, doubled or out of order."""
    for _ in range(60):
        value = value_of(len(stored))
        done = await until_stored(life, key, value, sequence=len(stored))
        assert done.status is BatchStatus.STORED
        assert done.base_offset == len(stored)
        stored.append(value)
    await reads(life, key, stored)
    assert await life.log.uploader.drain(60), life.log.uploader.last_error
    await reads(life, key, stored)


async def until_stored(
    life: SimulatedLog, key: PartitionKey, value: bytes, *, sequence: int
) -> PartitionAppend:
    """As a client does, try again after a retriable error."""
    for _ in range(2000):
        try:
            return await append(life, key, value, sequence=sequence)
        except RetryableError:
            await asyncio.sleep(0.005)
        except StorageFullError:
            await asyncio.sleep(0.005)
    pytest.fail("it does not recover")


async def reads(life: SimulatedLog, key: PartitionKey, stored: list[bytes]) -> None:
    for partition in list(life.log.tail.partitions()):
        life.log.tail.forget(partition)
    found = await read_all(life, key, 0, life.log.high_watermark(key))
    assert [value.encode() for _, value in found] == stored


def test_a_full_volume_refuses_retriably_and_recovers(tmp_path: Path) -> None:
    """WAL and objects share the volume, so that both meet its end."""
    device = SimulatedDevice(capacity_bytes=4 * FILE_BYTES + 9_000)

    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        stored: list[bytes] = []
        await fill(life, key, stored)
        assert len(stored) > 10
        await reads(life, key, stored)
        device.capacity_bytes = None
        await goes_on(life, key, stored)

    run(tmp_path, body, device=device)


def test_a_volume_that_is_full_when_a_file_begins_refuses_retriably(tmp_path: Path) -> None:
    device = SimulatedDevice()

    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        stored: list[bytes] = []
        for after in (0, 1, 2):
            device.fail("write", after=after, error_number=errno.ENOSPC)
            await goes_on(life, key, stored)

    run(tmp_path, body, device=device)


class Toggled:
    """A store that refuses puts while `error` is set."""

    def __init__(self, life: SimulatedLog, error: type[PenstockError]) -> None:
        self._store = life.store
        self.error: type[PenstockError] | None = error
        life.log.uploader._segments._store = self  # type: ignore[assignment]

    async def put(self, key: str, parts: Sequence[Any], *, if_absent: bool = False) -> None:
        if self.error is not None:
            raise self.error("put", key, "refused by the test")
        await self._store.put(key, parts, if_absent=if_absent)


@pytest.mark.parametrize("error", [RetryableError, StorageFullError])
def test_a_store_that_fails_for_a_while_fills_the_wal_and_no_more(
    tmp_path: Path, error: type[PenstockError]
) -> None:
    device = SimulatedDevice()

    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        store = Toggled(life, error)
        stored: list[bytes] = []
        await fill(life, key, stored)
        assert device.used_bytes("wal/0") <= WAL_BYTES_MAX
        # What waits longer than a moment is held back, and refused at its deadline.
        held = append(life, key, b"held", timeout_ms=5_000)
        await asyncio.sleep(0.12)
        assert not held.done()
        life.clock.advance(5)
        with pytest.raises(StorageFullError):
            await held
        await reads(life, key, stored)
        store.error = None
        await goes_on(life, key, stored)

    run(tmp_path, body, device=device)


def test_what_waits_for_room_is_stored_when_there_is_some(tmp_path: Path) -> None:
    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        store = Toggled(life, RetryableError)
        stored: list[bytes] = []
        await fill(life, key, stored)
        held = [
            append(life, key, value_of(number), sequence=number, timeout_ms=9_000)
            for number in range(len(stored), len(stored) + 3)
        ]
        store.error = None
        done = await asyncio.gather(*held)
        assert [one.base_offset for one in done] == [len(stored) + number for number in range(3)]

    run(tmp_path, body)


def page_limit(life: SimulatedLog, pages: int | None) -> None:
    """Let the journal's file have this many pages more than it has; None: as many as it likes."""
    connection = life.journal.inner._replica._connection
    (count,) = connection.execute("PRAGMA page_count").fetchone()
    limit = 1 << 30 if pages is None else count + pages
    connection.execute(f"PRAGMA max_page_count = {limit}").fetchall()


def test_a_full_database_refuses_retriably_and_recovers(tmp_path: Path) -> None:
    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        stored: list[bytes] = []
        page_limit(life, 2)
        # More than an upload frees, which may come in between.
        topics = [
            CreateTopic(name=f"u{n}", topic_id=bytes([n]) * 16, partitions=200) for n in range(50)
        ]
        with pytest.raises(StorageFullError):
            await life.log.commit(topics)
        page_limit(life, None)
        await goes_on(life, key, stored)

    run(tmp_path, body)


def test_full_journal_files_fill_the_wal_and_recover(tmp_path: Path) -> None:
    """No WAL file is used again while its entries are nowhere else; none of it ends the server."""
    device = SimulatedDevice()

    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        stored: list[bytes] = []
        open_file = device.open

        def refuse(name: str, *, create: bool = False) -> SimulatedFile:
            if name.startswith("journal/") and create:
                raise OSError(errno.ENOSPC, "refused by the test")
            return open_file(name, create=create)

        journal = life.journal.inner._replica._journal
        assert journal is not None
        journal._close_file()
        device.open = refuse  # type: ignore[method-assign]
        await fill(life, key, stored)
        assert len(stored) > 10
        await reads(life, key, stored)
        device.open = open_file  # type: ignore[method-assign]
        await goes_on(life, key, stored)

    run(tmp_path, body, device=device)


def test_frames_that_the_journal_refused_do_not_fill_the_wal_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refused append has left a frame that nothing names, over many times the WAL's size."""

    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        def no_space(directory: str, **_: object) -> None:
            raise StorageFullError("append", directory, "refused by the test")

        stored: list[bytes] = []
        with monkeypatch.context() as patch:
            patch.setattr(replica_module, "check_space", no_space)
            for _ in range(4 * WAL_BYTES_MAX // VALUE_BYTES):
                with pytest.raises(StorageFullError):
                    await append(life, key, value_of(0), sequence=0)
        await goes_on(life, key, stored)

    run(tmp_path, body)


def test_frames_of_refused_batches_do_not_fill_the_wal_for_ever(tmp_path: Path) -> None:
    """A producer that only ever repeats itself, or is out of order, stores nothing."""

    async def body(life: SimulatedLog, key: PartitionKey) -> None:
        stored = [value_of(0)]
        await append(life, key, stored[0], sequence=0)
        assert await life.log.uploader.drain(60)
        for number in range(4 * WAL_BYTES_MAX // VALUE_BYTES):
            sequence = 0 if number % 2 else 9
            done = await until_stored(life, key, stored[0], sequence=sequence)
            expected = BatchStatus.DUPLICATE if number % 2 else BatchStatus.REFUSED
            assert done.status is expected
        await goes_on(life, key, stored)

    run(tmp_path, body)


def test_a_failed_sync_ends_all_acknowledgement(tmp_path: Path) -> None:
    device = SimulatedDevice()
    stored: list[bytes] = []

    async def until_fatal(life: SimulatedLog, key: PartitionKey) -> None:
        for number in range(5):
            await append(life, key, value_of(number), sequence=number)
            stored.append(value_of(number))
        # A frame's, and not that of the file that is made meanwhile.
        device.fail("sync", suffix=FILE_SUFFIX)
        first = append(life, key, value_of(5), sequence=5)
        await life.ended.wait()
        second = append(life, key, value_of(6), sequence=6)
        await asyncio.wait([first, second], timeout=0.1)
        assert not first.done()
        assert not second.done()
        assert isinstance(life.fatal[0], FatalStorageError)

    async def after(life: SimulatedLog, key: PartitionKey) -> None:
        await reads(life, key, stored)
        await goes_on(life, key, stored)

    run(tmp_path, until_fatal, device=device, is_fatal=True)
    run(tmp_path, after, device=device.power_loss(SeededRandom(3)))


class FailingCommit:
    """A connection whose COMMIT fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_failed_commit_ends_all_acknowledgement(tmp_path: Path) -> None:
    device = SimulatedDevice()
    stored: list[bytes] = []

    async def until_fatal(life: SimulatedLog, key: PartitionKey) -> None:
        for number in range(5):
            await append(life, key, value_of(number), sequence=number)
            stored.append(value_of(number))
        transaction = life.journal.inner._replica._transaction
        transaction._connection = FailingCommit(transaction._connection)  # type: ignore[assignment]
        first = append(life, key, value_of(5), sequence=5)
        await life.ended.wait()
        second = append(life, key, value_of(6), sequence=6)
        await asyncio.wait([second], timeout=0.1)
        # It was in the WAL before the database was to follow; nothing is answered after.
        assert first.done()
        stored.append(value_of(5))
        assert not second.done()
        assert isinstance(life.fatal[0], FatalStorageError)

    async def after(life: SimulatedLog, key: PartitionKey) -> None:
        await reads(life, key, stored)
        await goes_on(life, key, stored)

    run(tmp_path, until_fatal, device=device, is_fatal=True)
    run(tmp_path, after, device=device)
