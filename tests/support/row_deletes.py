"""Position deletes as another engine writes them: PyIceberg reads them, and writes none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles

_PATH_ID, _POSITION_ID = 2147483546, 2147483545


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):
    def __init__(self, deletes: DataFile, **arguments: Any) -> None:
        super().__init__(operation=Operation.OVERWRITE, **arguments)
        self._deletes = deletes

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        with _DeletesWriter(
            metadata.spec(),
            metadata.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        ) as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=self._deletes,
            )
            writer.add(entry)
        return [*self._existing_manifests(), writer.to_manifest_file()]


def delete_rows(table: Table, file: DataFile, positions: Sequence[int]) -> None:
    """Delete rows of a data file in a snapshot of its own."""
    path = Path(urlsplit(file.file_path).path)
    deletes = path.with_name(f"deletes-{os.urandom(6).hex()}.parquet")
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
    ]
    columns = [[file.file_path] * len(positions), list(positions)]
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), deletes)
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{deletes}",  # a folder may be named with a %
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=deletes.stat().st_size,
        column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
        lower_bounds={}, upper_bounds={}, key_metadata=None, split_offsets=None,
        equality_ids=None, sort_order_id=None,
    )  # fmt: skip
    made.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        adding = _AddDeletes(made, transaction=transaction, io=table.io, snapshot_properties={})
        adding.commit()
