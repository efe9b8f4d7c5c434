"""Kinds of tables differ in their columns, and in how ranges become files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from penstock.pipeline.api_messages import Range
from penstock.pipeline.tables.dead_letters import BadFile
from penstock.pipeline.tables.parquet import FileTarget, WrittenFile

MODE_PROPERTY: Final = "penstock.mode"
"""The table's property that is append or upsert, for as long as the table lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The design of a new table."""

    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that executors made from one commit's ranges. `removed`: files that `added`
    replace."""

    added: list[WrittenFile]
    bad: list[BadFile]
    bytes_read: int
    rows: int
    removed: list[DataFile] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)
    """Files that aren't needed once this is committed or given up."""
    is_by_snapshot: bool = False
    """Whether it holds for the snapshot that it was made from alone, and not for a later one."""
    columns_added: list[str] = field(default_factory=list)


class TableKind(Protocol):
    """Raw or typed, appended to or upserted."""

    def design(self, items: Sequence[Sequence[Range]]) -> Design | None:
        """A new table's columns and partitions; None: that can't be said before there are records.

        Args:
            items: the first ranges that it will hold.
        """
        ...

    def check(self, table: Table) -> None:
        """Raises: InvalidRequestError: another program changed columns of this kind."""
        ...

    def write(
        self, table: Table, target: FileTarget, items: Sequence[Sequence[Range]]
    ) -> tuple[Table, Written]:
        """Make files of ranges; the table as it is then (its columns may have become more).

        Raises:
            LogTruncatedError: retention was faster.
            InvalidRequestError: the values' schema is nothing that the table can become.
        """
        ...


def target_of(table: Table, target_file_bytes: int) -> FileTarget:
    """Return the target of new files of the table as it is now."""
    return FileTarget(
        location=table.location().rstrip("/"),
        schema=table.schema().model_dump_json(),
        spec=table.spec().model_dump_json(),
        properties={
            key: value
            for key, value in table.properties.items()
            if key.startswith("write.metadata.metrics.")
        },
        target_file_bytes=target_file_bytes,
    )


def live_files(table: Table) -> Iterator[DataFile]:
    """The files of the current snapshot; none of them is read."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file
