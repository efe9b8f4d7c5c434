"""One part of records, keys or values, as a column by its schemas. Pure.

Payloads of a schema that a kernel decodes (`penstock.pipeline.tables.columnar`) are decoded
together; what it leaves, and all of other formats, one by one by the careful decoder, which alone
says what is bad.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.kernels.arrays import Int64s
from penstock.kernels.columns import bytes_column
from penstock.pipeline.tables.columnar import ColumnDecoder
from penstock.pipeline.tables.decoders import compile_columns, compile_schema
from penstock.pipeline.tables.formats import BadValueError, Decoder
from penstock.pipeline.tables.schema_text import SchemaText

RAW: Final = "raw"
REGISTRY: Final = "registry"
"""Confluent's wire format: a zero byte, four bytes of schema id, the payload."""
BARE: Final = "bare"
"""The payload alone, of schema BARE_ID."""
BARE_ID: Final = 0
VALUE: Final = "value"
KEY: Final = "key"
_WIRE_BYTES: Final = 5
_REASON_CHARACTERS_MAX: Final = 1000
_BYTE_WEIGHTS: Final = np.array([1 << 24, 1 << 16, 1 << 8, 1])
_UNFIT: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)


class PartPlan(msgspec.Struct, frozen=True):
    """The plan by which keys or values are read. `schemas`: by id; ids that the registry lacks are
    `missing`, as are those that the table can't follow; `is_identity`, `unknown`: see
    `compile_schema`."""

    kind: str = RAW
    schemas: dict[int, SchemaText] = {}
    is_identity: bool = False
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartColumn:
    """One part of some records.

    Args:
        values: what could be read.
        places: per record, where in `values` its own is, or -1; None: in the records' order, all.
        reasons: why a record's can't be read, by its row.
    """

    values: pa.Array
    places: NDArray[Any] | None
    reasons: dict[int, str]

    def of_rows(self, good: NDArray[Any] | None) -> pa.Array:
        """The values of the rows that are good, in their order; each of them can be read.

        Args:
            good: per record; None: all are.
        """
        places = self.places
        if places is None:
            return self.values if good is None else self.values.filter(pa.array(good))
        if good is not None:
            places = places[good]
        if len(places) == len(self.values) and np.array_equal(places, np.arange(len(places))):
            # No copy where the only ones that are missing are bad.
            return self.values
        return self.values.take(pa.array(places))


class PartReader:
    """Reads keys or values, which `part` says.

    Args:
        kind: what they become.
    """

    def __init__(self, plan: PartPlan, kind: pa.DataType, part: str) -> None:
        self._plan = plan
        self._kind = kind
        self._part = part
        self._decoders: dict[int, Decoder] = {}
        self._by_columns: dict[int, ColumnDecoder | None] = {}
        self._unknown: set[int] = set()

    def read(self, payloads: pa.ChunkedArray) -> PartColumn:
        """Read one part of each record."""
        count = len(payloads)
        data, ends32, valid = bytes_column(payloads, count)
        starts, ends = ends32[:-1].astype(np.int64), ends32[1:].astype(np.int64)
        is_left = np.ones(count, dtype=bool)
        found: list[pa.Array] = []
        rows_of: list[NDArray[Any]] = []
        for schema_id, rows in self._rows_by_schema(data, starts, ends, valid):
            decoder = self._columns(schema_id)
            if decoder is None:
                continue
            skipped = _WIRE_BYTES if self._plan.kind == REGISTRY else 0
            columns = decoder.decode(data, starts[rows] + skipped, ends[rows])
            decoded = rows[columns.is_left == 0]
            is_left[decoded] = False
            found.append(columns.values)
            rows_of.append(decoded)
        reasons: dict[int, str] = {}
        if is_left.any() or not found:
            rows = np.flatnonzero(is_left)
            careful, readable = self._read_carefully(payloads, rows, reasons)
            if len(careful):
                found.append(careful)
                rows_of.append(readable)
        if not found:
            return PartColumn(
                values=pa.array([], self._kind), places=np.full(count, -1), reasons=reasons
            )
        values = found[0] if len(found) == 1 else pa.concat_arrays(found)
        if len(found) == 1 and len(values) == count:
            return PartColumn(values=values, places=None, reasons=reasons)
        places = np.full(count, -1, dtype=np.int64)
        places[np.concatenate(rows_of)] = np.arange(len(values))
        return PartColumn(values=values, places=places, reasons=reasons)

    def take_unknown(self) -> frozenset[int]:
        """Ids of schemas that were met since the last call and are not in the plan."""
        unknown = frozenset(self._unknown)
        self._unknown.clear()
        return unknown

    def _rows_by_schema(
        self, data: NDArray[Any], starts: Int64s, ends: Int64s, valid: NDArray[Any]
    ) -> list[tuple[int, NDArray[Any]]]:
        """The rows of each schema of the plan; those of none have no schema id, or are null."""
        if self._plan.kind != REGISTRY:
            return [(BARE_ID, np.flatnonzero(valid))]
        rows, ids = _framed(data, starts, ends, valid)
        if not len(ids):
            return []
        if (ids == ids[0]).all():
            return [(int(ids[0]), rows)]
        return [(int(schema_id), rows[ids == schema_id]) for schema_id in np.unique(ids)]

    def _columns(self, schema_id: int) -> ColumnDecoder | None:
        if schema_id not in self._by_columns:
            text = self._plan.schemas.get(schema_id)
            if text is None or text.is_missing:
                return None
            self._by_columns[schema_id] = compile_columns(
                text, self._decoder(schema_id, text), self._kind
            )
        return self._by_columns[schema_id]

    def _decoder(self, schema_id: int, text: SchemaText) -> Decoder:
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            decoder = self._decoders[schema_id] = compile_schema(
                text,
                framed=self._plan.kind == REGISTRY,
                is_identity=self._plan.is_identity,
                unknown=self._plan.unknown,
            )
        return decoder

    def _read_carefully(
        self, payloads: pa.ChunkedArray, rows: NDArray[Any], reasons: dict[int, str]
    ) -> tuple[pa.Array, NDArray[Any]]:
        """The values that can be read one by one, and their rows."""
        found: list[Any] = []
        readable: list[int] = []
        for row, payload in zip(
            rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True
        ):
            try:
                found.append(self._decode(payload))
                readable.append(row)
            except BadValueError as error:
                reasons[row] = self._reason(str(error))
        try:
            return pa.array(found, self._kind), np.array(readable, dtype=np.int64)
        except _UNFIT:
            pass
        # Rare: something like a decimal of more digits than its schema says. One by one, then.
        fitting: list[int] = []
        for index, value in enumerate(found):
            try:
                pa.array([value], self._kind)
                fitting.append(index)
            except _UNFIT as error:
                reasons[readable[index]] = self._reason(
                    f"the {self._part} does not fit its schema: {error}"
                )
        return (
            pa.array([found[index] for index in fitting], self._kind),
            np.array([readable[index] for index in fitting], dtype=np.int64),
        )

    def _decode(self, payload: bytes | None) -> Any:
        if payload is None:
            if self._part == KEY:
                return None
            raise BadValueError("no value")
        schema_id = BARE_ID
        if self._plan.kind == REGISTRY:
            if len(payload) < _WIRE_BYTES or payload[0] != 0:
                raise BadValueError(f"the {self._part} does not begin with a schema id")
            schema_id = int.from_bytes(payload[1:_WIRE_BYTES], "big")
            payload = payload[_WIRE_BYTES:]
        text = self._plan.schemas.get(schema_id)
        if text is None:
            self._unknown.add(schema_id)
            return None
        if text.is_missing:
            raise BadValueError(text.text or f"the registry has no schema {schema_id}")
        return self._decoder(schema_id, text).decode(payload)

    def _reason(self, text: str) -> str:
        # The reason may repeat a record's text, of any length, and JSON has strings that UTF-8
        # hasn't.
        text = text[:_REASON_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
        return text if self._part == VALUE or self._part in text else f"its key: {text}"


def wire_ids(payloads: pa.Array) -> set[int]:
    """The schema ids of framed values or keys; others are passed over."""
    data, ends32, valid = bytes_column(payloads, len(payloads))
    starts, ends = ends32[:-1].astype(np.int64), ends32[1:].astype(np.int64)
    return set(np.unique(_framed(data, starts, ends, valid)[1]).tolist())


def _framed(
    data: NDArray[Any], starts: Int64s, ends: Int64s, valid: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows of payloads that begin with a schema id, and their ids."""
    rows = np.flatnonzero((valid != 0) & (ends - starts >= _WIRE_BYTES))
    rows = rows[data[starts[rows]] == 0]
    heads = data[starts[rows][:, np.newaxis] + np.arange(1, _WIRE_BYTES)]
    return rows, heads.astype(np.int64) @ _BYTE_WEIGHTS
