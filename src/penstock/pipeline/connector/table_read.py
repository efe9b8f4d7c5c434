"""Reading a table as a batch, without a jar: PyIceberg plans on the driver's side at one snapshot,
and reads on executors, so that deletes and renamed columns are heeded.

A task has its files, their deletes, and of the table's metadata what reading them needs: schemas
and name mapping, but no snapshots, of which there may be thousands. No secret is in it: executors
open the store by their own environment.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.table_filters import push
from penstock.pipeline.connector.table_options import TableReadOptions
from penstock.pipeline.connector.table_types import arrow_schema, fit, spark_schema
from penstock.pipeline.tables.catalog import load_table, no_table_error, open_catalog, translated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FILES_PER_TASK_MAX: Final = 1000


class FilesPartition(InputPartition):
    """Names the files of one task.

    Args:
        plan: a pickled `_Plan`, the same for all tasks of a read.
        files: pickled `FileScanTask`s.
    """

    def __init__(self, plan: bytes, files: bytes) -> None:
        super().__init__(None)
        self.plan = plan
        self.files = files


class _Plan:
    """Holds the part that all tasks of a read share."""

    def __init__(
        self,
        metadata: TableMetadata,
        properties: dict[str, str],
        location: str,
        schema_id: int,
        row_filter: BooleanExpression,
    ) -> None:
        self.metadata = metadata
        self.properties = properties
        self.location = location
        self.schema_id = schema_id
        self.row_filter = row_filter


class TableReader(DataSourceReader):
    """Reads one snapshot of a table."""

    def __init__(self, options: TableReadOptions, schema: "StructType") -> None:
        self._options = options
        self._schema = schema
        self._filter: BooleanExpression = AlwaysTrue()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the files of one snapshot."""
        options = self._options
        name = ".".join(options.identifier)
        with open_catalog(options.catalog) as catalog:
            table = load_table(catalog, options.identifier)
            if table is None:
                raise no_table_error("read", name, options.catalog)
            with translated("plan a read", name):
                scan = _scan(table, options).filter(self._filter)
                files = list(scan.plan_files())
            plan = pickle.dumps(
                _Plan(
                    _without_snapshots(table.metadata),
                    dict(table.io.properties),
                    table.metadata_location,
                    scan.projection().schema_id if options.schema_id is None else options.schema_id,
                    self._filter,
                )
            )
        return [
            FilesPartition(plan, pickle.dumps(group))
            for group in file_groups(files, options.partition_bytes)
        ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read the rows of one task, as Arrow batches."""
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import ArrowScan

        if not isinstance(partition, FilesPartition):
            # Spark's own, which stands for "nothing to read" where there are no partitions.
            return
        plan: _Plan = pickle.loads(partition.plan)  # noqa: S301 - made by our own plan
        files: list[FileScanTask] = pickle.loads(partition.files)  # noqa: S301
        schema = next(one for one in plan.metadata.schemas if one.schema_id == plan.schema_id)
        wanted = schema.select(*(field.name for field in self._schema.fields))
        target = arrow_schema(self._schema)
        store = load_file_io(plan.properties, plan.location)
        with translated("read", plan.location):
            scan = ArrowScan(plan.metadata, store, wanted, plan.row_filter)
            # One file at a time: PyIceberg holds what it has of all that it is given.
            for file in files:
                for batch in scan.to_record_batches([file]):
                    if batch.num_rows:
                        yield fit(batch, target)


class FilteringTableReader(TableReader):
    """A read that heeds filters: only where the user says that it may, as `FilteringReader`."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_filter": AlwaysTrue()}

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Leave out what they exclude. Spark checks them all again."""
        self._filter = push(filters)
        return filters


def table_reader(options: TableReadOptions, schema: "StructType") -> TableReader:
    """Return the reader that the options ask for."""
    return (FilteringTableReader if options.pushes_filters else TableReader)(options, schema)


def pinned(options: TableReadOptions) -> "tuple[TableReadOptions, StructType]":
    """Return the options with the snapshot that is current now, and the columns of a read.

    Raises:
        NotFoundError: there is no such table.
        InvalidRequestError: a column that it hasn't, or whose type Spark can't have.
    """
    with open_catalog(options.catalog) as catalog:
        table = load_table(catalog, options.identifier)
        if table is None:
            raise no_table_error("read", ".".join(options.identifier), options.catalog)
        with translated("read", ".".join(options.identifier)):
            snapshot = table.current_snapshot()
            if options.snapshot_id is None and snapshot is not None:
                # Columns may have changed since that snapshot, whose rows are read by them.
                options = replace(
                    options,
                    snapshot_id=snapshot.snapshot_id,
                    schema_id=table.metadata.current_schema_id,
                )
                schema = table.schema()
            else:
                schema = _scan(table, options).projection()
    return options, chosen_columns(schema, options.columns)


def chosen_columns(schema: Schema, columns: Sequence[str] | None) -> "StructType":
    """Return a table's columns as Spark's, or those that are named.

    Raises:
        InvalidRequestError: one that it hasn't, or whose type Spark can't have.
    """
    names = [field.name for field in schema.fields]
    if columns is None:
        return spark_schema(schema)
    missing = set(columns) - set(names)
    if missing:
        raise InvalidRequestError(
            "read",
            f"column {min(missing)!r}",
            "the table hasn't got it",
            f"there are {', '.join(names)}",
        )
    found = spark_schema(schema.select(*columns))
    by_name = {field.name: field for field in found.fields}
    return type(found)([by_name[name] for name in columns])


def _scan(table: Table, options: TableReadOptions) -> DataScan:
    return table.scan(snapshot_id=options.snapshot_id)


def _without_snapshots(metadata: TableMetadata) -> TableMetadata:
    return metadata.model_copy(
        update={
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
            "statistics": [],
        }
    )


def file_groups(files: Sequence[FileScanTask], bytes_max: int) -> Iterator[list[FileScanTask]]:
    """Files of about so many bytes together, the largest first."""
    group: list[FileScanTask] = []
    size = 0
    for file in sorted(files, key=lambda file: -file.file.file_size_in_bytes):
        if group and (
            size + file.file.file_size_in_bytes > bytes_max or len(group) >= FILES_PER_TASK_MAX
        ):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.file.file_size_in_bytes
    if group:
        yield group
