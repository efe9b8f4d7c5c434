"""A table's files are read whole, and damaged ones are made again from the log.

A damaged file's rows are those of the log within its bounds that no other file of the snapshot has.
Only where these are as many as the file had, they take its place.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.pipeline.api_messages import Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.pipeline.tables.catalog import open_catalog
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.commit import Change
from penstock.pipeline.tables.files import FilesOptions, TableFiles, files_options
from penstock.pipeline.tables.followed import RowSchemas, settings_by
from penstock.pipeline.tables.kinds import MODE_PROPERTY, live_files, target_of
from penstock.pipeline.tables.offsets import TOPIC_ID_PROPERTY, Held
from penstock.pipeline.tables.parquet import (
    FileTarget,
    PartitionedWriter,
    WrittenFile,
    read_data_file,
)
from penstock.pipeline.tables.rows import decode_records
from penstock.pipeline.tables.settings import (
    APPEND,
    DEAD_LETTER,
    RAW,
    UPSERT,
    TableSettings,
    resolve,
)
from penstock.pipeline.tables.topic_table import TopicTable, place_prefix, topic_named
from penstock.pipeline.tables.values import RowPlan, RowReader
from penstock.ports.random import Random
from penstock.system.heard import Cause, heard
from penstock.system.randomness import SystemRandom

logger = logging.getLogger(__name__)

_OPERATION: Final = "check table"
_TASK_BYTES: Final = 256 << 20
_CONFLICTS_MAX: Final = 5
Places = dict[int, NDArray[np.int64]]
"""Offsets by partition."""


class CheckItem(msgspec.Struct, frozen=True):
    """One task: files that are read whole. `ends`: by partition, the table's next offset. Holds no
    secret."""

    files: FilesOptions
    target: FileTarget
    urls: list[str]
    row_counts: list[int]
    ends: dict[int, int]
    prefix: str


class DamagedFile(msgspec.Struct, frozen=True):
    """A file that isn't what the table says of it."""

    url: str
    detail: str


class TableCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call.

    Args:
        files, rows: those that were looked at, as the table counts them.
        damaged: files that are left as they are.
        rebuilt: files that were made again from the log.
        not_rebuilt: why damaged files were not; "": they were, or none is damaged.
    """

    topic: str
    table: str
    files: int
    rows: int
    damaged: list[DamagedFile]
    rebuilt: list[DamagedFile]
    not_rebuilt: str


def check_files(item: CheckItem) -> list[DamagedFile]:
    """Read files whole, with their pages' checksums."""
    files = TableFiles(item.files)
    found = []
    for url, row_count in zip(item.urls, item.row_counts, strict=True):
        try:
            detail = _beyond(item, files, url, row_count)
        except (CorruptDataError, NotFoundError) as error:
            detail = error.detail
        if detail:
            found.append(DamagedFile(url, detail))
    return found


def check_table(
    client: PipelineClient,
    engine: Engine,
    settings: TableSettings,
    *,
    rebuilds: bool,
    random: Random | None = None,
) -> TableCheck:
    """Read all files of a table's current snapshot, and make damaged ones again if that is wanted.

    Raises:
        NotFoundError: there is no such topic or table.
        CorruptDataError: the snapshot's manifests can't be read.
        RetryableError: an agent, the store or the catalog does not answer; call again later.
    """
    topic = topic_named(client, settings.topic, _OPERATION)
    settings = resolve(settings, topic.configs)
    with (
        open_catalog(settings.catalog) as catalog,
        JobLease(client, kind="table", name=f"check {settings.full_name}"),
    ):
        check = _Check(client, catalog, settings, topic, random or SystemRandom())
        files, damaged = check.find(engine)
        rebuilt: list[DamagedFile] = []
        problem = ""
        if damaged and rebuilds:
            try:
                check.rebuild({one.url for one in damaged})
            except RetryableError:
                raise
            except PenstockError as error:
                problem = str(error)
                heard(Cause.REBUILD_FILE, error, logger, "damaged files are left")
            else:
                rebuilt, damaged = damaged, []
    return TableCheck(
        topic=topic.name,
        table=settings.full_name,
        files=len(files),
        rows=sum(file.record_count for file in files),
        damaged=damaged,
        rebuilt=rebuilt,
        not_rebuilt=problem,
    )


@dataclass(slots=True)
class _Bounds:
    """Holds, by partition, between which offsets the rows of some files lie."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, partitions: tuple[int, int], offsets: tuple[int, int]) -> None:
        for partition in range(partitions[0], partitions[1] + 1):
            start, end = self.ranges.get(partition, (offsets[0], offsets[1] + 1))
            self.ranges[partition] = (min(start, offsets[0]), max(end, offsets[1] + 1))


class _Check:
    """One call of `check_table`."""

    def __init__(
        self,
        client: PipelineClient,
        catalog: Catalog,
        settings: TableSettings,
        topic: TopicState,
        random: Random,
    ) -> None:
        self._client = client
        self._settings = settings
        self._topic = topic
        self._random = random
        self._table = TopicTable(
            client, catalog, settings, topic, operation=_OPERATION, cause=Cause.REBUILD_FILE
        )

    def find(self, engine: Engine) -> tuple[list[DataFile], list[DamagedFile]]:
        """The files of the snapshot, and those that are damaged."""
        table, held = self._table.load()
        files = self._live(table)
        # An upsert table's rows are of many offsets, and its ends those of its newest ones alike.
        items = [
            CheckItem(
                files=files_options(table.io.properties),
                target=target_of(table, self._settings.target_file_bytes),
                urls=[file.file_path for file in group],
                row_counts=[file.record_count for file in group],
                ends=dict(held.offsets) if self._is_its_own(table, held) else {},
                prefix=place_prefix(table),
            )
            for group in _groups(files)
        ]
        damaged = [one for _, found in engine.run(check_files, items) for one in found]
        return files, sorted(damaged, key=lambda one: one.url)

    def rebuild(self, urls: set[str]) -> None:
        """Let files of the log's rows take the place of these.

        Raises:
            ConflictError: the log hasn't got their rows, or not these alone; or the table's kind
                does not say which rows they were.
        """
        for _ in range(_CONFLICTS_MAX):
            table, held = self._table.load()
            live = self._live(table)
            damaged = [file for file in live if file.file_path in urls]
            others = [file for file in live if file.file_path not in urls]
            if not damaged:
                return
            self._check_kind(table, held)
            if self._try(table, held, damaged, others):
                return
        raise RetryableError(
            "commit", self._settings.full_name, f"another commit was first {_CONFLICTS_MAX} times"
        )

    def _try(
        self, table: Table, held: Held, damaged: list[DataFile], others: list[DataFile]
    ) -> bool:
        bounds = self._bounds(table, damaged)
        stored = self._stored(table, others, bounds)
        wanted = sum(file.record_count for file in damaged)
        files = TableFiles(files_options(table.io.properties))
        written, count = self._write(table, files, self._ranges(bounds, held), stored)
        if count != wanted:
            files.delete([file.url for file in written])
            raise ConflictError(
                "rebuild files",
                self._settings.full_name,
                f"the damaged files had {wanted} rows, and the log has {count} there that no other "
                "file has",
                "retention may have taken some, or another program has changed the rows: roll the "
                "table back to a snapshot without these files, or delete their rows",
            )
        change = Change(
            name=self._random.token_bytes(16).hex(),
            after=held.holdings,
            before=held.holdings,
            added=written,
            removed=damaged,
        )
        return self._table.commit(table, change, "rebuilding on top of the newer snapshot")

    def _bounds(self, table: Table, damaged: Sequence[DataFile]) -> _Bounds:
        schema, prefix = table.schema(), place_prefix(table)
        ids = [schema.find_field(f"{prefix}{name}").field_id for name in ("partition", "offset")]
        bounds = _Bounds()
        for file in damaged:
            found = []
            for field_id in ids:
                least = (file.lower_bounds or {}).get(field_id)
                most = (file.upper_bounds or {}).get(field_id)
                if least is None or most is None:
                    raise ConflictError(
                        "rebuild files", file.file_path, "the table does not say its offsets"
                    )
                found.append(
                    (
                        int.from_bytes(least, "little", signed=True),
                        int.from_bytes(most, "little", signed=True),
                    )
                )
            bounds.add(found[0], found[1])
        return bounds

    def _stored(self, table: Table, others: Sequence[DataFile], bounds: _Bounds) -> Places:
        """The offsets within the bounds that other files have."""
        prefix = place_prefix(table)
        names = [f"{prefix}partition", f"{prefix}offset"]
        files = TableFiles(files_options(table.io.properties))
        target = target_of(table, self._settings.target_file_bytes)
        found: dict[int, list[NDArray[np.int64]]] = {}
        for file in others:
            for rows in read_data_file(files, file.file_path, target, columns=names):
                partitions = rows.column(names[0]).to_numpy()
                offsets = rows.column(names[1]).to_numpy()
                for partition, (start, end) in bounds.ranges.items():
                    of_it = (partitions == partition) & (offsets >= start) & (offsets < end)
                    if of_it.any():
                        found.setdefault(partition, []).append(offsets[of_it])
        return {partition: np.concatenate(parts) for partition, parts in found.items()}

    def _ranges(self, bounds: _Bounds, held: Held) -> list[Range]:
        """The log's part of the bounds, below what the table holds."""
        ranges = []
        for partition, (start, end) in sorted(bounds.ranges.items()):
            log_start = self._topic.partitions[partition].log_start
            start, end = max(start, log_start), min(end, held.offsets.get(partition, 0))
            if start < end:
                ranges.append(Range(self._topic.topic_id, partition, start, end))
        return ranges

    def _write(
        self, table: Table, files: TableFiles, ranges: Sequence[Range], stored: Places
    ) -> tuple[list[WrittenFile], int]:
        reader = _Reader(table, self._settings)
        target = target_of(table, self._settings.target_file_bytes)
        stem = f"rebuilt-{self._random.token_bytes(12).hex()}"
        count = 0
        with (
            ObjectAccess(self._client) as objects,
            PartitionedWriter(target, files, name=lambda n: f"{stem}-{n:03}") as writer,
        ):
            for wanted in ranges:
                known = stored.get(wanted.partition, np.array([], np.int64))
                for part in read_range(self._client, objects, wanted):
                    for records in decode_records(
                        part.body, partition=wanted.partition, start=wanted.start, end=wanted.end
                    ):
                        is_missing = ~np.isin(records.rows.column("offset").to_numpy(), known)
                        rows = reader.rows(records.rows.filter(pa.array(is_missing)))
                        count += rows.num_rows
                        writer.add(rows)
            return writer.finish(), count

    def _check_kind(self, table: Table, held: Held) -> None:
        if table.properties.get(MODE_PROPERTY, APPEND) == UPSERT:
            raise ConflictError(
                "rebuild files",
                self._settings.full_name,
                "it has one row per key, and the log doesn't say which rows a file had",
                "roll it back to a snapshot without these files, or make it again",
            )
        if not self._is_its_own(table, held):
            raise ConflictError(
                "rebuild files",
                self._settings.full_name,
                f"it holds rows of other topics than {self._topic.topic_id}",
                "roll it back to a snapshot without these files, or delete their rows",
            )

    def _is_its_own(self, table: Table, held: Held) -> bool:
        owner = table.properties.get(TOPIC_ID_PROPERTY, "")
        return owner == self._topic.topic_id and set(held.holdings.topics) <= {owner}

    def _live(self, table: Table) -> list[DataFile]:
        try:
            return list(live_files(table))
        except Exception as error:
            # Avro's, Arrow's and the store's.
            raise CorruptDataError(
                _OPERATION,
                self._settings.full_name,
                f"a manifest of its snapshot can't be read: {type(error).__name__}: {error}",
                "put it back from a copy, or roll the table back to a snapshot without it",
            ) from error


class _Reader:
    """Reads the log's records as the table's job did; the table stays as it is."""

    def __init__(self, table: Table, settings: TableSettings) -> None:
        settings = settings_by(table, msgspec.structs.replace(settings, incompatible=DEAD_LETTER))
        self._table = table
        self._schema = arrow_schema(table.schema())
        self._schemas: RowSchemas | None = None
        plan = RowPlan()
        if settings.schema != RAW:
            self._schemas = RowSchemas(settings, is_reader=True)
            self._schemas.check(table)
            plan = self._schemas.plan(table)
        self._reader = RowReader(plan, self._schema)

    def rows(self, records: pa.Table) -> pa.Table:
        """Return the rows that records (RECORD_SCHEMA) are."""
        while True:
            read = self._reader.read(records)
            if not read.unknown:
                return read.rows
            # Of dead letters: what the table has as rows it has followed.
            assert self._schemas is not None
            self._table = self._schemas.follow(self._table, read.unknown)
            self._reader = RowReader(self._schemas.plan(self._table), self._schema)


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    size = 0
    for file in files:
        if group and size + file.file_size_in_bytes > _TASK_BYTES:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.file_size_in_bytes
    if group:
        yield group


def _beyond(item: CheckItem, files: TableFiles, url: str, row_count: int) -> str:
    """Read a file whole. Returns: a row that the table's offsets leave out, in words; "": none."""
    count = 0
    names = (f"{item.prefix}partition", f"{item.prefix}offset")
    for rows in read_data_file(files, url, item.target, row_count=row_count):
        count += rows.num_rows
        partitions, offsets = (rows.column(name).to_numpy() for name in names)
        for partition, end in item.ends.items():
            most = offsets[partitions == partition].max(initial=-1)
            if most >= end:
                return (
                    f"it has offset {most} of partition {partition}, and the table's offsets say "
                    f"that it holds those below {end}"
                )
    if count != row_count:
        return f"it has {count} rows, and the table says {row_count}"
    return ""
