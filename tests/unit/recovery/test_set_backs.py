"""A restore to a time, where journal time was ahead and was set back."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.ports.journal import JournalRow
from penstock.recovery.point_in_time import Moment
from penstock.recovery.set_backs import last_set_back
from penstock.replica.archive_format import (
    JOURNAL_PREFIX,
    MARKED_HEADER_BYTES,
    StretchName,
)
from penstock.state.commands import Noop, SetJournalTime
from penstock.state.entries import Entry, encode_entry
from penstock.system.heard import forget
from support.agent_ports import BELIEVED_AFTER_MS
from support.archives import SETTINGS, archive_of, archiver_of, keys
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.restored_clusters import kill, restored
from unit.log.test_wrong_clocks import DAY_MS, AheadClock

NO_SNAPSHOTS = replace(SETTINGS, snapshot_interval_ms=10 * DAY_MS, snapshot_entries=100_000)


async def at_now(agent: ClusterAgent) -> tuple[int, int]:
    """Position and journal time, with no entry after it for a moment."""
    agent.pause_heartbeats()
    await agent.catch_up()
    return agent.order.position, agent.order.time_ms


def beat(agent: ClusterAgent) -> None:
    agent.beating = agent.cluster.loop.create_task(agent.cluster._beat(agent))


@pytest.mark.slow
@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_moments_after_a_setting_back_need_no_snapshot(
    cluster: Cluster, *, has_snapshot: bool
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent, settings=NO_SNAPSHOTS)
    (key,) = await agent.topic("t")
    await agent.append(key, b"before")
    if has_snapshot:
        await archiver.snapshot()
    await passing(2)
    await agent.append(key, b"before, too")
    marks = [await at_now(agent)]
    real = cluster.journal.clock
    cluster.journal.clock = AheadClock(real, 30 * DAY_MS)
    agent.clock.skew_ms = 30 * DAY_MS
    beat(agent)
    await passing(5)
    await agent.append(key, b"ahead")
    ahead = agent.order.time_ms
    assert ahead > real.now_ms() + 29 * DAY_MS
    cluster.journal.clock = real
    agent.clock.skew_ms = 0
    await passing(BELIEVED_AFTER_MS / 1000 + 10)
    await agent.log.keeper.run_once()
    assert agent.order.time_ms < ahead
    for number in range(3):
        await agent.append(key, b"after %d" % number)
        marks.append(await at_now(agent))
        await archiver.run_once()
        beat(agent)
        await passing(2)
    await archiver.run_once()
    assert len(keys(cluster, "archive/snapshots/")) <= 1
    await kill(cluster)
    for number, (position, time_ms) in enumerate(marks):
        state = await restored(cluster, Moment(time_ms=time_ms), name=f"r{number}")
        assert (state.parent_position, state.time_ms) == (position, time_ms)
    # As of a time at which no clock ever was: all of it is older.
    state = await restored(cluster, Moment(time_ms=ahead), name="ahead")
    assert state.parent_position == state.archived_position


async def test_a_command_that_lowered_nothing_moves_no_moment(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent, settings=NO_SNAPSHOTS)
    (key,) = await agent.topic("t")
    await archiver.snapshot()
    await agent.append(key, b"a")
    position, time_ms = await at_now(agent)
    await passing(2)
    await agent.append(key, b"b")
    await agent.order.commit([SetJournalTime(time_ms=time_ms, rows_max=1, begins=True)])
    assert agent.order.time_ms > time_ms
    end, _ = await at_now(agent)
    await passing(2)
    await archiver.run_once()
    archive = archive_of(cluster, "found")
    assert await last_set_back(archive, after=position, until=end, time_ms=time_ms) == end
    await kill(cluster)
    state = await restored(cluster, Moment(time_ms=time_ms))
    assert (state.parent_position, state.time_ms) == (position, time_ms)


@pytest.mark.slow
async def test_of_later_stretches_headers_alone_are_read(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent, settings=NO_SNAPSHOTS)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a")
    position, time_ms = await at_now(agent)
    beat(agent)
    await passing(20)
    for _ in range(20):
        await agent.append(key, b"b")
        await passing(2)
        await archiver.run_once()
    stretches = keys(cluster, JOURNAL_PREFIX)
    assert len(stretches) >= 20
    cluster.store.gets.clear()
    archive = archive_of(cluster, "found")
    end = agent.order.position
    assert await last_set_back(archive, after=position, until=end, time_ms=time_ms) is None
    whole = [key for key, start, _ in cluster.store.gets if start]
    assert len(set(whole)) <= 1, "the one with the moment in it"
    assert all(end <= MARKED_HEADER_BYTES for _, start, end in cluster.store.gets if not start)
    assert len(cluster.store.gets) <= len(stretches) + 2


T_MS = 1_000_000
"""The time that is looked for in the archives below."""


def row_of(position: int, *set_to_ms: int) -> JournalRow:
    """A row whose commands set journal time, after one that doesn't."""
    commands = [Noop(), *(SetJournalTime(time_ms=at, rows_max=1, begins=True) for at in set_to_ms)]
    entry = Entry(agent=1, epoch=1, n=0, stamp_ms=5, commands=list(commands))
    return JournalRow(position, T_MS, encode_entry(entry))


class Stretches:
    """An archive of stretches whose least stamp is given; an error in the place of the rows is
    raised where they are read. `whole`: the first positions of those that were read whole."""

    def __init__(
        self,
        stretches: Sequence[Sequence[JournalRow]],
        *,
        first_ms: Mapping[int, int] | None = None,
        failing: Mapping[int, PenstockError] | None = None,
    ) -> None:
        self._rows = {rows[0].position: rows for rows in stretches}
        self._first_ms = first_ms or {}
        self._failing = failing or {}
        self.whole: list[int] = []

    async def stretches(self) -> list[StretchName]:
        return [StretchName(rows[0].position, rows[-1].position) for rows in self._rows.values()]

    async def header(self, name: StretchName) -> Any:
        return SimpleNamespace(first_ms=self._first_ms.get(name.first, T_MS))

    async def read_stretch(self, name: StretchName) -> Sequence[JournalRow]:
        self.whole.append(name.first)
        if name.first in self._failing:
            raise self._failing[name.first]
        return self._rows[name.first]


def found_in(archive: Stretches, *, after: int = 0, until: int = 1_000) -> int | None:
    read: Any = archive
    return asyncio.run(last_set_back(read, after=after, until=until, time_ms=T_MS))


def test_the_last_row_that_may_set_back_is_found_in_whatever_stretch_it_lies() -> None:
    """Stretches may overlap, and one that was archived later may hold earlier rows."""
    rows = [row_of(number, *([T_MS] if number in (3, 41, 77) else [])) for number in range(1, 91)]
    stretches = [rows[at : at + 2] for at in range(0, 90, 2)]
    assert found_in(Stretches(stretches)) == 77
    assert found_in(Stretches(stretches[::-1])) == 77
    assert found_in(Stretches([rows])) == 77


def test_only_rows_past_the_first_and_up_to_the_last_position_count() -> None:
    archive = Stretches([[row_of(4, T_MS), row_of(5, T_MS)], [row_of(6), row_of(7, T_MS)]])
    assert found_in(archive, after=4, until=5) == 5
    assert found_in(archive, after=5, until=6) is None
    assert found_in(archive, after=5, until=7) == 7
    assert found_in(archive, after=3, until=4) == 4
    assert found_in(Stretches([[row_of(4, T_MS), row_of(5)]]), after=4) is None


def test_of_stretches_that_lie_elsewhere_not_even_the_headers_are_read() -> None:
    archive = Stretches([[row_of(4), row_of(5)], [row_of(6), row_of(7)], [row_of(8), row_of(9)]])
    assert found_in(archive, after=5, until=7) is None
    assert archive.whole == [6]
    archive.whole.clear()
    assert found_in(archive, after=4, until=8) is None
    assert sorted(archive.whole) == [4, 6, 8], "each has a row that counts"


def test_setting_journal_time_to_the_moment_or_before_it_counts_and_to_a_later_one_not() -> None:
    assert found_in(Stretches([[row_of(1, T_MS)]])) == 1
    assert found_in(Stretches([[row_of(1, T_MS - 1)]])) == 1
    assert found_in(Stretches([[row_of(1, T_MS + 1)]])) is None
    assert found_in(Stretches([[row_of(1, T_MS + 1, T_MS)]])) == 1, "any command of the entry"
    assert found_in(Stretches([[JournalRow(1, T_MS, b""), row_of(2)]])) is None, "a seal says none"


def test_a_stretch_counts_while_its_least_stamp_is_within_the_clocks_agreement() -> None:
    """A row lowers journal time to within 5 s of its own stamp at most."""
    near = Stretches([[row_of(1, T_MS)]], first_ms={1: T_MS + 5_000})
    assert found_in(near) == 1
    later = Stretches([[row_of(1, T_MS)]], first_ms={1: T_MS + 5_001})
    assert found_in(later) is None
    assert not later.whole


@pytest.mark.parametrize(
    "error",
    [CorruptDataError("read", "stretch", "CRC"), NotFoundError("read", "stretch", "it is gone")],
)
def test_a_stretch_that_is_lost_is_named_and_the_others_are_searched(
    error: PenstockError, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    archive = Stretches([[row_of(1, T_MS)], [row_of(2)], [row_of(3, T_MS)]], failing={3: error})
    assert found_in(archive) == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"set back in {StretchName(3, 3).key} isn't known" in record.getMessage()


def test_a_store_that_does_not_answer_is_no_answer() -> None:
    away = RetryableError("read", "store", "away")
    with pytest.raises(RetryableError):
        found_in(Stretches([[row_of(1, T_MS)], [row_of(2)]], failing={2: away}))
