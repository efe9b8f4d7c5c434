"""Rows of a raw table as batches of records again, at the offsets that they had.

For `penstock repair --from-table` (docs/decisions/0014). What a table doesn't hold isn't made up:
batches have no producer and no codec, and boundaries of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.types import BinaryType

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.pipeline.tables.catalog import load_table, open_catalog, translated
from penstock.pipeline.tables.columns import RAW_NAMES
from penstock.pipeline.tables.kinds import MODE_PROPERTY
from penstock.pipeline.tables.offsets import TOPIC_ID_PROPERTY
from penstock.pipeline.tables.settings import CatalogSettings
from penstock.records.decode import Record
from penstock.records.encode import encode_batch

NOT_RECOVERED: Final = (
    "producer ids and sequences, batch boundaries, compression, and whether a timestamp is the"
    " producer's or the broker's"
)
WINDOW_OFFSETS: Final = 10_000
"""Offsets that are read at once."""
_BATCH_RECORDS: Final = 1000
_BATCH_BYTES: Final = 512 << 10
_UPSERT: Final = "upsert"


def batches_of(
    settings: CatalogSettings,
    name: str,
    *,
    topic_id: str,
    partition: int,
    ranges: Sequence[tuple[int, int]],
    bytes_max: int,
) -> bytes:
    """The batches that a table's rows of some offsets make, in order of offsets.

    Args:
        name: namespace.table.
        topic_id: of the topic that is repaired, as hexadecimal digits.
        ranges: ascending, [start, end).
        bytes_max: refuse more than that.

    Raises:
        InvalidRequestError: there is no such table, or one that doesn't hold what was sent.
        CorruptDataError: the table has an offset twice.
        PenstockError: catalog or files can't be read.
    """
    with open_catalog(settings) as catalog:
        table = load_table(catalog, tuple(name.split(".")))
        if table is None:
            raise InvalidRequestError("rebuild", name, "there is no such table")
        _check(table, name, topic_id)
        out = bytearray()
        for start, end in ranges:
            for low in range(start, end, WINDOW_OFFSETS):
                high = min(end, low + WINDOW_OFFSETS)
                with translated("read table", name):
                    rows = _rows(table, partition, low, high)
                for batch in _batches(rows, name):
                    out += batch
                    if len(out) > bytes_max:
                        raise InvalidRequestError(
                            "rebuild",
                            f"{name}, offsets {start} to {end - 1}",
                            f"more than {bytes_max} bytes of records",
                            "accept the loss first; its ranges are then filled piece by piece",
                        )
        return bytes(out)


def _check(table: Table, name: str, topic_id: str) -> None:
    owner = table.properties.get(TOPIC_ID_PROPERTY, "")
    if owner != topic_id:
        raise InvalidRequestError(
            "rebuild", name, f"it holds topic {owner or '(none)'}, not {topic_id}"
        )
    if table.properties.get(MODE_PROPERTY) == _UPSERT:
        raise InvalidRequestError(
            "rebuild", name, "it holds the newest row of each key, not every record"
        )
    columns = {field.name: field.field_type for field in table.schema().fields}
    missing = [column for column in RAW_NAMES if column not in columns]
    if missing or not all(isinstance(columns[one], BinaryType) for one in ("key", "value")):
        raise InvalidRequestError(
            "rebuild",
            name,
            "it holds decoded columns, and not keys and values as they were sent"
            + (f" (no column {', '.join(missing)})" if missing else ""),
            "only raw tables can be encoded again (docs/tables.md, Columns)",
        )


def _rows(table: Table, partition: int, start: int, end: int) -> pa.Table:
    wanted = f"partition == {partition} and offset >= {start} and offset < {end}"
    found = table.scan(row_filter=wanted, selected_fields=RAW_NAMES).to_arrow()
    return found.sort_by([("offset", "ascending")])


def _batches(rows: pa.Table, name: str) -> Iterator[bytearray]:
    """Batches of rows whose offsets follow one another."""
    waiting: list[Record] = []
    first = size = 0
    for offset, record in _records(rows):
        following = first + len(waiting)
        if waiting and offset < following:
            raise CorruptDataError("rebuild", name, f"offset {offset} is there twice")
        if waiting and (
            offset != following or len(waiting) >= _BATCH_RECORDS or size >= _BATCH_BYTES
        ):
            yield encode_batch(_numbered(waiting), base_offset=first)
            waiting, size = [], 0
        if not waiting:
            first = offset
        waiting.append(record)
        size += len(record.key or b"") + len(record.value or b"")
    if waiting:
        yield encode_batch(_numbered(waiting), base_offset=first)


def _numbered(records: Sequence[Record]) -> list[Record]:
    return [
        Record(
            offset_delta=number,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        for number, record in enumerate(records)
    ]


def _records(rows: pa.Table) -> Iterator[tuple[int, Record]]:
    columns: list[list[Any]] = [
        rows.column(name).to_pylist() for name in ("offset", "key", "value", "headers")
    ]
    times = rows.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    for offset, key, value, headers, time_us in zip(*columns, times, strict=True):
        yield (
            offset,
            Record(
                offset_delta=0,
                timestamp=-1 if time_us is None else time_us // 1000,
                key=key,
                value=value,
                headers=tuple((one["key"], one["value"]) for one in headers),
            ),
        )
