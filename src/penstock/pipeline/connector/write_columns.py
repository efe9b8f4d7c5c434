"""A DataFrame's columns are written like those of Spark's Kafka sink, and also `timestamp`.

| column | type | |
| --- | --- | --- |
| value | string or binary | required |
| key | string or binary | |
| headers | array<struct<key: string, value: binary>> | |
| topic | string | required unless the option `topic` is given, which takes its place |
| partition | int | null: by the key, as Kafka's clients choose |
| timestamp | timestamp | null: the task's time |

Others are not written, as in Kafka's sink: what was read can be written as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.kernels.arrays import Int64s
from penstock.model.errors import InvalidRequestError

_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteColumns:
    """Positions of columns; -1: there is none."""

    key: int
    value: int
    headers: int
    topic: int
    partition: int
    timestamp: int


def find_columns(fields: Sequence[tuple[str, str]], *, topic: str) -> WriteColumns:
    """Find the columns.

    Args:
        fields: (name, Spark's simple name of the type) per column.
        topic: the option; "": a column must say.

    Raises:
        InvalidRequestError: a column is missing, there twice, or of another type.
    """
    found: dict[str, int] = {}
    for position, (name, kind) in enumerate(fields):
        known = _TYPES.get(name.lower())
        if known is None:
            continue
        if name.lower() in found:
            raise _invalid(name, "it is there twice")
        if kind not in known:
            raise _invalid(name, f"its type is {kind}, not {' or '.join(known)}")
        found[name.lower()] = position
    if "value" not in found:
        raise _invalid("value", "it is missing")
    if "topic" not in found and not topic:
        raise _invalid("topic", "it is missing", "give the option topic, or such a column")
    return WriteColumns(**{name: found.get(name, -1) for name in _TYPES})


def timestamps_ms(column: Any, now_ms: int, count: int) -> Int64s:
    """Milliseconds since the epoch, `now_ms` where there are none.

    Args:
        column: timestamps of Arrow, any unit; or None.
    """
    if column is None:
        return np.full(count, now_ms, dtype=np.int64)
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    valid = micros.is_valid().to_numpy(zero_copy_only=False)
    values = micros.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(valid, np.floor_divide(values, 1000), now_ms)


def _invalid(name: str, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("write", f"column {name}", detail, hint)
