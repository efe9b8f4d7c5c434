"""Queries: pages, groups, and reading beside a writer. Look-ups of runs are in the properties."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    CommitOffsets,
    CondemnObjects,
    ExpireProducers,
    ForgetObjects,
    SaveGroup,
    TrimLog,
)
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from support.state_rows import condemned_objects, group_offsets
from unit.state.orders import KEY, TOPIC_ID, TestClock, batch, commit, open_order, store, topic


@pytest.fixture
def order(tmp_path: Path) -> Iterator[LocalJournal]:
    found = open_order(tmp_path, TestClock(5_000))
    found.append([topic()])
    yield found
    found.close()


@pytest.fixture
def queries(order: LocalJournal) -> Iterator[Queries]:
    found = Queries(order._replica.path)
    yield found
    found.close()


def test_runs_come_from_objects_first_and_then_from_the_wal(
    order: LocalJournal, queries: Queries
) -> None:
    order.append([commit(batch(4))])
    order.append([commit(batch(4), position=1000)])
    order.append([store(queries.wal_runs()[:1])])
    assert [(run.base_offset, run.object_key) for run in queries.runs_from(KEY, 0, limit=9)] == [
        (0, "o1"),
        (4, ""),
    ]
    assert [run.base_offset for run in queries.runs_from(KEY, 3, limit=9)] == [0, 4]
    assert [run.base_offset for run in queries.runs_from(KEY, 4, limit=9)] == [4]
    assert queries.runs_from(KEY, 8, limit=9) == []


def test_the_runs_of_an_object_come_by_position(order: LocalJournal, queries: Queries) -> None:
    for position in (0, 1000, 2000):
        order.append([commit(batch(4), position=position)])
    first, between, last = queries.wal_runs()
    order.append([store([first, last], object_key="o")])
    found = queries.runs_of_object("o")
    assert [(run.base_offset, run.position) for run in found] == [(0, 16), (8, 116)]
    order.append([store([between], object_key="p")])
    assert [run.base_offset for run in queries.runs_of_object("p")] == [4]
    assert queries.runs_of_object("other") == []


def test_the_last_generation_is_known_when_its_runs_have_moved(
    order: LocalJournal, queries: Queries
) -> None:
    order.append([commit(batch(4), wal=7)])
    order.append([store(queries.wal_runs())])
    assert queries.wal_runs() == []
    assert queries.last_wal_generation() == 7


def test_an_object_goes_through_condemned_to_forgotten(
    order: LocalJournal, queries: Queries
) -> None:
    order.append([commit(batch(4))])
    order.append([store(queries.wal_runs())])
    order.append([CondemnObjects(keys=["o1"])])
    assert condemned_objects(queries) == []
    order.append([TrimLog(items=[KEY, -1])])
    assert queries.unreferenced_objects(limit=9) == ["o1"]
    order.append([CondemnObjects(keys=["o1", "orphan"])])
    assert condemned_objects(queries) == [("o1", 5_000), ("orphan", 5_000)]
    assert queries.unreferenced_objects(limit=9) == []
    assert queries.object_known("orphan")
    order.append([ForgetObjects(keys=["o1", "orphan"])])
    assert queries.objects("", 9) == []


def test_producers_are_paged_and_expire_unless_they_wrote_again(
    order: LocalJournal, queries: Queries
) -> None:
    order.append([commit(*[batch(1, producer=(number, 0, 0)) for number in range(5)])])
    first = queries.producers_page((-1, -1), limit=2)
    assert [row[1] for row in first] == [0, 1]
    rest = queries.producers_page((first[-1][0], first[-1][1]), limit=9)
    assert [row[1] for row in rest] == [2, 3, 4]
    items = [value for row in (*first, *rest) for value in row]
    order._clock.ms = 6_000  # type: ignore[attr-defined]
    order.append([commit(batch(1, producer=(3, 0, 1)), position=900)])
    order.append([ExpireProducers(items=items)])
    (left,) = queries.producers_of(KEY)
    assert (left.producer_id, left.last_sequence, left.last_timestamp) == (3, 1, 6_000)


def test_groups_are_paged(order: LocalJournal, queries: Queries) -> None:
    for number in range(4):
        order.append(
            [
                SaveGroup(
                    group_id=f"g{number}",
                    generation=number,
                    protocol_type="consumer",
                    empty=number % 2 == 0,
                    state=b"",
                )
            ]
        )
    assert [group.group_id for group in queries.groups_page("g0", limit=2)] == ["g1", "g2"]
    assert queries.group("nobody") is None


def test_an_offset_commit_makes_a_group_that_is_empty_since_then(
    order: LocalJournal, queries: Queries
) -> None:
    order.append(
        [
            CommitOffsets(
                group_id="simple",
                offsets=[OffsetWrite(topic_id=TOPIC_ID, partition=1, offset=1 << 40)],
            )
        ]
    )
    group = queries.group("simple")
    assert group is not None
    assert (group.generation, group.protocol_type, group.empty_since_ms) == (0, "", 5_000)
    assert group_offsets(queries, "simple")[(TOPIC_ID, 1)].offset == 1 << 40


def test_a_file_that_is_not_there_or_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        Queries(tmp_path / "nothing")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(CorruptDataError, match="no tables"):
        Queries(tmp_path / "empty")


def test_position_and_time_are_the_orders(order: LocalJournal, queries: Queries) -> None:
    applied = order.append([])
    assert (queries.position(), queries.time_ms()) == (applied.position, applied.time_ms)
    assert queries.cluster_id() == order.cluster_id
