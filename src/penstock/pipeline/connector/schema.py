"""The columns of a topic read as a DataFrame: those of Spark's Kafka source, names and types.

| column | Spark | Arrow |
| --- | --- | --- |
| key, value | binary | binary |
| topic | string | string |
| partition | int | int32 |
| offset | bigint | int64 |
| timestamp | timestamp | timestamp[us, UTC] |
| timestampType | int | int32: 0 create time, 1 log append time |
| headers | array<struct<key: string, value: binary>> | the same; null where a record has none |

Spark takes exactly these Arrow types of a Python data source: it refuses views, large and
dictionary types.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import CorruptDataError, InvalidRequestError

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type in Spark's words, its type in Arrow's."""

    name: str
    spark: str
    arrow: pa.DataType


COLUMNS: Final = (
    Column("key", "binary", pa.binary()),
    Column("value", "binary", pa.binary()),
    Column("topic", "string", pa.string()),
    Column("partition", "int", pa.int32()),
    Column("offset", "bigint", pa.int64()),
    Column("timestamp", "timestamp", TIMESTAMP_TYPE),
    Column("timestampType", "int", pa.int32()),
    Column(
        "headers",
        "array<struct<key:string,value:binary>>",
        pa.list_(pa.field("element", HEADER_TYPE)),
    ),
)
HEADERS: Final = "headers"
_BY_NAME: Final = {column.name: column for column in COLUMNS}


def default_columns(*, headers: bool) -> tuple[str, ...]:
    """The columns of a read that names none: all, `headers` only where they are asked for."""
    return tuple(column.name for column in COLUMNS if headers or column.name != HEADERS)


def spark_ddl(names: Sequence[str]) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"`{name}` {_BY_NAME[name].spark}" for name in names)


@lru_cache(maxsize=8)
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The schema that the record batches of a read have."""
    return pa.schema([pa.field(name, _BY_NAME[name].arrow) for name in names])


def checked_columns(given: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The columns that a schema given by the user asks for: any of ours, in any order.

    Args:
        given: (name, Spark's simple name of the type) per field.

    Raises:
        InvalidRequestError: a column that isn't here, or with another type.
    """
    names = []
    for name, spark in given:
        column = _BY_NAME.get(name)
        if column is None:
            raise InvalidRequestError(
                "read", f"column {name!r}", "there is no such column", f"there are {_names()}"
            )
        if spark != column.spark:
            raise InvalidRequestError(
                "read", f"column {name!r}", f"its type is {column.spark}, not {spark}"
            )
        names.append(name)
    return tuple(names)


def record_batches(
    columns: dict[str, pa.Array],
    *,
    rows: int,
    names: Sequence[str],
    topic: str,
    partition: int,
    bytes_max: int,
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's decoded records as batches for Spark of about `bytes_max` each.

    Args:
        columns: the columns in `names`: key, value, offset, timestamp (int64, ms),
            timestampType, headers (an empty or null list where there are none).

    Raises:
        CorruptDataError: a timestamp that Spark's microseconds can't hold.
    """
    if rows == 0:
        return
    arrays = []
    for name in names:
        if name == "topic":
            arrays.append(_repeated(topic, rows))
        elif name == "partition":
            arrays.append(_repeated(partition, rows))
        elif name == "timestamp":
            arrays.append(_timestamps(columns[name], topic, partition))
        elif name == HEADERS:
            arrays.append(_headers(columns[name]))
        else:
            arrays.append(columns[name])
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(tuple(names)))
    step = max(1, rows * bytes_max // max(batch.nbytes, 1))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def _repeated(value: str | int, rows: int) -> pa.Array:
    """The same value in each row: a slice of what the batches before had."""
    return _repeated_often(value, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=8)
def _repeated_often(value: str | int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()), rows)


def _timestamps(milliseconds: pa.Array, topic: str, partition: int) -> pa.Array:
    try:
        micros = pc.multiply_checked(milliseconds, pa.scalar(1000, pa.int64()))
    except pa.ArrowInvalid as error:
        raise CorruptDataError(
            "read",
            f"{topic}-{partition}",
            f"a timestamp is beyond {_TIMESTAMP_MS_MAX} ms, which Spark's type can't hold",
            "read the other columns, by the option columns",
        ) from error
    return micros.view(TIMESTAMP_TYPE)


def _headers(lists: pa.Array) -> pa.Array:
    """Spark's Kafka source gives null where a record has no headers, and so do we."""
    lists = lists.cast(_BY_NAME[HEADERS].arrow)
    empty = pc.equal(pc.fill_null(pc.list_value_length(lists), 0), 0)
    if not pc.any(empty).as_py():
        return lists
    # With a mask the children stay as they are; if_else would copy them.
    return pa.ListArray.from_arrays(lists.offsets, lists.values, type=lists.type, mask=empty)


def _names() -> str:
    return ", ".join(_BY_NAME)
