"""Rows into Parquet files by partition, with the statistics that Iceberg keeps of each file.

Rows are gathered into row groups and written to temporary files of this machine, so that an
executor's memory is bounded however large the files become; a finished file is uploaded whole.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from penstock.model.errors import CorruptDataError
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.files import TableFiles
from penstock.pipeline.tables.partitioning import split_rows

ROW_GROUP_BYTES: Final = 32 << 20
BUFFERED_BYTES_MAX: Final = 192 << 20
OPEN_FILES_MAX: Final = 64
_BATCH_ROWS: Final = 65_536
_FOLDER_CHARACTERS_MAX: Final = 200
_WITHOUT_BOUNDS: Final = {"write.metadata.metrics.default": "counts"}
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 3


class FileTarget(msgspec.Struct, frozen=True):
    """The form of a table's files; picklable. `schema`, `spec`: Iceberg's JSON."""

    location: str
    schema: str
    spec: str
    properties: dict[str, str]
    target_file_bytes: int

    def iceberg_schema(self) -> Schema:
        """The table's columns."""
        return Schema.model_validate_json(self.schema)

    def iceberg_spec(self) -> PartitionSpec:
        """The spec by which files are split."""
        return PartitionSpec.model_validate_json(self.spec)


class WrittenFile(msgspec.Struct, frozen=True):
    """A data file that was uploaded, with its statistics: Iceberg's `DataFile` by plain values."""

    url: str
    size_bytes: int
    row_count: int
    spec_id: int
    partition: list[Any]
    statistics: dict[str, Any]

    def data_file(self) -> DataFile:
        """Return the file in the form that a commit takes."""
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.url,
            file_format=FileFormat.PARQUET,
            partition=Record(*self.partition),
            file_size_in_bytes=self.size_bytes,
            sort_order_id=None,
            spec_id=self.spec_id,
            equality_ids=None,
            key_metadata=None,
            **self.statistics,
        )


def read_data_file(
    files: TableFiles,
    url: str,
    target: FileTarget,
    *,
    columns: Sequence[str] | None = None,
    row_count: int | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a data file, by the table's present names. Columns are found by their ids,
    since they may have been renamed after the file was written.

    Args:
        columns: only these; None: all that the file has.
        row_count: what the table's manifest says of it, where that is known: a file's footer has
            no checksum.

    Raises:
        NotFoundError, RetryableError: of the store.
        CorruptDataError: it is damaged, as its pages' checksums or its structure show.
    """
    names = {
        column.field_id: column.name
        for column in target.iceberg_schema().fields
        if columns is None or column.name in columns
    }
    with files.open(url) as file, _damage_named(url):
        reader = pq.ParquetFile(file, page_checksum_verification=True)
        schema = reader.schema_arrow
        ids = {
            field.name: int((field.metadata or {}).get(b"PARQUET:field_id", -1)) for field in schema
        }
        wanted = [name for name in schema.names if ids[name] in names]
        found = reader.metadata.num_rows
        if row_count is not None and found != row_count:
            raise OSError(f"its footer says {found} rows, and the table {row_count}")
        for batch in reader.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
            yield pa.Table.from_batches([batch]).rename_columns(
                [names[ids[name]] for name in batch.schema.names]
            )


@contextlib.contextmanager
def _damage_named(url: str) -> Iterator[None]:
    """Turn Arrow's errors about a file's bytes into errors that name the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(
            "read data file",
            url,
            str(error),
            "roll the table back to a snapshot without it, or delete its rows, if no copy of the "
            "file is left: docs/tables.md",
        ) from error


class PartitionedWriter:
    """Writes one task's rows. A context manager: left by an error, nothing more is uploaded.

    Args:
        name: (number of the file) -> its name without folder, unique to this attempt.
    """

    def __init__(
        self, target: FileTarget, files: TableFiles, *, name: Callable[[int], str]
    ) -> None:
        self._target = target
        self._files = files
        self._name = name
        self._schema = target.iceberg_schema()
        self._spec = target.iceberg_spec()
        self._arrow_schema = arrow_schema(self._schema)
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-table-")
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._count = 0
        self._written: list[WrittenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        self._folder.cleanup()

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._arrow_schema

    def add(self, rows: pa.Table) -> None:
        """Take rows; their columns are the table's, in its order."""
        rows = rows.cast(self._arrow_schema)
        for key, part in split_rows(rows, spec=self._spec, schema=self._schema):
            values: tuple[Any, ...] = () if key is None else _values(key.partition)
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = self._open_file(key, values)
            file.add(part)
            if file.size_bytes >= self._target.target_file_bytes:
                self._finish(values)
        while (
            len(self._open) > OPEN_FILES_MAX
            or sum(file.buffered_bytes for file in self._open.values()) > BUFFERED_BYTES_MAX
        ):
            largest = max(self._open, key=lambda values: self._open[values].buffered_bytes)
            if len(self._open) > OPEN_FILES_MAX:
                self._finish(largest)
            else:
                self._open[largest].flush()

    def finish(self) -> list[WrittenFile]:
        """Upload what is open; all files that were written."""
        for values in list(self._open):
            self._finish(values)
        return self._written

    def _open_file(self, key: PartitionKey | None, values: tuple[Any, ...]) -> "_OpenFile":
        name = f"{self._name(self._count)}.parquet"
        folder = f"{_folder(key)}/" if key is not None else ""
        path = Path(self._folder.name) / f"{self._count}.parquet"
        self._count += 1
        return _OpenFile(
            path, f"{self._target.location}/data/{folder}{name}", values, self._arrow_schema
        )

    def _finish(self, values: tuple[Any, ...]) -> None:
        file = self._open.pop(values)
        metadata = file.close()
        try:
            statistics = self._statistics(metadata, self._target.properties)
        except UnicodeEncodeError:
            # PyIceberg's upper bound of a long string has its last character counted up, and what
            # comes behind U+D7FF is none.
            statistics = self._statistics(metadata, _WITHOUT_BOUNDS)
        size_bytes = file.path.stat().st_size
        self._files.put_file(file.url, file.path)
        file.path.unlink()
        self._written.append(
            WrittenFile(
                url=file.url,
                size_bytes=size_bytes,
                row_count=metadata.num_rows,
                spec_id=self._spec.spec_id,
                partition=list(values),
                statistics=statistics,
            )
        )

    def _statistics(self, metadata: Any, properties: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = data_file_statistics_from_parquet_metadata(
            parquet_metadata=metadata,
            stats_columns=compute_statistics_plan(self._schema, properties),
            parquet_column_mapping=parquet_path_to_id_mapping(self._schema),
        ).to_serialized_dict()
        return found


class _OpenFile:
    """A Parquet file that is being written, and the rows of its next row group."""

    def __init__(self, path: Path, url: str, values: tuple[Any, ...], schema: pa.Schema) -> None:
        self.path = path
        self.url = url
        self.values = values
        self.buffered_bytes = 0
        self._rows: list[pa.Table] = []
        self._sink = path.open("wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=_COMPRESSION,
            compression_level=_COMPRESSION_LEVEL,
            store_decimal_as_integer=True,
            # A bit that flips in a page would be a wrong value, and no error, without.
            write_page_checksum=True,
            # Arrow's own copy of the schema tells readers nothing that Iceberg's doesn't.
            store_schema=False,
        )

    @property
    def size_bytes(self) -> int:
        """Written so far, without what waits for its row group."""
        return self._sink.tell()

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self.buffered_bytes += rows.nbytes
        if self.buffered_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            rows = pa.concat_tables(self._rows)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._rows.clear()
            self.buffered_bytes = 0

    def close(self) -> Any:
        self.flush()
        self._writer.close()
        self._sink.close()
        return self._writer.writer.metadata

    def abandon(self) -> None:
        self._writer.close()
        self._sink.close()


def _folder(key: PartitionKey) -> str:
    """Return the folder of a partition's files; readers use the metadata, not the folder's name."""
    path = key.to_path()
    if len(path) <= _FOLDER_CHARACTERS_MAX:
        return path
    # File systems and stores have names of some length only, and a record has any.
    return hashlib.sha256(path.encode()).hexdigest()


def _values(partition: Record) -> tuple[Any, ...]:
    return tuple(partition[index] for index in range(len(partition)))
