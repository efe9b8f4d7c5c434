"""A stream of table and log plans its batches: files of one snapshot, then offsets. Pure.

Offsets are those of docs/formats/stream-offsets.md, version 2. `stream_plan` plans the log's part.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.pipeline.connector.offsets import StreamOffsets, TableOffsets
from penstock.pipeline.tables.stored_order import StoredFile


def advance_table(
    start: StreamOffsets,
    files: Sequence[StoredFile],
    *,
    rows_max: int | None,
    files_max: int,
) -> StreamOffsets:
    """Return the end of a batch of files: at least one, and then as many as the limits let in.

    Args:
        start: it has not read all files.
        files: of its snapshot, in order.
    """
    table = start.table
    assert table is not None
    assert not table.is_read
    end, rows = table.read, 0
    while end < min(table.files, table.read + files_max):
        rows += files[end].rows
        if end > table.read and rows_max is not None and rows > rows_max:
            break
        end += 1
    return StreamOffsets(topics=start.topics, table=replace(table, read=end))


def files_between(start: StreamOffsets, end: StreamOffsets) -> range:
    """Return the places of a batch's files in their order; empty: it is of the log.

    Raises:
        ConflictError: the two are of different snapshots.
    """
    first, last = start.table, end.table
    assert first is not None
    assert last is not None
    if start.initial:
        # What it says is of now, not of when the batch was planned.
        return range(last.read)
    if (first.name, first.snapshot_id) != (last.name, last.snapshot_id) or first.read > last.read:
        raise ConflictError(
            "read table and log",
            "the checkpoint's offsets",
            f"a batch begins at file {first.read} of snapshot {first.snapshot_id} of {first.name} "
            f"and ends at file {last.read} of snapshot {last.snapshot_id} of {last.name}",
            "begin a new checkpoint",
        )
    return range(first.read, last.read)


def check_same_view(offsets: StreamOffsets, *, topic: str, table: str) -> TableOffsets:
    """Return the table's part of what a checkpoint says.

    Raises:
        InvalidRequestError: the checkpoint is of the log alone, or of another topic or table.
    """
    if offsets.table is None:
        raise _other_view("it is of the log alone", "leave the option view out")
    if offsets.table.name != table:
        raise _other_view(
            f"it is of table {offsets.table.name}, and the options say {table}",
            "the option table names it",
        )
    others = sorted(set(offsets.topics) - {topic})
    if others:
        raise _other_view(
            f"it is of topic {others[0]}, and the options say {topic}",
            "the option subscribe names it",
        )
    return offsets.table


def check_log_alone(offsets: StreamOffsets) -> StreamOffsets:
    """Return a checkpoint's offsets for a stream of the log alone.

    Raises:
        InvalidRequestError: they are of a table, too.
    """
    if offsets.table is not None:
        raise _other_view(f"it is of table {offsets.table.name}, too", "option view=table+log")
    return offsets


def _other_view(detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "read stream", "the checkpoint", detail, f"{hint}, or begin a new checkpoint"
    )
