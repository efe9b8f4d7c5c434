"""One Iceberg commit: files, offsets and dead letters become visible together, or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from penstock.pipeline.tables.catalog import (
    ancestry,
    end_retries,
    lineage_of,
    summary_of,
    translated,
)
from penstock.pipeline.tables.dead_letters import (
    DEAD_LETTERS_PROPERTY,
    DeadLetters,
    encode_dead_letters,
)
from penstock.pipeline.tables.files import TableFiles, files_options
from penstock.pipeline.tables.offsets import (
    COMMIT_PROPERTY,
    FOLDER,
    INLINE_BYTES_MAX,
    OFFSETS_PROPERTY,
    SILENT_PROPERTY,
    Held,
    Holdings,
    encode_file,
    encode_offsets,
    encode_silent,
    find_held,
)
from penstock.pipeline.tables.parquet import WrittenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A commit's content. `name`: random, the commit's own; `after`: the offsets held after the
    commit, `before`: those before it; `removed`: data files that `added` files replace."""

    name: str
    after: Holdings
    before: Holdings
    added: Sequence[WrittenFile]
    removed: Sequence[DataFile] = field(default=())
    letters: DeadLetters | None = None


def commit_change(table: Table, change: Change) -> int:
    """Commit on top of the snapshot that `table` was loaded with; the new snapshot's id.

    Raises:
        ConflictError: another snapshot was committed since; nothing happened.
        InDoubtError: it may have happened: `is_committed` of the table loaded again says so.
        InvalidRequestError: the table was dropped.
    """
    offsets = _said(table, change)
    properties = {OFFSETS_PROPERTY: offsets}
    if change.letters is not None:
        properties[DEAD_LETTERS_PROPERTY] = encode_dead_letters(change.letters)
    name = ".".join(table.name())
    silent = encode_silent(
        lineage_of(table),
        change.before,
        known=table.properties.get(SILENT_PROPERTY),
        left=[snapshot.sequence_number or 0 for snapshot in table.metadata.snapshots],
        subject=name,
    )
    if silent is not None:
        properties[SILENT_PROPERTY] = silent
    summary = {OFFSETS_PROPERTY: offsets, COMMIT_PROPERTY: change.name}
    end_retries(table)
    with translated("commit", name):
        with table.transaction() as transaction:
            transaction.set_properties(properties)
            update = transaction.update_snapshot(snapshot_properties=summary)
            with update.overwrite() if change.removed else update.merge_append() as producer:
                for written in change.added:
                    producer.append_data_file(written.data_file())
                for data_file in change.removed:
                    producer.delete_data_file(data_file)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id


def is_committed(table: Table, name: str) -> int | None:
    """The id of the snapshot that a commit made, if the table has it."""
    for snapshot in ancestry(table):
        if summary_of(snapshot).get(COMMIT_PROPERTY) == name:
            return snapshot.snapshot_id
    return None


def held_by(table: Table, topic_id: str, progress: Mapping[int, int] | None) -> Held:
    """Return what the table holds of the topic: see `find_held`."""
    return find_held(
        topic_id,
        table=".".join(table.name()),
        lineage=lineage_of(table),
        properties=table.properties,
        progress=progress,
        read=TableFiles(files_options(table.io.properties)).get,
    )


def _said(table: Table, change: Change) -> str:
    """Return the commit's text about offsets: the offsets, or the file that has them from now
    on."""
    text = encode_offsets(change.after)
    if len(text) <= INLINE_BYTES_MAX:
        return text
    # Of a commit that doesn't come about it is an orphan, as the data files are.
    url = f"{table.location().rstrip('/')}/{FOLDER}/{change.name}.json"
    TableFiles(files_options(table.io.properties)).put(url, text.encode())
    return encode_file(url)
