"""Which state a restore takes for a moment, and what must be there for it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from penstock.model.ids import TopicKey, partition_key
from penstock.ports.journal import JournalRow
from penstock.recovery import point_in_time
from penstock.recovery.point_in_time import Moment, _Restore, _store_segments, restore_state
from penstock.replica.archive_format import SnapshotName, StretchName
from penstock.replica.bootstrap import Bootstrapped
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import Noop, Relay, StoreSegment
from penstock.state.entries import Entry, encode_entry
from penstock.state.leftovers import ROWS_PER_COMMAND, TOPIC
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom

Wanted = Callable[[JournalRow, int], bool]


class Archived:
    """An archive of rows whose journal times are given, and one snapshot.

    Replaces what a restore calls: what `bootstrap` and `replay` were asked for is in `steps`.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.times: dict[int, int] = {}
        self.snapshot: int | None = None
        self.names: list[StretchName] = []
        self.back: int | None = None
        self.backs_asked: list[dict[str, int]] = []
        self.steps: list[Any] = []
        self.rows_of: list[JournalRow] = []
        self.rows_asked: list[tuple[int, int]] = []
        self.sizes: dict[str, int] = {}
        self.named: list[tuple[str, int, str]] = []
        self.in_wal: list[list[str]] = []
        """What lies in a WAL, at each look."""
        self.moved: list[str] = []
        for name in ("bootstrap", "replay", "last_set_back"):
            patch.setattr(point_in_time, name, getattr(self, "_" + name))
        outer = self

        class Restore(_Restore):
            def _wal_runs(self) -> list[str]:
                return outer.in_wal.pop(0)

            def _clear_leftovers(self) -> None:
                pass

            def _apply_moves(self, moves: Sequence[StoreSegment]) -> None:
                outer.moved += [move.object_key for move in moves]

            def named_objects(self) -> list[tuple[str, int, str]]:
                return outer.named

        self.restore = Restore(
            parent=self,  # type: ignore[arg-type]
            parent_url="s3://parent",
            archive=self,  # type: ignore[arg-type]
            database=folder / "restored.sqlite",
            executor=InlineExecutor(SeededRandom(1)),
        )

    async def stretches(self) -> list[StretchName]:
        return self.names

    async def rows(self, *, after: int, until: int) -> AsyncIterator[list[JournalRow]]:
        self.rows_asked.append((after, until))
        for row in self.rows_of:
            yield [row]

    async def size(self, key: str) -> int:
        if key not in self.sizes:
            raise NotFoundError("size", key, "gone")
        return self.sizes[key]

    async def _bootstrap(self, *_: Any, executor: Any, **bounds: int | None) -> Any:
        self.steps.append(
            ("bootstrap", {name: at for name, at in bounds.items() if at is not None})
        )
        at = self.snapshot
        return None if at is None else Bootstrapped(SnapshotName(at, "0" * 16), at, at)

    async def _replay(
        self,
        archive: Any,
        path: Any,
        machine: Any,
        made: Bootstrapped,
        *,
        executor: Any,
        until: int,
        wanted: Wanted,
    ) -> Bootstrapped:
        self.steps.append(("replay", made.position, until))
        position = made.position
        while position < until and wanted(
            JournalRow(position + 1, 0, b""), self.times.get(position + 1, 0)
        ):
            position += 1
        return Bootstrapped(made.snapshot, position, position)

    async def _last_set_back(self, archive: Any, **bounds: int) -> int | None:
        self.backs_asked.append(bounds)
        return self.back

    def state_at(self, moment: Moment) -> tuple[int, int]:
        """Position of the state, and the archive's end."""
        made, end = asyncio.run(self.restore.state_at(moment))
        return made.position, end

    def locate(self, *, allow_loss: bool = False) -> list[str]:
        return asyncio.run(self.restore.locate(3, 9, allow_loss=allow_loss))

    # Last, since it hides the type of that name from what follows.
    async def list(self, prefix: str) -> AsyncIterator[Any]:
        assert prefix == "segments/"
        for key, size in self.sizes.items():
            yield SimpleNamespace(key=key, size_bytes=size)


@pytest.fixture
def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archived:
    return Archived(tmp_path, monkeypatch)


def names(*bounds: tuple[int, int]) -> list[StretchName]:
    return [StretchName(first, last) for first, last in bounds]


@pytest.mark.parametrize(
    ("stretches", "end"),
    [
        ([], 5),
        ([(1, 5)], 5),
        ([(1, 3), (4, 9)], 9),
        ([(6, 9)], 9),
        ([(7, 9)], 5),
        ([(1, 9), (3, 6), (10, 12)], 12),
        ([(1, 6), (8, 12)], 6),
    ],
)
def test_an_archive_ends_where_the_first_row_is_missing(
    archived: Archived, stretches: list[tuple[int, int]], end: int
) -> None:
    archived.snapshot, archived.names = 5, names(*stretches)
    assert archived.state_at(Moment()) == (end, end)


def test_a_position_is_taken_exactly_and_no_snapshot_past_it(archived: Archived) -> None:
    archived.snapshot, archived.names = 5, names((1, 9))
    assert archived.state_at(Moment(position=7)) == (7, 9)
    assert archived.steps == [("bootstrap", {"at_most": 7}), ("replay", 5, 7)]
    assert archived.state_at(Moment(position=9)) == (9, 9)
    with pytest.raises(InvalidRequestError, match="ends at position 9, before position 10"):
        archived.state_at(Moment(position=10))


def test_a_young_cluster_has_rows_alone(archived: Archived) -> None:
    archived.names = names((1, 4))
    assert archived.state_at(Moment()) == (4, 4)
    for later in ([], names((2, 4))):
        archived.names = later
        with pytest.raises(NotFoundError, match="there is no archive from that moment or before"):
            archived.state_at(Moment())


def test_a_time_before_the_first_row_is_none(archived: Archived) -> None:
    archived.names, archived.times = names((1, 2)), {1: 100, 2: 200}
    assert archived.state_at(Moment(time_ms=100)) == (1, 2), "the last row not after it"
    with pytest.raises(NotFoundError, match="did not exist yet"):
        archived.state_at(Moment(time_ms=99))


def test_a_time_takes_no_later_snapshot_and_all_rows_up_to_it(archived: Archived) -> None:
    archived.snapshot, archived.names = 2, names((1, 5))
    archived.times = {3: 100, 4: 100, 5: 101}
    assert archived.state_at(Moment(time_ms=100)) == (4, 5)
    assert archived.steps == [("bootstrap", {"no_later_ms": 100}), ("replay", 2, 5)]
    assert archived.backs_asked == [{"after": 4, "until": 5, "time_ms": 100}]


def test_where_journal_time_was_set_back_rows_above_it_belong_to_the_time(
    archived: Archived,
) -> None:
    archived.snapshot, archived.names, archived.back = 2, names((1, 8)), 6
    archived.times = {3: 100, 4: 900, 5: 900, 6: 100, 7: 100, 8: 101}
    assert archived.state_at(Moment(time_ms=100)) == (7, 8)
    assert archived.steps[1:] == [("replay", 2, 8), ("replay", 3, 8)]


def test_a_setting_back_that_lowered_nothing_is_undone(archived: Archived) -> None:
    archived.snapshot, archived.names, archived.back = 2, names((1, 8)), 6
    archived.times = {3: 100, 4: 900, 5: 900, 6: 900, 7: 900}
    assert archived.state_at(Moment(time_ms=100)) == (3, 8)
    assert archived.steps[2:] == [
        ("replay", 3, 8),
        ("bootstrap", {"at_most": 3}),
        ("replay", 2, 3),
    ]


def test_it_is_undone_without_a_snapshot_too(archived: Archived) -> None:
    archived.names, archived.back = names((1, 8)), 6
    archived.times = {3: 100, 4: 900, 5: 900, 6: 900, 7: 900}
    assert archived.state_at(Moment(time_ms=100)) == (3, 8)
    assert archived.steps[-1] == ("replay", 0, 3)


@pytest.mark.slow
def test_runs_of_deleted_topics_are_cleared_whole_and_no_others(archived: Archived) -> None:
    """However many entries the parent had yet to clear them by: no reader misses them."""
    path = archived.restore.database
    Replica.open(path, LogMachine(), fsync=False, keeps_journal=False).close()
    gone, stays = partition_key(TopicKey(5), 1), partition_key(TopicKey(6), 1)
    counts = {gone: 2 * ROWS_PER_COMMAND + 1, stays: 2}
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO wal_runs VALUES (?, ?, ?, 1, 0, 10, 5, 1, NULL)",
            [(key, at, at + 1) for key, count in counts.items() for at in range(count)],
        )
        first = partition_key(TopicKey(5), 0)
        connection.execute("INSERT INTO leftovers VALUES (?, ?, ?)", (TOPIC, first, bytes(16)))
        connection.commit()
    _Restore._clear_leftovers(archived.restore)
    with closing(sqlite3.connect(path)) as connection:
        left = connection.execute("SELECT DISTINCT partition_key FROM wal_runs").fetchall()
        assert left == [(stays,)]
        assert connection.execute("SELECT count(*) FROM leftovers").fetchone() == (0,)


# -- where the bytes are -----------------------------------------------------------------------


def stored(key: str, size: int = 10) -> StoreSegment:
    return StoreSegment(object_key=key, object_bytes=size, runs=[])


def row_of(position: int, *commands: Any) -> JournalRow:
    entry = Entry(agent=1, epoch=1, n=0, stamp_ms=5, commands=list(commands))
    return JournalRow(position, 5, encode_entry(entry))


def relayed(*commands: Any) -> Relay:
    return Relay(agent=2, epoch=1, n=0, stamp_ms=5, commands=list(commands))


def test_moves_are_found_in_relayed_entries_too() -> None:
    row = row_of(4, Noop(), stored("a"), relayed(stored("b"), Noop()), stored("c"))
    assert [move.object_key for move in _store_segments(row)] == ["a", "b", "c"]
    assert not list(_store_segments(JournalRow(5, 5, b"")))


def test_later_rows_are_not_read_where_nothing_was_in_a_wal(archived: Archived) -> None:
    archived.in_wal = [[]]
    assert archived.locate() == []
    assert not archived.rows_asked


def test_only_moves_whose_objects_are_there_count(archived: Archived) -> None:
    """Others were refused, and their objects never put, or deleted."""
    archived.in_wal = [["t-0 offsets 1 to 2"], []]
    archived.sizes = {"a": 10, "b": 11}
    archived.rows_of = [row_of(4, stored("a"), stored("b"), stored("gone")), row_of(5, Noop())]
    assert archived.locate() == []
    assert archived.moved == ["a"]
    assert archived.rows_asked == [(3, 9)]


@pytest.mark.parametrize("allow_loss", [True, False])
def test_records_that_were_in_a_wal_alone_are_lost_by_leave_only(
    archived: Archived, *, allow_loss: bool
) -> None:
    lost = [f"t-{number} offsets 1 to 2" for number in range(7)]
    archived.in_wal = [lost, lost]
    if allow_loss:
        assert archived.locate(allow_loss=True) == lost
        return
    with pytest.raises(CorruptDataError, match="7 of the runs") as caught:
        archived.locate()
    assert "t-4 " in str(caught.value)
    assert "t-5 " not in str(caught.value), "a few are named"


def test_each_object_of_the_parent_must_be_there_whole(archived: Archived) -> None:
    """What it inherited itself lies in another store."""
    archived.named = [("a", 10, ""), ("b", 20, ""), ("c", 30, "s3://grandparent")]
    archived.sizes = {"a": 10, "b": 20, "unnamed": 5}
    assert asyncio.run(archived.restore.check_objects()) == (3, 60)
    for sizes in ({"a": 10}, {"a": 10, "b": 19}, {"a": 10, "b": 21}):
        archived.sizes = sizes
        with pytest.raises(CorruptDataError, match="of another size: 1, the first is b"):
            asyncio.run(archived.restore.check_objects())


@pytest.mark.parametrize("copies", [True, False])
def test_the_parent_s_own_objects_alone_are_handed_over_before_its_state_is_another_s(
    archived: Archived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, copies: bool
) -> None:
    """What it inherited itself lies in another store, and stays there."""
    archived.snapshot = 5
    archived.in_wal = [[]]
    archived.named = [("a", 10, ""), ("c", 30, "s3://grandparent")]
    archived.sizes = {"a": 10}
    monkeypatch.setattr(point_in_time, "Archive", lambda *_, **__: archived)
    monkeypatch.setattr(point_in_time, "_Restore", type(archived.restore))
    monkeypatch.setattr(point_in_time, "write_snapshot", lambda *_: "info")
    monkeypatch.setattr(_Restore, "read_cluster_id", lambda _: "parent")
    steps: list[Any] = []
    monkeypatch.setattr(
        _Restore,
        "make_another",
        lambda _, cluster_id, **options: steps.append((cluster_id, options["inherits"])),
    )
    monkeypatch.setattr(_Restore, "hand_over", lambda _, take, objects: take(objects, None))
    scratch = tmp_path / "a" / "scratch"
    database = scratch / "restored.sqlite"
    for _ in range(2):
        state = asyncio.run(
            restore_state(
                archived,  # type: ignore[arg-type]
                "s3://parent",
                cluster_id="new",
                moment=Moment(),
                scratch=scratch,
                executor=InlineExecutor(SeededRandom(1)),
                clock=ManualClock(now_ms=5),
                random=SeededRandom(1),
                take=lambda objects, due: steps.append(list(objects)),
                copies=copies,
            )
        )
        assert steps == [[("a", 10)], ("new", not copies)]
        assert (state.parent_cluster_id, state.parent_position) == ("parent", 5)
        assert (state.objects, state.bytes, state.archived_position) == (2, 40, 5)
        assert not database.exists(), "the snapshot alone stays"
        database.touch()
        archived.in_wal = [[]]
        steps.clear()
