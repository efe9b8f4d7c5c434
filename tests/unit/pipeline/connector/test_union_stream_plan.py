"""A stream of table and log has each record once, whatever happens between its batches."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.pipeline.api_messages import PartitionState, TopicState
from penstock.pipeline.connector import stream_plan
from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.connector.offsets import (
    StreamOffsets,
    TableOffsets,
    TopicOffsets,
    from_json,
    to_json,
)
from penstock.pipeline.connector.union_stream_plan import (
    advance_table,
    check_log_alone,
    check_same_view,
    files_between,
)
from penstock.pipeline.tables.stored_order import StoredFile, in_order, sum_of
from penstock.pipeline.tables.union_plan import plan_union
from support.examples import examples

TOPIC = "0" * 32
TABLE = "penstock.t"
FIRM = Losses(allowed=False)
Place = tuple[int, int]
"""Partition and offset."""


@dataclass
class World:
    """A log whose partitions grow in number, and its table: snapshots of files, which are lists of
    places."""

    starts: list[int] = field(default_factory=lambda: [0])
    ends: list[int] = field(default_factory=lambda: [0])
    held: dict[int, int] = field(default_factory=dict)
    snapshots: dict[int, dict[str, list[Place]]] = field(default_factory=dict)
    newest: int = 0
    files_made: int = 0
    pinned: int | None = None
    """The snapshot that a pin holds, with the log: None: there is no pin."""
    followed: dict[int, int] = field(default_factory=dict)
    """Next offsets of a stream that needs no pin any more."""

    def topic(self) -> TopicState:
        partitions = [
            PartitionState(log_start=start, high_watermark=end, size_bytes=end - start)
            for start, end in zip(self.starts, self.ends, strict=True)
        ]
        return TopicState(name="t", topic_id=TOPIC, configs={}, partitions=partitions)

    def step(self, what: str, partition: int, by: int) -> None:
        partition %= len(self.ends)
        match what:
            case "produce":
                self.ends[partition] += by
            case "grow":
                self.starts.append(0)
                self.ends.append(by)
            case "commit":
                self._commit(by)
            case "join":
                rows = [place for file in self.files().values() for place in file]
                if rows:
                    self._become({self._name(): rows})
            case "expire":
                kept = {self.newest, self.pinned}
                self.snapshots = {n: files for n, files in self.snapshots.items() if n in kept}
            case "retention" if self.pinned is None:
                # It waits for the table, and so takes what the table holds alone; a stream that
                # is slower than that meets an error, which is not what is asked here.
                most = self.held.get(partition, self.starts[partition])
                if self.followed:
                    most = min(most, self.followed.get(partition, 0))
                self.starts[partition] = max(
                    self.starts[partition], min(most, self.starts[partition] + by)
                )

    def files(self, snapshot: int | None = None) -> dict[str, list[Place]]:
        return self.snapshots.get(self.newest if snapshot is None else snapshot, {})

    def stored(self, snapshot: int) -> list[StoredFile]:
        """In no order of use, as manifests are."""
        found = [
            StoredFile(path=path, least_timestamp=rows[0][1] % 3 or None, rows=len(rows))
            for path, rows in self.files(snapshot).items()
        ]
        return found[::-1]

    def _commit(self, by: int) -> None:
        added = {}
        for partition, end in enumerate(self.ends):
            begin = self.held.get(partition, self.starts[partition])
            self.held[partition] = max(begin, min(end, begin + by))
            if rows := [(partition, offset) for offset in range(begin, self.held[partition])]:
                added[self._name()] = rows
        self._become({**self.files(), **added})

    def _become(self, files: dict[str, list[Place]]) -> None:
        self.newest += 1
        self.snapshots[self.newest] = files

    def _name(self) -> str:
        self.files_made += 1
        # Names say nothing of when files were made.
        return f"{self.files_made * 7919 % 10_007:05}.parquet"


@dataclass
class Query:
    """A stream and its checkpoint, which is JSON; rows of a batch count once it is committed."""

    world: World
    kept: list[str] = field(default_factory=list)
    """Ends of batches; the last one may not be committed."""
    committed: int = 0
    rows: list[Place] = field(default_factory=list)

    def begin(self) -> StreamOffsets:
        world = self.world
        world.pinned = world.newest
        pinned = world.topic().partitions
        plan = plan_union(
            TOPIC, held=world.held, epochs={}, pinned=pinned, now=world.topic().partitions
        )
        files = world.stored(world.newest)
        ordered = [files[place] for place in in_order(files)]
        return StreamOffsets(
            topics={"t": TopicOffsets(topic_id=TOPIC, partitions=plan.begins)},
            initial=True,
            table=TableOffsets(
                name=TABLE,
                snapshot_id=world.newest,
                files=len(ordered),
                files_sum=sum_of(ordered),
                read=0,
            ),
        )

    def start(self) -> StreamOffsets:
        if not self.committed:
            return self.begin() if not self.kept else self._begin_again()
        return from_json(json.loads(self.kept[self.committed - 1]))

    def _begin_again(self) -> StreamOffsets:
        """A start is asked for again by a query that died in its first batch; what it was then
        is what the batch's end says, whose pin goes on."""
        pinned = self.world.pinned
        start = self.begin()
        self.world.pinned = pinned
        return start

    def plan(self, rows_max: int | None, files_max: int) -> bool:
        """Plan a batch, unless one waits to be run again. Returns: whether there is one."""
        if len(self.kept) > self.committed:
            return True
        start = self.start()
        assert start.table is not None
        if start.table.is_read:
            plain = replace(start, table=None)
            end = stream_plan.advance(plain, [self.world.topic()], FIRM, rows_max=rows_max)
            if end is plain:
                return False
            end = replace(end, table=start.table)
        else:
            end = advance_table(
                start, self._ordered(start.table), rows_max=rows_max, files_max=files_max
            )
        self.kept.append(json.dumps(to_json(end)))
        return True

    def batch(self) -> list[Place]:
        """The rows of the batch that was planned."""
        start, end = self.start(), from_json(json.loads(self.kept[-1]))
        assert end.table is not None
        if places := files_between(start, end):
            ordered = self._ordered(end.table)
            files = self.world.files(end.table.snapshot_id)
            return [row for place in places for row in files[ordered[place].path]]
        ranges = stream_plan.ranges(
            replace(start, table=None), replace(end, table=None), [self.world.topic()], FIRM
        )
        return [(one.partition, offset) for one in ranges for offset in range(one.start, one.end)]

    def commit(self) -> None:
        self.rows += self.batch()
        self.committed = len(self.kept)
        known = from_json(json.loads(self.kept[-1]))
        assert known.table is not None
        if known.table.is_read:
            self.world.pinned = None
            self.world.followed = dict(known.topics["t"].partitions)

    def _ordered(self, table: TableOffsets) -> list[StoredFile]:
        files = self.world.stored(table.snapshot_id)
        ordered = [files[place] for place in in_order(files)]
        assert (len(ordered), sum_of(ordered)) == (table.files, table.files_sum)
        return ordered


WHAT = ["produce", "grow", "commit", "join", "expire", "retention"]
DIED_PLANNING, DIED_READING, DONE = "before its end was kept", "before it was committed", "done"
steps = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 2), st.integers(1, 5)), max_size=8)
batches = st.lists(
    st.tuples(
        st.none() | st.integers(1, 6),
        st.integers(1, 3),
        st.sampled_from([DIED_PLANNING, DIED_READING, DONE, DONE]),
        steps,
    ),
    max_size=10,
)


@given(before=steps, batches=batches)
@settings(max_examples=examples(2))
def test_each_record_is_in_the_stream_once(
    before: list[tuple[str, int, int]],
    batches: list[tuple[int | None, int, str, list[tuple[str, int, int]]]],
) -> None:
    world = World()
    for step in before:
        world.step(*step)
    query = Query(world)
    for rows_max, files_max, outcome, between in batches:
        if query.plan(rows_max, files_max):
            first = query.batch()
            for step in between:
                world.step(*step)
            assert sorted(query.batch()) == sorted(first), "run again it is the same batch"
            if outcome == DONE:
                query.commit()
            elif outcome == DIED_PLANNING:
                del query.kept[query.committed :]
        else:
            for step in between:
                world.step(*step)
    while query.plan(None, 2):
        query.commit()
    assert len(query.rows) == len(set(query.rows))
    assert set(query.rows) == set(places(world))


def places(world: World) -> list[Place]:
    return [(number, offset) for number, end in enumerate(world.ends) for offset in range(end)]


def file(path: str, rows: int = 10, timestamp: int | None = 0) -> StoredFile:
    return StoredFile(path=path, least_timestamp=timestamp, rows=rows)


def at(read: int, files: int = 3, **changes: object) -> StreamOffsets:
    table = TableOffsets(name=TABLE, snapshot_id=9, files=files, files_sum=0, read=read)
    return StreamOffsets(
        topics={"t": TopicOffsets(topic_id=TOPIC, partitions={0: 5})},
        table=replace(table, **changes),  # type: ignore[arg-type]
    )


def test_files_go_by_their_least_timestamp_and_then_by_path() -> None:
    files = [file("b"), file("c", timestamp=-5), file("a"), file("d", timestamp=None)]
    assert in_order(files) == [3, 1, 2, 0]
    assert sum_of(files) != sum_of(files[::-1])
    assert sum_of([file("ab")]) != sum_of([file("a"), file("b")])


@pytest.mark.parametrize(
    ("rows_max", "files_max", "read"),
    [(None, 9, 3), (None, 2, 2), (1, 9, 1), (20, 9, 2), (29, 9, 2), (30, 9, 3)],
)
def test_a_batch_has_as_many_files_as_its_limits_and_one_at_least(
    rows_max: int | None, files_max: int, read: int
) -> None:
    files = [file("a"), file("b"), file("c")]
    end = advance_table(at(0), files, rows_max=rows_max, files_max=files_max)
    assert end == at(read)
    assert files_between(at(0), end) == range(read)


def test_the_first_batch_is_what_its_end_says() -> None:
    then, now = at(2, snapshot_id=9), replace(at(0, snapshot_id=10), initial=True)
    assert files_between(now, then) == range(2)


def test_a_batch_of_two_snapshots_is_refused() -> None:
    with pytest.raises(ConflictError, match=r"file 1 of snapshot 9 .* file 2 of snapshot 8"):
        files_between(at(1), at(2, snapshot_id=8))
    with pytest.raises(ConflictError, match="begins at file 2"):
        files_between(at(2), at(1))


def test_a_checkpoint_is_of_one_view() -> None:
    assert check_same_view(at(1), topic="t", table=TABLE) == at(1).table
    log = replace(at(1), table=None)
    assert check_log_alone(log) is log
    with pytest.raises(InvalidRequestError, match=r"it is of table penstock.t, too .option view"):
        check_log_alone(at(1))
    with pytest.raises(InvalidRequestError, match="it is of the log alone"):
        check_same_view(log, topic="t", table=TABLE)
    with pytest.raises(InvalidRequestError, match=r"table penstock.t, and the options say other"):
        check_same_view(at(1), topic="t", table="other")
    with pytest.raises(InvalidRequestError, match="topic t, and the options say u"):
        check_same_view(at(1), topic="u", table=TABLE)
