"""A follower applies a shared journal's dense prefix, for any state machine."""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    RetryableError,
    StorageFullError,
)
from penstock.ports.journal import JournalHead, JournalRow
from penstock.replica.applied import Applied
from penstock.replica.follower import Follower, FollowerSettings
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.replica.replica import Replica
from penstock.system import SystemClock
from penstock.system.heard import forget
from support.async_tests import options_of
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop, run


class Notes:
    """A machine that keeps each entry; its outcome is the entry's number among them."""

    application_id = 0x74657374
    format_version = 1
    oldest_version = 1

    def __init__(self) -> None:
        self.on_apply: Callable[[bytes], None] = lambda _: None

    def create(self, connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE notes (position INTEGER PRIMARY KEY, body BLOB) STRICT")

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        raise AssertionError(from_version)

    def bind(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:
        return max(previous_ms, stamp_ms)

    def apply(self, position: int, time_ms: int, body: bytes) -> int:
        self.on_apply(body)
        if body:
            self._execute("INSERT INTO notes VALUES (?, ?)", (position, body))
        (count,) = self._execute("SELECT count(*) FROM notes").fetchone()
        assert isinstance(count, int)
        return count

    def flush(self) -> None:
        pass

    def drop_caches(self) -> None:
        pass


class Rig:
    """A journal and a follower of it; `followed` is all that was delivered."""

    def __init__(
        self,
        loop: VirtualLoop,
        path: Path,
        *,
        faults: JournalFaults | None = None,
        settings: FollowerSettings | None = None,
        seed: int = 1,
    ) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.random = SeededRandom(seed)
        self.journal = SimulatedJournal(random=self.random, clock=self.clock, faults=faults)
        self.machine = Notes()
        self.replica = Replica.open(path, self.machine, fsync=False, keeps_journal=False)
        self.batches: list[list[Applied[int]]] = []
        self.connection = self.journal.connect()
        self.follower = Follower(
            self.connection,
            self.replica,
            clock=self.clock,
            executor=None,
            deliver=self.batches.append,
            settings=settings,
        )
        self.running = asyncio.ensure_future(self.follower.run())

    @property
    def followed(self) -> list[Applied[int]]:
        return [item for batch in self.batches for item in batch]

    async def append(self, count: int) -> None:
        """By an agent of its own, each again until it is in."""
        connection = self.journal.connect()
        for number in range(count):
            while True:
                try:
                    await connection.append(b"%d" % number)
                except RetryableError:
                    continue
                break

    async def catch_up(self) -> None:
        for _ in range(100):
            with contextlib.suppress(RetryableError):
                await self.follower.heads.confirm(10)
                return
        raise AssertionError("it never catches up")


@contextlib.asynccontextmanager
async def rigged(loop: VirtualLoop, folder: Path, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(loop, folder / "r.sqlite", **options)
    try:
        yield rig
    finally:
        rig.running.cancel()
        await asyncio.wait([rig.running])
        rig.replica.close()


@pytest.fixture
async def rig(
    virtual_loop: VirtualLoop, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Rig]:
    async with rigged(virtual_loop, tmp_path, **options_of(request)) as rig:
        yield rig


@pytest.mark.slow
@given(
    seed=st.integers(0, 1 << 32),
    page_rows=st.sampled_from([1, 3, 128]),
    inline_bytes_max=st.sampled_from([0, 5, 4096]),
)
def test_rows_are_applied_once_in_the_order_of_their_positions(
    seed: int, page_rows: int, inline_bytes_max: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async with rigged(loop, tmp_path_factory.mktemp("rig"), **options) as rig:
            await check(rig)
        assert not loop.faults, loop.faults

    async def check(rig: Rig) -> None:
        await asyncio.gather(*(rig.append(25) for _ in range(4)))
        rig.journal.faults = JournalFaults()
        await rig.catch_up()
        assert [item.body for item in rig.followed] == [row.body for row in rig.journal.rows()]
        assert [item.position for item in rig.followed] == list(range(1, rig.journal.head + 1))
        outcomes = [item.outcome for item in rig.followed if item.body]
        assert outcomes == list(range(1, len(outcomes) + 1))
        times = [item.time_ms for item in rig.followed]
        assert times == sorted(times)
        assert all(
            time >= row.stamp_ms for time, row in zip(times, rig.journal.rows(), strict=True)
        )

    faults = JournalFaults(
        delay_ms=(0, 5),
        commit_ms=(0, 20),
        slow_permille=50,
        gap_permille=50,
        lost_reply_permille=20,
        doubled_permille=20,
        lost_read_permille=50,
        lost_hint_permille=500,
    )
    options = {
        "faults": faults,
        "settings": FollowerSettings(page_rows=page_rows, inline_bytes_max=inline_bytes_max),
        "seed": seed,
    }
    run(scenario, SeededRandom(seed))


@pytest.mark.options(settings=FollowerSettings(gap_ms=50))
async def test_a_gap_is_left_alone_while_it_is_young(rig: Rig) -> None:
    await rig.append(1)
    position, _ = rig.journal.take_position()
    rig.journal.end_transaction(position, None)
    await rig.append(1)
    await asyncio.sleep(0.04)
    assert rig.follower.position == 1
    assert len(rig.journal.rows()) == 2
    await asyncio.sleep(0.03)
    assert rig.follower.position == 3
    assert [row.body for row in rig.journal.rows()] == [b"0", b"", b"0"]


@pytest.mark.options(settings=FollowerSettings(gap_ms=50))
async def test_gaps_of_one_age_are_sealed_together(rig: Rig) -> None:
    for _ in range(30):
        position, _ = rig.journal.take_position()
        rig.journal.end_transaction(position, None)
        await rig.append(1)
    began_s = rig.loop.time()
    while rig.follower.position < 60:
        await asyncio.sleep(0.01)
    assert rig.loop.time() - began_s < 0.2


async def test_a_seal_waits_for_who_holds_the_position_and_takes_what_that_leaves(rig: Rig) -> None:
    rig.journal.faults = JournalFaults(slow_permille=1000, slow_ms=(3_000, 3_000))
    slow = asyncio.ensure_future(rig.append(1))
    await asyncio.sleep(0.01)
    rig.journal.faults = JournalFaults()
    await rig.append(1)
    await asyncio.sleep(2)
    assert rig.follower.position == 0
    await slow
    await rig.catch_up()
    assert [item.body for item in rig.followed] == [b"0", b"0"]


@pytest.mark.options(settings=FollowerSettings(page_rows=16))
async def test_batches_are_bounded_by_the_page(rig: Rig) -> None:
    rig.journal.away = True
    await asyncio.sleep(0.1)
    rig.journal.away = False
    await asyncio.gather(*(rig.append(50) for _ in range(4)))
    await rig.catch_up()
    assert len(rig.followed) == 200
    assert max(map(len, rig.batches)) <= 16


async def test_a_full_disk_is_waited_out_and_nothing_is_told_twice(rig: Rig) -> None:
    class Full:
        """A replica whose every third call finds no space, for a while."""

        def __init__(self, real: Replica[int]) -> None:
            self._real = real
            self.calls = 0
            self.is_full = True

        position = property(lambda self: self._real.position)
        time_ms = property(lambda self: self._real.time_ms)

        def _maybe(self) -> None:
            self.calls += 1
            if self.is_full and self.calls % 3 == 0:
                raise StorageFullError("append", "disk", "0 bytes are free")

        def apply(self, body: bytes, *, stamp_ms: int, position: int | None = None) -> Applied[int]:
            self._maybe()
            return self._real.apply(body, stamp_ms=stamp_ms, position=position)

        def commit(self) -> int:
            self._maybe()
            return self._real.commit()

        def local(self, name: str) -> int | str | None:
            return self._real.local(name)

    rig.running.cancel()
    await asyncio.wait([rig.running])
    full = Full(rig.replica)
    rig.follower = Follower(
        rig.journal.connect(),
        full,
        clock=rig.clock,
        executor=None,
        deliver=rig.batches.append,
        settings=FollowerSettings(page_rows=4),
    )
    rig.running = asyncio.ensure_future(rig.follower.run())
    await rig.append(40)
    await rig.catch_up()
    full.is_full = False
    await rig.append(1)
    await rig.catch_up()
    assert [item.position for item in rig.followed] == list(range(1, 42))
    assert [item.outcome for item in rig.followed] == list(range(1, 42))


async def test_every_commit_has_the_mark_of_its_last_row(rig: Rig) -> None:
    """A snapshot, digest or checkpoint commits what was applied in the middle of a page. Killed
    then, a replica with the mark of an earlier row would not notice that the journal came back
    older, without the rows since."""

    class ShownAtOnce:
        """A replica that another thread reads after each row."""

        def __init__(self, real: Replica[int]) -> None:
            self._real = real
            self.seen: list[tuple[int, object]] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def apply(self, body: bytes, *, stamp_ms: int, position: int | None = None) -> Applied[int]:
            applied = self._real.apply(body, stamp_ms=stamp_ms, position=position)
            shown, _ = self._real.digest()
            self.seen.append((shown, self._real.local(LOCAL_MARK)))
            return applied

    rig.running.cancel()
    await asyncio.wait([rig.running])
    replica: Any = ShownAtOnce(rig.replica)
    rig.follower = Follower(
        rig.journal.connect(),
        replica,
        clock=rig.clock,
        executor=None,
        deliver=rig.batches.append,
    )
    rig.journal.away = True
    await asyncio.sleep(0.1)
    rig.journal.away = False
    await rig.append(10)
    rig.running = asyncio.ensure_future(rig.follower.run())
    await rig.catch_up()
    rows = {row.position: row for row in rig.journal.rows()}
    marks = [(item.position, RowMark.of(rows[item.position]).text) for item in rig.followed]
    assert replica.seen == marks
    assert len(replica.seen) == 10


class NoSpace:
    """A replica that finds no space to commit, as long as `is_full`."""

    def __init__(self, real: Replica[int]) -> None:
        self._real = real
        self.commits = 0
        self.is_full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit(self) -> int:
        self.commits += 1
        if self.is_full:
            raise StorageFullError("append", "disk", "SQLITE_FULL: database or disk is full")
        return self._real.commit()


async def test_an_agent_whose_disk_is_full_keeps_up_with_the_journal(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """It lagged by more and more, since it waited after each batch, until its beats were missed."""
    forget()
    with caplog.at_level(logging.INFO):
        rig.running.cancel()
        await asyncio.wait([rig.running])
        replica: Any = NoSpace(rig.replica)
        rig.follower = Follower(
            rig.journal.connect(),
            replica,
            clock=rig.clock,
            executor=None,
            deliver=rig.batches.append,
            settings=FollowerSettings(page_rows=4),
        )
        rig.running = asyncio.ensure_future(rig.follower.run())
        for _ in range(10):
            await rig.append(40)
            began_s = rig.loop.time()
            await rig.catch_up()
            assert rig.loop.time() - began_s < 0.5
            await asyncio.sleep(2)
        assert rig.follower.position == 400
        assert rig.follower.answering_since_s is not None, "the journal was never away"
        assert rig.replica.committed_position == 0
        # Each that fails has all that waits applied again.
        assert 2 <= replica.commits < 25
        replica.is_full = False
        await rig.append(1)
        await rig.catch_up()
        await asyncio.sleep(2)
        await rig.append(1)
        await rig.catch_up()
        assert rig.replica.committed_position == 402
        assert [item.position for item in rig.followed] == list(range(1, 403))
    assert "entries are applied in memory alone until the replica's disk has space" in caplog.text
    assert "the replica's disk has space again" in caplog.text


async def test_an_entry_that_the_machine_does_not_know_ends_following(rig: Rig) -> None:
    def refuse(body: bytes) -> None:
        if body == b"2":
            raise CorruptDataError("apply", "position 3", "unknown")

    rig.machine.on_apply = refuse
    await rig.append(5)
    with pytest.raises(CorruptDataError, match="position 3"):
        await rig.running
    with pytest.raises(CorruptDataError):
        await rig.follower.heads.confirm(1)


async def test_a_replica_that_cannot_be_written_ends_following(rig: Rig) -> None:
    rig.replica.close()
    await rig.append(1)
    with pytest.raises(FatalStorageError):
        await rig.running


async def test_an_idle_follower_confirms_by_its_polls(rig: Rig) -> None:
    await rig.append(3)
    await asyncio.sleep(5)
    assert rig.loop.time() - rig.follower.heads.confirmed_s < 0.2
    assert rig.follower.answering_since_s == pytest.approx(0, abs=0.1)
    rig.journal.go_away()
    await asyncio.sleep(5)
    assert rig.loop.time() - rig.follower.heads.confirmed_s > 4.8
    assert rig.follower.answering_since_s is None
    rig.journal.come_back()
    await asyncio.sleep(5)
    assert rig.loop.time() - rig.follower.heads.confirmed_s < 0.2
    assert rig.follower.answering_since_s == pytest.approx(rig.loop.time() - 5, abs=1.1)


async def test_reads_behind_nobody_confirm_nothing_before_it_is_applied(rig: Rig) -> None:
    """A head that was read counts as confirmed once the replica has reached it, not before."""
    await rig.append(3)
    await rig.catch_up()
    confirmed_s = rig.follower.heads.confirmed_s
    rig.journal.faults = JournalFaults(slow_permille=1000, slow_ms=(2_500, 2_500))
    slow = asyncio.ensure_future(rig.append(1))
    await asyncio.sleep(0.01)
    rig.journal.faults = JournalFaults()
    await rig.append(1)  # behind the gap, so that the head can't be reached
    await asyncio.sleep(2)
    assert rig.follower.heads.confirmed_s < confirmed_s + 0.2
    await slow
    await asyncio.sleep(0.5)
    assert rig.follower.heads.confirmed_s > confirmed_s + 2


@pytest.mark.options(settings=FollowerSettings(page_rows=4))
async def test_a_backlog_confirms_nothing_until_it_is_applied(rig: Rig) -> None:
    rig.journal.away = True
    await asyncio.sleep(0.1)  # it waits longer each time, so that rows come up meanwhile
    rig.journal.away = False
    await rig.append(40)
    rig.journal.faults = JournalFaults(delay_ms=(20, 20))
    while rig.follower.position < 40:
        assert rig.follower.heads.confirmed_s == float("-inf")
        await asyncio.sleep(0.01)
    await rig.catch_up()
    assert rig.follower.heads.confirmed_s > 0


@pytest.mark.options(
    faults=JournalFaults(commit_ms=(0, 3)), settings=FollowerSettings(inline_bytes_max=0)
)
async def test_work_between_sees_whole_batches(rig: Rig) -> None:
    appending = asyncio.ensure_future(rig.append(60))
    for _ in range(20):
        position = await rig.follower.between(lambda: rig.replica.position)
        assert position == rig.replica.committed_position
        await asyncio.sleep(0.003)
    await appending


async def test_a_cancelled_follower_writes_nothing_afterwards(tmp_path: Path) -> None:
    """On a real loop and thread: who ends it may close the replica at once."""
    journal = SimulatedJournal(random=SeededRandom(1), clock=SystemClock())
    machine = Notes()
    replica = Replica.open(tmp_path / "r.sqlite", machine, fsync=False, keeps_journal=False)
    entered, leave = threading.Event(), threading.Event()

    def block(_: bytes) -> None:
        entered.set()
        leave.wait(30)

    machine.on_apply = block
    with ThreadPoolExecutor(1) as executor:
        follower = Follower(
            journal.connect(),
            replica,
            clock=SystemClock(),
            executor=executor,
            deliver=lambda _: None,
            settings=FollowerSettings(inline_bytes_max=0),
        )
        running = asyncio.ensure_future(follower.run())
        await journal.connect().append(b"x")
        await asyncio.get_running_loop().run_in_executor(None, entered.wait, 30)
        running.cancel()
        await asyncio.sleep(0.05)
        assert not running.done()
        leave.set()
        await asyncio.wait([running])
        assert replica.position == replica.committed_position == 1
        replica.close()


async def test_a_follower_that_is_cancelled_twice_lets_nobody_wait(rig: Rig) -> None:
    async def read_on(after: int, rows_max: int) -> list[JournalRow]:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
        raise AssertionError

    rig.connection.read = read_on  # type: ignore[method-assign]
    await rig.journal.connect().append(b"x")
    asker = asyncio.ensure_future(rig.follower.heads.confirm(60))
    await asyncio.sleep(0.5)
    for _ in range(2):
        rig.running.cancel()
        await asyncio.sleep(0.1)
    assert rig.running.cancelled()
    with pytest.raises(RetryableError, match="it was closed"):
        await asyncio.wait_for(asker, 1)


async def test_what_fails_while_a_follower_that_has_failed_is_cancelled_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """As where an order is opened: who waits for a head hears of the first error at once, and
    cancels the follower, which waits for the read that is still under way."""

    async def read_on(after: int, rows_max: int) -> list[JournalRow]:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            raise CorruptDataError("read", "journal", "late")

    async def head() -> JournalHead:
        raise CorruptDataError("read head", "journal", "early")

    rig.connection.read = read_on  # type: ignore[method-assign]
    await asyncio.sleep(0.1)
    rig.connection.head = head  # type: ignore[method-assign]
    asker = asyncio.ensure_future(rig.follower.heads.confirm(60))
    with pytest.raises(CorruptDataError, match="early"):
        await asker
    await asyncio.sleep(0.1)
    assert not rig.running.done()
    rig.running.cancel()
    await asyncio.sleep(5)
    assert rig.running.cancelled()
    assert caplog.messages == ["failed while it was being ended: read journal: late"]
