"""Columns that aren't part of a value, and Iceberg schemas as Arrow's. Pure."""

from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)
RAW_NAMES: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
TYPED_PREFIX: Final = "kafka_"
"""Before key, partition, offset, timestamp and headers where a value has columns of its own:
`_partition` and its like are Iceberg's metadata columns."""
TYPED_NAMES: Final = frozenset(f"{TYPED_PREFIX}{name}" for name in RAW_NAMES)
"""Names that a value's field can't have."""
TYPED_KEY: Final = f"{TYPED_PREFIX}key"
REST_COLUMN: Final = f"{TYPED_PREFIX}rest"
"""The column with what a JSON value's schema does not name, where the topic's policy keeps it."""
REST_PROPERTY: Final = "penstock.rest"
"""The table's property that names that column, once there is one."""


def record_fields(
    *, prefix: str, first_id: int, with_value: bool, with_key: bool = True
) -> list[NestedField]:
    """The columns of every record: (key, value,) partition, offset, timestamp, headers."""
    ids = iter(range(first_id, first_id + 16))
    fields = []
    if with_key:
        fields.append(NestedField(next(ids), f"{prefix}key", BinaryType(), required=False))
    if with_value:
        fields.append(NestedField(next(ids), f"{prefix}value", BinaryType(), required=False))
    fields += [
        NestedField(next(ids), f"{prefix}partition", IntegerType(), required=True),
        NestedField(next(ids), f"{prefix}offset", LongType(), required=True),
        NestedField(next(ids), f"{prefix}timestamp", TimestamptzType(), required=False),
    ]
    header_ids = [next(ids) for _ in range(4)]
    fields.append(
        NestedField(
            header_ids[0],
            f"{prefix}headers",
            ListType(
                element_id=header_ids[1],
                element_type=StructType(
                    NestedField(header_ids[2], "key", StringType(), required=True),
                    NestedField(header_ids[3], "value", BinaryType(), required=False),
                ),
                element_required=True,
            ),
            required=True,
        )
    )
    return fields


def raw_schema() -> Schema:
    """Return the schema of a raw table."""
    return Schema(*record_fields(prefix="", first_id=1, with_value=True))


def arrow_schema(schema: Schema) -> pa.Schema:
    """A table's schema as its Parquet files have it: with field ids, and 32-bit offsets."""
    return pa.schema([_small(field) for field in schema_to_pyarrow(schema)])


def _small(field: pa.Field) -> pa.Field:
    return field.with_type(_small_type(field.type))


def _small_type(kind: Any) -> Any:
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_field), _small(kind.item_field))
    return kind
