"""What must lie in an object, by the state that names its runs: for what copies objects whole,
backups and restores.

What would be copied damaged gets a CRC of its own in a backup's manifest, or is the only copy once
the parent's is deleted. Bytes that no run names (index, what was trimmed) are not looked at:
`verify` does.
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
"""The runs that a state names in an object, by the object's key. Blocking; one call at a time, from
any thread."""


@contextmanager
def due_runs(database: Path) -> Iterator[DueOf]:
    """Return what lies in each object of a state.

    Args:
        database: of a state that nothing else uses. Meanwhile it has an index by object, without
            which each look-up would read all runs.
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
            for topic_key, topic_id, name, partitions, _ in state.topic_rows():
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
            # What was deleted or trimmed and not cleared yet is named no more.
            if run.end_offset > self._starts.get(run.partition_key, run.end_offset)
        ]


def check_object(key: str, parts: Sequence[Buffer], due: Sequence[DueRun], operation: str) -> None:
    """Check all runs that a state names in an object.

    Args:
        parts: the object's bytes.
        operation: what is being done, for the error.

    Raises:
        CorruptDataError: some bytes aren't what the journal ordered there.
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
                " penstock verify names all that is damaged",
            )


def _slices(parts: Sequence[Buffer], run: StoredRun) -> Iterator[memoryview]:
    """The bytes of a run, wherever parts end."""
    start, end = run.position, run.position + run.length
    for part in parts:
        view = memoryview(part).cast("B")
        if start < len(view) and end > 0:
            yield view[max(start, 0) : end]
        start, end = start - len(view), end - len(view)
