"""Small files of a table are joined into few: a commit whose rows are the same.

A busy table gets snapshots while its files are copied. Such a commit is made again on top of the
newer snapshot where each of its inputs is still live and no row-level delete has come: then the
copies hold what the inputs do. Tasks whose inputs changed are given up, their copies deleted, and
what is small then is planned again.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

from penstock.model.errors import ConflictError, CorruptDataError, InDoubtError
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.catalog import end_retries, lineage_of, translated
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.commit import is_committed
from penstock.pipeline.tables.files import FilesOptions, TableFiles, files_options
from penstock.pipeline.tables.kinds import live_files, target_of
from penstock.pipeline.tables.offsets import COMMIT_PROPERTY, OFFSETS_PROPERTY
from penstock.pipeline.tables.parquet import (
    FileTarget,
    PartitionedWriter,
    WrittenFile,
    read_data_file,
)
from penstock.pipeline.tables.values import fit_rows
from penstock.ports.random import Random
from penstock.system.heard import Cause, heard
from penstock.system.randomness import SystemRandom
from penstock.system.waiting import pause

logger = logging.getLogger(__name__)

ROUNDS_MAX: Final = 3
"""A task that is given up is planned again this many times, and then at the next maintenance."""
CONFLICTS_MAX: Final = 20
_SMALL: Final = 2
"""A file of less than the target's 1/_SMALL is small."""
_REST_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The numbers of files before and after. `gave_up`: tasks whose inputs another program changed;
    `damaged`: files that can't be read, and the reasons. These files stay, with those of their
    task."""

    files_joined: int = 0
    files_written: int = 0
    gave_up: int = 0
    damaged: tuple[str, ...] = ()


class JoinItem(msgspec.Struct, frozen=True):
    """One task: data files of one partition into few. Holds no secret."""

    files: FilesOptions
    target: FileTarget
    urls: list[str]
    row_counts: list[int]


class JoinResult(msgspec.Struct, frozen=True):
    """The files that a task wrote. `damaged`: the file that it can't read, "": none; then nothing
    was written."""

    written: list[WrittenFile]
    damaged: str = ""


def join_files(item: JoinItem) -> JoinResult:
    """Copy rows into new files. Raises: NotFoundError: a file is gone."""
    files = TableFiles(item.files)
    attempt = SystemRandom().token_bytes(8).hex()
    schema = arrow_schema(item.target.iceberg_schema())
    with PartitionedWriter(item.target, files, name=lambda n: f"join-{attempt}-{n:03}") as writer:
        for url, row_count in zip(item.urls, item.row_counts, strict=True):
            try:
                for rows in read_data_file(files, url, item.target, row_count=row_count):
                    writer.add(fit_rows(rows, schema))
            except CorruptDataError as error:
                # A full file is uploaded as it fills, and is an orphan then.
                return JoinResult([], f"{url}: {error.detail}")
        return JoinResult(writer.finish())


@dataclass(frozen=True, slots=True)
class _Copy:
    """A task's files: those that it read, and those that hold the same rows."""

    urls: list[str]
    written: list[WrittenFile]


def join_small_files(
    table: Table, engine: Engine, *, target_file_bytes: int, files_min: int, random: Random
) -> Joined:
    """Join small files; `table` is as it is then.

    Args:
        files_min: small files of a partition that are worth joining.

    Raises:
        NotFoundError: a file was gone before it was copied.
        ConflictError: the table moved on CONFLICTS_MAX times.
        InDoubtError: the commit may have happened.
    """
    joined = written = gave_up = 0
    damaged: dict[str, str] = {}
    for _ in range(ROUNDS_MAX):
        items = _items(table, target_file_bytes, files_min, left_out=damaged.keys())
        if not items:
            break
        end_retries(table)
        copies: list[_Copy] = []
        is_again = False
        for index, result in engine.run(join_files, items):
            if not result.damaged:
                copies.append(_Copy(items[index].urls, result.written))
                continue
            # Its neighbours are joined without it in the next round.
            is_again = True
            url = next(url for url in items[index].urls if result.damaged.startswith(f"{url}: "))
            damaged[url] = result.damaged
            heard(Cause.JOIN_FILES, result.damaged, logger, f"{url} is damaged, and left")
        lost = _commit(table, copies, random)
        whole = [copy for copy in copies if copy not in lost]
        joined += sum(len(copy.urls) for copy in whole)
        written += sum(len(copy.written) for copy in whole)
        gave_up += len(lost)
        if not lost and not is_again:
            break
    return Joined(
        files_joined=joined,
        files_written=written,
        gave_up=gave_up,
        damaged=tuple(damaged.values()),
    )


def _items(
    table: Table, target_file_bytes: int, files_min: int, *, left_out: Collection[str]
) -> list[JoinItem]:
    """Tasks of about a file each: a partition of many small files is the work of several."""
    everything = list(live_files(table))
    if _has_deletes(everything):
        # Another program's row-level deletes: if files were joined without them, rows would come
        # back.
        return []
    small: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for file in everything:
        is_small = (
            file.file_size_in_bytes * _SMALL < target_file_bytes and file.file_path not in left_out
        )
        if is_small and file.spec_id == table.spec().spec_id:
            values = tuple(file.partition[index] for index in range(len(file.partition)))
            small[values].append(file)
    target = target_of(table, target_file_bytes)
    options = files_options(table.io.properties)
    items: list[JoinItem] = []
    for group in small.values():
        if len(group) < files_min:
            continue
        items += [
            JoinItem(
                files=options,
                target=target,
                urls=[file.file_path for file in part],
                row_counts=[file.record_count for file in part],
            )
            for part in _parts(group, target_file_bytes)
        ]
    return items


def _parts(group: Sequence[DataFile], target_file_bytes: int) -> list[list[DataFile]]:
    parts: list[list[DataFile]] = [[]]
    size_bytes = 0
    for place, file in enumerate(group):
        parts[-1].append(file)
        size_bytes += file.file_size_in_bytes
        # The last one alone would be copied into itself.
        if size_bytes >= target_file_bytes and len(group) - place > 2:
            parts.append([])
            size_bytes = 0
    return parts


def _commit(table: Table, copies: Sequence[_Copy], random: Random) -> list[_Copy]:
    """Commit copies on top of whatever snapshot is the newest; those that were given up."""
    name = ".".join(table.name())
    files = TableFiles(files_options(table.io.properties))
    layout = table.schema().schema_id, table.spec().spec_id
    lost: list[_Copy] = []
    left = list(copies)
    for attempt in range(CONFLICTS_MAX):
        live = {file.file_path: file for file in live_files(table)}
        has_moved = layout != (table.schema().schema_id, table.spec().spec_id)
        is_deleted_from = _has_deletes(live.values())
        gone = [
            copy
            for copy in left
            if has_moved or is_deleted_from or not all(url in live for url in copy.urls)
        ]
        if gone:
            lost += gone
            left = [copy for copy in left if copy not in gone]
            files.delete([file.url for copy in gone for file in copy.written])
            heard(
                Cause.JOIN_FILES,
                f"{len(gone)} tasks of {sum(len(copy.urls) for copy in gone)} files",
                logger,
                f"files of table {name} were changed while they were joined, and are left",
            )
        if not left:
            return lost
        commit = random.token_bytes(16).hex()
        try:
            _replace(table, left, live, commit)
        except ConflictError:
            pause((1 + random.below(1000) / 1000) * _REST_S * (attempt + 1))
            table.refresh()
        except InDoubtError:
            table.refresh()
            if is_committed(table, commit) is None:
                # It may still arrive: the copies stay, orphans unless it does.
                raise
            return lost
        else:
            return lost
    files.delete([file.url for copy in left for file in copy.written])
    raise ConflictError(
        "join files", name, f"another commit was first {CONFLICTS_MAX} times", "call it again"
    )


def _replace(table: Table, copies: Sequence[_Copy], live: dict[str, DataFile], commit: str) -> None:
    # The same offsets again, so that they are found however far others expire snapshots.
    held = lineage_of(table).said
    summary = {COMMIT_PROPERTY: commit}
    if held is not None:
        summary[OFFSETS_PROPERTY] = held
    with (
        translated("join files", ".".join(table.name())),
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=summary).overwrite() as producer,
    ):
        for copy in copies:
            for written in copy.written:
                producer.append_data_file(written.data_file())
            for url in copy.urls:
                producer.delete_data_file(live[url])


def _has_deletes(files: Iterable[DataFile]) -> bool:
    return any(file.content != DataFileContent.DATA for file in files)
