"""Partition transforms by their text, and rows split by them. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from penstock.model.errors import InvalidRequestError

_TRANSFORM: Final = re.compile(
    r"(year|month|day|hour|identity|bucket|truncate)\s*(?:\[\s*([0-9]{1,6})\s*\])?"
    r"\s*\(\s*([^(),\[\]]+?)\s*\)"
)
_SIZED: Final = ("bucket", "truncate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One of a partition's transforms: what, of which column; `size`: N of bucket and truncate."""

    kind: str
    column: str
    size: int = 0


def parse_transforms(
    text: str, *, rename: Mapping[str, str] = MappingProxyType({})
) -> tuple[Transform, ...]:
    """`day(timestamp), bucket[16](key)`; `none` or nothing: no partitions.

    Args:
        rename: columns that have another name than the one that is written.

    Raises:
        InvalidRequestError: another text.
    """
    if text.strip() in ("", "none"):
        return ()
    transforms: list[Transform] = []
    position = 0
    while True:
        match = _TRANSFORM.match(text, position + _spaces(text, position))
        if match is None or ((match[1] in _SIZED) != (match[2] is not None)):
            raise InvalidRequestError(
                "read partition transforms",
                text,
                f"no transform at character {position + 1}",
                "as day(timestamp), or bucket[16](key), with commas between them; or none",
            )
        transforms.append(
            Transform(kind=match[1], column=rename.get(match[3], match[3]), size=int(match[2] or 0))
        )
        position = match.end() + _spaces(text, match.end())
        if position == len(text):
            return tuple(transforms)
        position += text[position] == ","


def partition_spec(schema: Schema, transforms: tuple[Transform, ...]) -> PartitionSpec:
    """The spec of a new table.

    Raises:
        InvalidRequestError: no such column, a transform that doesn't fit its type, or one twice.
    """
    fields: list[PartitionField] = []
    for number, transform in enumerate(transforms):
        shown = f"{transform.kind}({transform.column})"
        try:
            source = schema.find_field(transform.column)
        except ValueError as error:
            raise InvalidRequestError(
                "partition a table", shown, f"no such column: {error}"
            ) from error
        parsed = parse_transform(
            f"{transform.kind}[{transform.size}]" if transform.size else transform.kind
        )
        name = f"{transform.column}_{transform.kind}".replace(".", "_")
        if transform.kind == "identity":
            name = transform.column
        taken = any(field.source_id == source.field_id for field in fields)
        if taken or not parsed.can_transform(source.field_type):
            detail = "the column has one already" if taken else f"not of {source.field_type}"
            raise InvalidRequestError("partition a table", shown, detail)
        fields.append(
            PartitionField(
                source_id=source.field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=parsed,
                name=name,
            )
        )
    return PartitionSpec(*fields)


def split_rows(
    rows: pa.Table, *, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Rows by partition, in the order in which partitions first appear.

    Args:
        rows: columns at least those that the spec transforms.
    """
    if not spec.fields or not rows.num_rows:
        if rows.num_rows:
            yield None, rows
        return
    columns = {
        f"p{number}": transformed(rows, field, schema) for number, field in enumerate(spec.fields)
    }
    keys = pa.table({**columns, "row": pa.array(np.arange(rows.num_rows))})
    groups = keys.group_by(list(columns), use_threads=False).aggregate([("row", "list")])
    places = groups.column("row_list").combine_chunks()
    for number in range(groups.num_rows):
        values = [
            PartitionFieldValue(field=field, value=groups.column(f"p{index}")[number].as_py())
            for index, field in enumerate(spec.fields)
        ]
        key = PartitionKey(field_values=values, partition_spec=spec, schema=schema)
        yield key, rows if groups.num_rows == 1 else rows.take(places[number].values)


def transformed(rows: pa.Table, field: PartitionField, schema: Schema) -> Any:
    """Transform rows by a partition field; a nested column's path is followed."""
    source = schema.find_field(field.source_id)
    path = schema.find_column_name(field.source_id)
    assert path is not None
    first, *inner = path.split(".")
    column = rows.column(first)
    for name in inner:
        column = pc.struct_field(column, name)
    # One chunk, since not every transform takes several.
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return field.transform.pyarrow_transform(source.field_type)(column)


def _spaces(text: str, position: int) -> int:
    return len(text[position:]) - len(text[position:].lstrip())
