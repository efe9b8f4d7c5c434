"""Leader epochs: where each began, whatever was restored when, and what a restore does."""

import copy
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.epochs import EPOCH_ORIGIN_MS
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.state.commands import (
    CommitRuns,
    CreatePartitions,
    DeleteTopic,
    RunCommit,
    SetFeatureLevel,
)
from penstock.state.leader_epochs import (
    begin_leader_epoch,
    end_of_epoch,
    epoch_of_offset,
    epoch_starts,
)
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from penstock.state.restored import begin_restored
from penstock.state.schema import FORMAT_VERSION, SCHEMA
from support.simulated.randomness import SeededRandom
from unit.state.orders import KEY, TOPIC_ID, batch, commit, open_order, topic


@dataclass
class NaiveLog:
    """A partition as the epoch of each of its offsets, and the number of restores."""

    epochs: list[int] = field(default_factory=list)
    current: int = 0

    def end_of_epoch(self, asked: int) -> tuple[int, int] | None:
        if not 0 <= asked <= self.current:
            return None
        if asked == self.current:
            return asked, len(self.epochs)
        floor = max((epoch for epoch in self.epochs if epoch <= asked), default=asked)
        return floor, sum(epoch <= asked for epoch in self.epochs)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("back up"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 5)),
        st.tuples(st.just("time passes"), st.integers(1, 9)),
    ),
    max_size=20,
)


@given(STEPS)
def test_epochs_end_where_a_naive_log_says(steps: list[tuple[str, int]]) -> None:
    """Any backup is restored, however old, and what was restored is backed up."""
    log = NaiveLog()
    state = sqlite3.connect(":memory:")
    try:
        for statement in SCHEMA:
            state.execute(statement)
        state.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        state.execute("INSERT INTO partitions VALUES (?, 0, 0, 0)", (KEY,))
        state.commit()
        backups = [(copy.deepcopy(log), state.serialize())]
        seconds = 0
        for step, number in steps:
            if step == "append":
                log.epochs += [log.current] * number
                state.execute("UPDATE partitions SET next_offset = ?", (len(log.epochs),))
                state.commit()
            elif step == "time passes":
                seconds += number
            elif step == "back up":
                backups.append((copy.deepcopy(log), state.serialize()))
            else:
                log, data = copy.deepcopy(backups[number % len(backups)])
                log.current = max(log.current + 1, seconds)
                state.close()
                state = sqlite3.connect(":memory:")
                state.deserialize(data)
                begin_leader_epoch(state, floor=seconds)
                state.commit()
            rows = state.execute("SELECT epoch, start_offset FROM leader_epochs ORDER BY epoch")
            starts = epoch_starts(rows.fetchall())
            for asked in range(-1, log.current + 2):
                found = end_of_epoch(starts, asked, end_offset=len(log.epochs))
                assert found == log.end_of_epoch(asked), (starts, asked)
            for offset, epoch in enumerate([*log.epochs, log.current]):
                assert epoch_of_offset(starts, offset) == epoch
    finally:
        state.close()


def test_what_kafkas_cache_answers() -> None:
    """The cases of LeaderEpochFileCacheTest."""
    starts = ((2, 6), (5, 7), (6, 9))
    assert end_of_epoch(starts, 6, end_offset=11) == (6, 11)
    assert end_of_epoch(starts, 5, end_offset=11) == (5, 9)
    assert end_of_epoch(starts, 4, end_offset=11) == (2, 7)
    assert end_of_epoch(starts, 2, end_offset=11) == (2, 7)
    assert end_of_epoch(starts, 1, end_offset=11) == (1, 6)
    assert end_of_epoch(starts, 7, end_offset=11) is None
    assert end_of_epoch(starts, -1, end_offset=11) is None


def restored(path: Path) -> None:
    """What a restore does to a state, in the first second that there is."""
    with closing(sqlite3.connect(path / "metadata.sqlite")) as connection, connection:
        begin_restored(connection, now_ms=EPOCH_ORIGIN_MS, random=SeededRandom(1))


def rows(order: LocalJournal, path: Path) -> list[tuple[int, int, int]]:
    order.commit()
    with closing(sqlite3.connect(path / "metadata.sqlite")) as connection:
        return connection.execute("SELECT * FROM leader_epochs ORDER BY 1, 2").fetchall()


def test_an_epoch_begins_at_each_partitions_end_and_goes_with_its_topic(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    order.append([topic(), commit(batch(3))])
    order.close()
    restored(tmp_path)
    order = open_order(tmp_path)
    assert rows(order, tmp_path) == [(KEY, 1, 3), (KEY + 1, 1, 0)]
    order.append(
        [commit(batch(2), position=100), CreatePartitions(topic_id=TOPIC_ID, partitions=3)]
    )
    order.append([topic("other", b"other-topic-id-0", partitions=1)])
    order.close()
    # Nothing was appended to the others in epoch 1.
    restored(tmp_path)
    order = open_order(tmp_path)
    with closing(Queries(tmp_path / "metadata.sqlite")) as queries:
        other = partition_key(TopicKey(queries.topic_rows()[-1][0]), 0)
    assert rows(order, tmp_path) == [
        (KEY, 1, 3),
        (KEY, 2, 5),
        (KEY + 1, 2, 0),
        (KEY + 2, 2, 0),
        (other, 2, 0),
    ]
    with closing(Queries(tmp_path / "metadata.sqlite")) as queries:
        assert queries.leader_epoch() == 2
        assert queries.epoch_starts() == {
            KEY: ((0, 0), (1, 3), (2, 5)),
            KEY + 1: ((2, 0),),
            KEY + 2: ((2, 0),),
            other: ((2, 0),),
        }
    order.append([DeleteTopic(topic_id=TOPIC_ID)])
    assert rows(order, tmp_path) == [(other, 2, 0)]
    order.close()


def test_a_topic_that_is_made_after_a_restore_begins_with_its_epoch(tmp_path: Path) -> None:
    open_order(tmp_path).close()
    restored(tmp_path)
    order = open_order(tmp_path)
    order.append([topic(partitions=1)])
    assert [row[1:] for row in rows(order, tmp_path)] == [(1, 0)]
    order.close()


def test_what_is_read_of_a_raw_object_is_labelled_with_the_epoch_of_its_entry(
    tmp_path: Path,
) -> None:
    order = open_order(tmp_path)
    order.append([SetFeatureLevel(level=2), topic(partitions=1), raw_commit("before")])
    order.close()
    restored(tmp_path)
    order = open_order(tmp_path)
    order.append([raw_commit("after"), commit(batch(1))])
    order.commit()
    with closing(Queries(tmp_path / "metadata.sqlite")) as queries:
        found = queries.runs_from(PartitionKey(KEY), 0, limit=9)
        assert [(run.raw, run.leader_epoch) for run in found] == [(1, 0), (2, 1), (0, 1)]
        assert [row.raw for row in queries.objects("", 9)] == [2, 1]
    order.close()


def raw_commit(key: str) -> CommitRuns:
    runs = [RunCommit(partition_key=KEY, position=16, batches=batch(2))]
    return CommitRuns(runs=runs, object_key=key, object_bytes=400, raw=True)


LEADER_EPOCHS_VERSION = 4
