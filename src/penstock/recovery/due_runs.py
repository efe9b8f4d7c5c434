"""Backups and restores check, before they copy an object, that it holds the runs that the state
names.

Otherwise damage would be copied: the backup's manifest would have a CRC over damaged bytes, and a
damaged copy would be the only one once the parent's is deleted. Bytes that no run names (the index,
trimmed runs) are not checked here but by `verify`.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from typing_extensions import Buffer

from penstock.log.run_walk import DueRun, RunWalk
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.records.sums import partition_seed
from penstock.state.leader_epochs import FIRST_EPOCH
from penstock.state.read.queries import Queries
from penstock.state.rows import StoredRun

DueOf = Callable[[str], list[DueRun]]
"""A function that returns the runs which a state names in an object, by the object's key. Blocking;
one call at a time, from any thread."""


@contextmanager
def due_runs(database: Path) -> Iterator[DueOf]:
    """Yield a function that returns the runs in each object of a state.

    Args:
        database: the state's database, which nothing else uses. For this time it gets an index by
            object, without which each look-up would read all runs.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE INDEX runs_by_object ON object_runs (object_id, position)")
    try:
        yield _Due(database)
    finally:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("DROP INDEX runs_by_object")


class _Due:
    def __init__(self, database: Path) -> None:
        self._database = database
        with closing(Queries(database)) as state:
            self._epochs = state.epoch_starts()
            self._starts = {key: start for key, start, _ in state.heads()}
            clean = state.clean_rows(list(self._starts))
            self._clean_ends = {key: row.clean_end for key, row in clean.items()}
            self._seeds: dict[PartitionKey, int] = {}
            self._names: dict[PartitionKey, str] = {}
            for topic_key, topic_id, name, partitions, *_ in state.topic_rows():
                for number in range(partitions):
                    named = partition_key(TopicKey(topic_key), number)
                    self._seeds[named] = partition_seed(topic_id, number)
                    self._names[named] = f"{name}-{number}"

    def __call__(self, key: str) -> list[DueRun]:
        with closing(Queries(self._database)) as state:
            runs = state.runs_of_object(key)
        return [
            DueRun(
                run,
                self._clean_ends.get(run.partition_key, 0),
                self._epochs.get(run.partition_key, FIRST_EPOCH),
                self._seeds.get(run.partition_key),
                self._names.get(run.partition_key, "(a deleted topic)"),
            )
            for run in runs
            # Rows of deleted or trimmed runs that aren't cleared yet don't count.
            if run.end_offset > self._starts.get(run.partition_key, run.end_offset)
        ]


def check_object(key: str, parts: Sequence[Buffer], due: Sequence[DueRun], operation: str) -> None:
    """Check all runs that a state names in an object.

    Args:
        parts: the object's bytes.
        operation: the caller's operation, for the error.

    Raises:
        CorruptDataError: some bytes differ from what the journal ordered there.
    """
    for one in due:
        walk = RunWalk(one)
        for piece in _slices(parts, one.run):
            walk.add(piece)
        fault = walk.end()
        if fault is not None:
            raise CorruptDataError(
                operation,
                f"{key} at byte {fault.position}",
                f"{one.partition} offset {fault.offset}: {fault.detail}",
                "put the object back from a backup or an older version in the bucket;"
                " penstock verify names everything that is damaged",
            )


def _slices(parts: Sequence[Buffer], run: StoredRun) -> Iterator[memoryview]:
    """Yield the bytes of a run, which may span parts."""
    start, end = run.position, run.position + run.length
    for part in parts:
        view = memoryview(part).cast("B")
        if start < len(view) and end > 0:
            yield view[max(start, 0) : end]
        start, end = start - len(view), end - len(view)
