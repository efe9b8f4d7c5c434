"""Checking the objects that a backup copies, by the copy of the state that the backup is of.

What would be copied damaged gets a CRC of its own in the manifest, and would be restored as if it
were whole. Bytes that no run names (index, what was trimmed) are not looked at: `verify` does.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from typing_extensions import Buffer

from penstock.log.checking import OTHERS, Fault, Pieces, Rules, check_and_label, ends_early
from penstock.metadata.leader_epochs import FIRST_EPOCH
from penstock.metadata.queries import Queries
from penstock.metadata.rows import StoredRun
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.records.sums import partition_seed


class CopiedObjects:
    """Blocking: pool threads' work, one call at a time.

    Args:
        database: a copy of a state that nothing else uses, and that is thrown away: it gets an
            index by object, without which each look-up would read all runs.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE INDEX runs_by_object ON object_runs (object_id, position)")
        with closing(Queries(database)) as copy:
            self._epochs = copy.epoch_starts()
            keys = [key for key, _, _ in copy.heads()]
            self._clean_ends = {key: row.clean_end for key, row in copy.clean_rows(keys).items()}
            self._seeds: dict[PartitionKey, int] = {
                partition_key(TopicKey(topic_key), number): partition_seed(topic_id, number)
                for topic_key, topic_id, _, partitions, _ in copy.topic_rows()
                for number in range(partitions)
            }

    def check(self, key: str, parts: Sequence[Buffer]) -> None:
        """Check all runs that the state names in an object.

        Args:
            parts: the object's bytes.

        Raises:
            CorruptDataError: some aren't what the journal ordered there.
        """
        with closing(Queries(self._database)) as copy:
            runs = copy.runs_of_object(key)
        for run in runs:
            fault = self._fault(run, parts)
            if fault is not None:
                raise CorruptDataError(
                    "back up",
                    f"{key} at byte {fault.position}",
                    f"offset {fault.offset} of partition key {run.partition_key}: {fault.detail}",
                    "put the object back from a backup or an older version in the bucket;"
                    " penstock verify names all that is damaged",
                )

    def _fault(self, run: StoredRun, parts: Sequence[Buffer]) -> Fault | None:
        key = run.partition_key
        seed = self._seeds.get(key)
        if run.raw:
            data = memoryview(bytearray(b"".join(_slices(parts, run))))
            fault = check_and_label(data, run, seed)
            return None if fault is None else fault._replace(position=run.position + fault.position)
        epochs = self._epochs.get(key, FIRST_EPOCH)
        rules = Rules(run.end_offset, self._clean_ends.get(key, 0), epochs, seed)
        pieces = Pieces(rules, run.base_offset, run.position)
        for piece in _slices(parts, run):
            pieces.add(piece)
            if pieces.fault is not None:
                return pieces.fault
        fault = pieces.finish() or ends_early(run, pieces)
        if fault is None and seed is not None and run.sum not in {None, pieces.sum}:
            fault = Fault(run.position, run.base_offset, run.end_offset, OTHERS)
        return fault


def _slices(parts: Sequence[Buffer], run: StoredRun) -> Iterator[memoryview]:
    """The bytes of a run, wherever parts end."""
    start, end = run.position, run.position + run.length
    for part in parts:
        view = memoryview(part).cast("B")
        if start < len(view) and end > 0:
            yield view[max(start, 0) : end]
        start, end = start - len(view), end - len(view)
