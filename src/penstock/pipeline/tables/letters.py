"""Dead letters as the records that they hold: the headers that say what they were. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.pipeline.tables.rows import RECORD_SCHEMA, is_one_record

REASON: Final = "penstock.reason"
TOPIC: Final = "penstock.topic"
TOPIC_ID: Final = "penstock.topic-id"
PARTITION: Final = "penstock.partition"
OFFSET: Final = "penstock.offset"
TIMESTAMP: Final = "penstock.timestamp"
"""The record's time in ms; -1: it had none. Only letters that hold one record as it was have it."""
LEFT_OUT: Final = "penstock.left-out"
"""A letter that has it lacks what its record held: so many bytes, more than its topic takes. The
record is in the log at its offset."""
_NO_TIMESTAMP: Final = -1

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Originals:
    """The records of some letters. `records`: RECORD_SCHEMA; `others`: how many letters hold no
    record of the topic."""

    records: pa.Table
    others: int


def letter_headers(row: dict[str, Any], *, topic: str, topic_id: str) -> Headers:
    """Return the headers that a letter has besides its record's own.

    Args:
        row: of BAD_SCHEMA; its timestamp in microseconds.
    """
    headers: Headers = [
        (REASON, row["reason"].encode()),
        (TOPIC, topic.encode()),
        (TOPIC_ID, topic_id.encode()),
        (PARTITION, b"%d" % row["partition"]),
        (OFFSET, b"%d" % row["offset"]),
    ]
    if is_one_record(row["reason"]):
        micros = row["timestamp"]
        headers.append((TIMESTAMP, b"%d" % (_NO_TIMESTAMP if micros is None else micros // 1000)))
    return headers


def originals(letters: pa.Table, topic_id: str) -> Originals:
    """Return the records that letters hold, with their own headers, places and times.

    Args:
        letters: RECORD_SCHEMA, as their topic has them.
        topic_id: of the topic whose records are wanted.
    """
    rows: list[int] = []
    places: list[tuple[int, int, int | None]] = []
    kept: list[list[dict[str, Any]]] = []
    for row, headers in enumerate(letters.column("headers").to_pylist()):
        found = _place(headers, topic_id)
        if found is None:
            continue
        place, own = found
        rows.append(row)
        places.append(place)
        kept.append(own)
    taken = letters.take(pa.array(rows, pa.int64()))
    micros = [None if ms is None else ms * 1000 for _, _, ms in places]
    records = pa.table(
        [
            taken.column("key"),
            taken.column("value"),
            pa.array(np.array([place[0] for place in places], np.int32)),
            pa.array(np.array([place[1] for place in places], np.int64)),
            pa.array(micros, pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
            pa.array(kept, RECORD_SCHEMA.field("headers").type),
        ],
        schema=RECORD_SCHEMA,
    )
    return Originals(records=records, others=letters.num_rows - len(rows))


def _place(
    headers: list[dict[str, Any]], topic_id: str
) -> tuple[tuple[int, int, int | None], list[dict[str, Any]]] | None:
    """Return partition, offset and time of the record, and its own headers; None: the letter holds
    none, or one of another topic."""
    # A record may have had such headers itself, where it came from another topic of letters: ours
    # are the last ones.
    start = max(
        (number for number, header in enumerate(headers) if header["key"] == REASON), default=None
    )
    if start is None:
        return None
    said = {header["key"]: header["value"] or b"" for header in headers[start:]}
    if said.get(TOPIC_ID) != topic_id.encode() or TIMESTAMP not in said or LEFT_OUT in said:
        return None
    try:
        partition, offset, time_ms = (int(said[name]) for name in (PARTITION, OFFSET, TIMESTAMP))
    except (KeyError, ValueError):
        return None
    return (partition, offset, None if time_ms == _NO_TIMESTAMP else time_ms), headers[:start]
