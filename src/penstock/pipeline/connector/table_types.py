"""Iceberg's types as Spark's, and Arrow batches of the ones as batches of the others.

Spark has no type for `uuid`, which becomes a string, nor a widely usable one for `time`, which
becomes a string, too: 12:34:56.789012. `fixed` becomes binary.
"""

import uuid
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.model.errors import InvalidRequestError

_PLAIN: dict[type[iceberg.IcebergType], spark.DataType] = {
    iceberg.BooleanType: spark.BooleanType(),
    iceberg.IntegerType: spark.IntegerType(),
    iceberg.LongType: spark.LongType(),
    iceberg.FloatType: spark.FloatType(),
    iceberg.DoubleType: spark.DoubleType(),
    iceberg.DateType: spark.DateType(),
    iceberg.TimeType: spark.StringType(),
    iceberg.TimestampType: spark.TimestampNTZType(),
    iceberg.TimestamptzType: spark.TimestampType(),
    iceberg.StringType: spark.StringType(),
    iceberg.UUIDType: spark.StringType(),
    iceberg.BinaryType: spark.BinaryType(),
    iceberg.FixedType: spark.BinaryType(),
}


def spark_schema(schema: Schema) -> spark.StructType:
    """Return the columns of a table as Spark has them; each may be null.

    Raises:
        InvalidRequestError: a column has a type that Spark can't have.
    """
    return _struct(schema.fields)


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Return the only schema that Spark takes batches with."""
    return to_arrow_schema(schema, timezone="UTC")


def fit(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the target's types and order of columns."""
    arrays = [_cast(batch.column(field.name), field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _struct(fields: tuple[iceberg.NestedField, ...]) -> spark.StructType:
    return spark.StructType(
        [spark.StructField(field.name, _type(field.name, field.field_type)) for field in fields]
    )


def _type(name: str, kind: iceberg.IcebergType) -> spark.DataType:
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, iceberg.StructType):
        return _struct(kind.fields)
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_type(name, kind.element_type))
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(_type(name, kind.key_type), _type(name, kind.value_type))
    found = _PLAIN.get(type(kind))
    if found is None:
        raise InvalidRequestError(
            "read", f"column {name!r}", f"Spark has no type for Iceberg's {kind}", "leave it out"
        )
    return found


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type == target:
        return array
    if not _holds_texts(array.type):
        return array.cast(target)
    return pa.array([_plain(value) for value in array.to_pylist()], target)


def _holds_texts(kind: pa.DataType) -> bool:
    """Whether a value in it becomes a string that no cast makes."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_time(kind):
        return True
    return any(_holds_texts(kind.field(n).type) for n in range(kind.num_fields))


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return (
        value.isoformat(timespec="microseconds")
        if hasattr(value, "tzinfo") and not hasattr(value, "year")
        else value
    )
