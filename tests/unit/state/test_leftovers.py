"""Deletions of many rows: they take effect at once, and end in bounded entries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import PartitionKey
from penstock.state import leftovers
from penstock.state.answers import Done, LeftoversCleared, Refusal, Refused
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    AnyCommand,
    ClearLeftovers,
    CommitOffsets,
    CommitRuns,
    CreateTopic,
    DeleteTopic,
    RunCommit,
    TrimLog,
)
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from penstock.state.schema import PIPELINE_LEVEL
from unit.state.orders import KEY, TOPIC_ID, batch, commit, open_order, store, topic

OTHER_ID = b"x" * 16
OTHER_KEY = PartitionKey(2 << 20)
ROWS_MAX = 3


@contextmanager
def few_rows() -> Iterator[None]:
    """An entry may delete few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "ROWS_PER_COMMAND", ROWS_MAX)
        yield


def clear_all(order: LocalJournal) -> int:
    rows = 0
    for _ in range(10_000):
        (answer,) = order.append([ClearLeftovers(rows_max=1_000)]).outcome.answers
        assert isinstance(answer, LeftoversCleared), answer
        assert answer.rows <= ROWS_MAX
        rows += answer.rows
        if not answer.is_left:
            return rows
    raise AssertionError("it never ends")


def rows_of(order: LocalJournal, table: str) -> list[Any]:
    with closing(Queries(order._replica.path)) as queries:
        return queries._execute(f"SELECT * FROM {table}")


def test_a_deleted_topic_is_gone_at_once_and_its_rows_in_bounded_entries(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    for n in range(20):
        order.append([commit(batch(1, producer=(n, 0, 0)), key=KEY, position=100 * n)])
    order.append(
        [
            CommitOffsets(
                group_id="g", offsets=[OffsetWrite(topic_id=TOPIC_ID, partition=0, offset=3)]
            )
        ]
    )
    with few_rows():
        assert order.append([DeleteTopic(topic_id=TOPIC_ID)]).outcome.answers == [Done()]
        # The name is free, and what another topic of that name holds stays.
        order.append([topic(topic_id=OTHER_ID), commit(batch(7), key=OTHER_KEY, wal=2)])
        refused = order.append([commit(batch(1), position=9_000)]).outcome.answers[0]
        assert refused.runs == [[2, int(Refusal.UNKNOWN_PARTITION)]]  # type: ignore[union-attr]
        assert len(rows_of(order, "wal_runs")) == 20 - ROWS_MAX + 1
        assert len(rows_of(order, "leftovers")) == 1
        assert clear_all(order) == 20 - ROWS_MAX + 20 + 1
    assert rows_of(order, "producers") == rows_of(order, "group_offsets") == []
    assert [row[:3] for row in rows_of(order, "wal_runs")] == [(OTHER_KEY, 0, 7)]
    assert rows_of(order, "leftovers") == []
    order.close()


@pytest.mark.parametrize("in_object", [False, True])
def test_a_run_that_a_log_start_cuts_in_two_stays(tmp_path: Path, in_object: bool) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    for n in range(3):
        run = RunCommit(partition_key=KEY, position=100 * n, batches=batch(4))
        key = f"o{n}" if in_object else ""
        order.append([CommitRuns(runs=[run], wal=0 if key else 1, object_key=key)])
    order.append([TrimLog(items=[KEY, 6])])
    assert clear_all(order) == 0
    with closing(Queries(order._replica.path)) as queries:
        found = queries.runs_from(KEY, 0, limit=10)
        assert [(run.base_offset, run.end_offset) for run in found] == [(4, 8), (8, 12)]
        assert queries.partition_bytes([KEY]) == {KEY: sum(run.length for run in found)}
    order.close()


def test_a_log_start_rises_at_once_and_look_ups_leave_out_what_lies_below(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    for n in range(12):
        # The times fall: what is trimmed has the newest records.
        order.append([commit(batch(1, newer=1_000 - n), position=100 * n)])
    with few_rows():
        order.append([TrimLog(items=[KEY, 10])])
        with closing(Queries(order._replica.path)) as queries:
            assert queries.trims_left() == {KEY}
            assert queries.heads()[0] == (KEY, 10, 12)
            found = queries.first_run_at_time(KEY, 0)
            assert found is not None
            assert found.base_offset == 10
            newest = queries.run_with_max_timestamp(KEY)
            assert newest is not None
            assert newest.base_offset == 10
            assert (
                queries.run_with_max_timestamp(
                    KEY, before=queries.run_with_max_timestamp(KEY, before=newest)
                )
                is None
            )
            assert [row[1] for row in queries.run_rows((-1, -1), limit=99).rows] == [10, 11]
            assert [row[1] for row in queries.run_rows_within(KEY, 0, 99, limit=99).rows] == [
                10,
                11,
            ]
            assert queries.partition_bytes([KEY]) == {KEY: 900}
        assert clear_all(order) == 10 - ROWS_MAX
    with closing(Queries(order._replica.path)) as queries:
        assert queries.partition_bytes([KEY]) == {KEY: 200}
        assert not queries.has_leftovers()
    order.close()


def test_runs_that_are_moved_meanwhile_are_cleared_where_they_lie_then(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic()])
    for n in range(12):
        order.append([commit(batch(1), position=100 * n)])
    with closing(Queries(order._replica.path)) as queries:
        runs = queries.wal_runs()
    with few_rows():
        order.append([DeleteTopic(topic_id=TOPIC_ID)])
        order.append([store(runs[6:])])
        with closing(Queries(order._replica.path)) as queries:
            assert queries.unreferenced_objects(limit=9) == []
            assert queries.leftover_runs() == {"o1": 1}
        clear_all(order)
    with closing(Queries(order._replica.path)) as queries:
        assert queries.unreferenced_objects(limit=9) == ["o1"]
    order.close()


def test_below_the_level_everything_goes_in_one_entry(tmp_path: Path) -> None:
    order = open_order(tmp_path, level=PIPELINE_LEVEL)
    order.append([topic()])
    for n in range(20):
        order.append([commit(batch(1, producer=(n, 0, 0)), position=100 * n)])
    with few_rows():
        order.append([TrimLog(items=[KEY, 10])])
        assert len(rows_of(order, "wal_runs")) == 10
        order.append([DeleteTopic(topic_id=TOPIC_ID)])
        assert rows_of(order, "wal_runs") == rows_of(order, "producers") == []
        (refused,) = order.append([ClearLeftovers(rows_max=1)]).outcome.answers
        assert isinstance(refused, Refused)
        assert refused.reason is Refusal.LEVEL_NOT_ON
    order.close()


commands = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("store"), st.integers(0, 3)),
    st.tuples(st.just("trim"), st.integers(0, 3), st.integers(0, 12)),
    st.tuples(st.just("delete"), st.integers(1, 2)),
    st.tuples(st.just("clear")),
)


@given(steps=st.lists(commands, max_size=25))
def test_readers_see_what_they_see_where_nothing_is_left(steps: list[tuple[Any, ...]]) -> None:
    """A twin below the level deletes all at once; both are asked the same after each step."""
    with tempfile.TemporaryDirectory() as folder, few_rows():
        orders = []
        for name, level in (("left", 4), ("whole", PIPELINE_LEVEL)):
            directory = Path(folder) / name
            directory.mkdir()
            orders.append(open_order(directory, level=level))
        left, whole = orders
        both(orders, CreateTopic(name="t1", topic_id=b"1" * 16, partitions=2))
        both(orders, CreateTopic(name="t2", topic_id=b"2" * 16, partitions=2))
        keys = [PartitionKey(t << 20 | p) for t in (1, 2) for p in (0, 1)]
        position = 0
        objects = 0
        for step, *arguments in steps:
            match step:
                case "commit":
                    index, count, in_object = arguments
                    batches = [v for n in range(count) for v in batch(1, newer=n - 1)]
                    run = RunCommit(partition_key=keys[index], position=position, batches=batches)
                    objects += 1
                    place = {"object_key": f"c{objects}"} if in_object else {"wal": 1}
                    both(orders, CommitRuns(runs=[run], **place))  # type: ignore[arg-type]
                    position += 1_000
                case "store":
                    with closing(Queries(left._replica.path)) as queries:
                        all_runs = queries.wal_runs()
                    listed = [run for run in all_runs if run.partition_key == keys[arguments[0]]]
                    if listed:
                        objects += 1
                        both(orders, store(listed, object_key=f"s{objects}"))
                case "trim":
                    both(orders, TrimLog(items=[keys[arguments[0]], arguments[1]]))
                case "delete":
                    both(orders, DeleteTopic(topic_id=b"%d" % arguments[0] * 16))
                case _:
                    left.append([ClearLeftovers(rows_max=9)])
            compare(left, whole, keys, cleared=False)
        clear_all(left)
        compare(left, whole, keys, cleared=True)
        for order in orders:
            order.close()


def both(orders: list[LocalJournal], command: AnyCommand) -> None:
    for order in orders:
        order.append([command])


def compare(
    left: LocalJournal, whole: LocalJournal, keys: list[PartitionKey], *, cleared: bool
) -> None:
    with (
        closing(Queries(left._replica.path)) as one,
        closing(Queries(whole._replica.path)) as two,
    ):
        heads = one.heads()
        assert heads == two.heads()
        for key, start, end in heads:
            assert runs(one, key, start) == runs(two, key, start)
            for find in (Queries.first_run_at_time,):
                assert place(find(one, key, 0)) == place(find(two, key, 0))
            assert place(one.run_with_max_timestamp(key)) == place(two.run_with_max_timestamp(key))
            within = [q.run_rows_within(key, 0, end + 1, limit=99).rows for q in (one, two)]
            assert [row[1:3] for row in within[0]] == [row[1:3] for row in within[1]]
        pages = [q.run_rows((-1, -1), limit=999).rows for q in (one, two)]
        assert [row[:3] for row in pages[0]] == [row[:3] for row in pages[1]]
        if cleared:
            assert one.partition_bytes(None) == two.partition_bytes(None)
            assert sorted((row.key, row.live_runs) for row in one.objects("", 999)) == sorted(
                (row.key, row.live_runs) for row in two.objects("", 999)
            )
            assert len(one.wal_runs()) == len(two.wal_runs())


def runs(queries: Queries, key: PartitionKey, offset: int) -> list[tuple[int, int, str]]:
    return [
        (run.base_offset, run.end_offset, run.object_key)
        for run in queries.runs_from(key, offset, limit=999)
    ]


def place(run: Any) -> tuple[int, str] | None:
    return None if run is None else (run.base_offset, run.object_key)
