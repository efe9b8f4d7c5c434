"""A key's identity is a value that Arrow can group and look up by, whatever the key's type. Pure.

Bytes, and scalars of a schema, are their own identity. A struct's fields are written one after the
other, each with its length, so that two identities are equal exactly if all fields are. The bytes
that a producer sent can't be used, since they begin with the id of the producer's schema. A struct
that is null is not a struct whose fields are all null.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    NestedField,
    PrimitiveType,
    StructType,
)

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.columns import TYPED_KEY

_NULL: Final = b"-"


def key_identity(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of scalars or bytes; equal where keys are equal, and null where they are null."""
    if not pa.types.is_struct(keys.type):
        return keys
    parts = []
    for index in range(keys.type.num_fields):
        child = pa.chunked_array(
            [pc.struct_field(chunk, index) for chunk in keys.chunks], keys.type.field(index).type
        )
        parts.append(_written(key_identity(child)))
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    # What Arrow gives for the fields of a null struct are nulls, as where they are null themselves.
    return pc.if_else(keys.is_valid(), joined, pa.scalar(None, pa.binary()))


def check_key(schema: Schema, *, table: str) -> tuple[str, list[int]]:
    """Check that the keys of a typed table have identities.

    Returns:
        The path of the column that rows are bucketed by: the key, or the first of its fields that
        is always there; and the ids of all that a key consists of where none of it may be null,
        which Iceberg calls the identifier fields.

    Raises:
        InvalidRequestError: they have none: the key holds floats, lists or maps; or there is
            nothing to bucket by.
    """
    column = schema.find_field(TYPED_KEY)
    leaves: list[tuple[str, NestedField, bool]] = []
    _gather(column, TYPED_KEY, True, leaves, table)  # noqa: FBT003 - recursive and private
    for path, field, is_always in leaves:
        if is_always and BucketTransform(1).can_transform(field.field_type):
            whole = all(required for _, _, required in leaves)
            return path, [leaf.field_id for _, leaf, _ in leaves] if whole else []
    raise InvalidRequestError(
        "upsert into table",
        table,
        "no field of its key can be bucketed",
        "one has to be required, and a number, text, bytes, a date or a time",
    )


def _gather(
    field: NestedField,
    path: str,
    is_always: bool,  # noqa: FBT001
    leaves: list[tuple[str, NestedField, bool]],
    table: str,
) -> None:
    kind: IcebergType = field.field_type
    is_always = is_always and (field.required or path == TYPED_KEY)
    if isinstance(kind, StructType):
        for inner in kind.fields:
            _gather(inner, f"{path}.{inner.name}", is_always, leaves, table)
    elif isinstance(kind, FloatType | DoubleType) or not isinstance(kind, PrimitiveType):
        raise InvalidRequestError(
            "upsert into table",
            table,
            f"its key has {path}, {kind}, which can't identify rows",
            "append, or let keys be bytes",
        )
    else:
        leaves.append((path, field, is_always))


def _written(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """`LENGTH:BYTES`, or `-` for null."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        values = values.cast(pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        values = values.cast(pa.binary())
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.string()).cast(pa.binary())
    lengths = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
    written = pc.binary_join_element_wise(lengths, values, pa.scalar(b":", pa.binary()))
    return pc.fill_null(written, pa.scalar(_NULL, pa.binary()))
