"""Records as a table's rows: raw, or by the schemas of values and keys. Pure; which schemas there
are comes as data."""

import functools
import operator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.tables.columns import RAW_NAMES, TYPED_KEY, TYPED_NAMES, TYPED_PREFIX
from penstock.pipeline.tables.decoders import compile_schema
from penstock.pipeline.tables.formats import BadValueError, Decoder, SchemaText
from penstock.pipeline.tables.rows import BAD_SCHEMA, split_bad

RAW: Final = "raw"
REGISTRY: Final = "registry"
"""Confluent's wire format: a zero byte, four bytes of schema id, the payload."""
BARE: Final = "bare"
"""The payload alone, of schema BARE_ID."""
BARE_ID: Final = 0
VALUE: Final = "value"
KEY: Final = "key"
_WIRE_BYTES: Final = 5
_ROWS_PER_STEP: Final = 16_384
_REASON_CHARACTERS_MAX: Final = 1000


class PartPlan(msgspec.Struct, frozen=True):
    """How keys or values are read. `schemas`: by id; one that the registry lacks is `missing`;
    `is_identity`: see `compile_schema`."""

    kind: str = RAW
    schemas: dict[int, SchemaText] = {}
    is_identity: bool = False


class RowPlan(msgspec.Struct, frozen=True):
    """How records are read. Keys have a schema only where values have one."""

    value: PartPlan = PartPlan()
    key: PartPlan = PartPlan()


class SchemaIds(msgspec.Struct, frozen=True):
    """Ids of schemas, by what they are of."""

    value: frozenset[int] = frozenset()
    key: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.value or self.key)

    def __or__(self, other: "SchemaIds") -> "SchemaIds":
        return SchemaIds(self.value | other.value, self.key | other.key)


_NO_IDS: Final = SchemaIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of the table, records that can't be any, and ids of schemas that aren't in the plan;
    where there are such, the rows are not all."""

    rows: pa.Table
    bad: pa.Table
    unknown: SchemaIds = _NO_IDS


class RowReader:
    """Reads records into a table's rows.

    Args:
        schema: of the table, as `arrow_schema` gives it.
    """

    def __init__(self, plan: RowPlan, schema: pa.Schema) -> None:
        self._schema = schema
        self._is_raw = plan.value.kind == RAW
        self._value: _PartReader | None = None
        self._key: _PartReader | None = None
        if self._is_raw:
            return
        value_type = pa.struct([field for field in schema if field.name not in TYPED_NAMES])
        self._value = _PartReader(plan.value, value_type, "value")
        if plan.key.kind != RAW:
            self._key = _PartReader(plan.key, schema.field(TYPED_KEY).type, "key")

    def read(self, records: pa.Table) -> ReadRows:
        """Records (RECORD_SCHEMA) as rows, in their order."""
        if self._is_raw:
            return ReadRows(rows=fit_rows(records, self._schema), bad=BAD_SCHEMA.empty_table())
        read = self._in_steps(records, self._value)
        rows = self._schema.empty_table() if read.unknown else fit_rows(read.rows, self._schema)
        return ReadRows(rows=rows, bad=read.bad, unknown=read.unknown)

    def read_tombstones(self, records: pa.Table) -> ReadRows:
        """Records without a value as rows that have only the columns of every record."""
        if self._is_raw:
            return ReadRows(rows=records, bad=BAD_SCHEMA.empty_table())
        return self._in_steps(records, None)

    def _in_steps(self, records: pa.Table, value: "_PartReader | None") -> ReadRows:
        steps = [
            self._read_typed(records.slice(start, _ROWS_PER_STEP), value)
            for start in range(0, max(1, records.num_rows), _ROWS_PER_STEP)
        ]
        return ReadRows(
            rows=pa.concat_tables([step.rows for step in steps]),
            bad=pa.concat_tables([step.bad for step in steps]),
            unknown=functools.reduce(operator.or_, (step.unknown for step in steps)),
        )

    def _read_typed(self, records: pa.Table, value: "_PartReader | None") -> ReadRows:
        reasons: list[str | None] = [None] * records.num_rows
        values = None if value is None else value.read(records.column("value"), reasons)
        keys = None if self._key is None else self._key.read(records.column("key"), reasons)
        unknown = SchemaIds(
            value=frozenset() if value is None else value.take_unknown(),
            key=frozenset() if self._key is None else self._key.take_unknown(),
        )
        reason_column = pa.array(reasons, pa.string())
        good = pc.is_null(reason_column)
        bad = split_bad(records, pc.invert(good), reason_column.filter(pc.invert(good))).bad
        kept = records.filter(good)
        columns = {
            f"{TYPED_PREFIX}{name}": kept.column(name) for name in RAW_NAMES if name != "value"
        }
        if keys is not None:
            columns[TYPED_KEY] = keys.filter(good)
        if values is not None:
            values = values.filter(good)
            for index, field in enumerate(values.type):
                columns[field.name] = values.field(index)
        return ReadRows(rows=pa.table(columns), bad=bad, unknown=unknown)


class _PartReader:
    """Reads keys or values, which `part` says.

    Args:
        kind: what they become.
    """

    def __init__(self, plan: PartPlan, kind: pa.DataType, part: str) -> None:
        self._plan = plan
        self._kind = kind
        self._part = part
        self._decoders: dict[int, Decoder] = {}
        self._unknown: set[int] = set()

    def read(self, payloads: pa.ChunkedArray, reasons: list[str | None]) -> pa.Array:
        """One column; what can't be read is null there, and has a reason put to its row's place."""
        found: list[Any] = []
        for index, payload in enumerate(payloads.to_pylist()):
            try:
                found.append(self._decode(payload))
            except BadValueError as error:
                found.append(None)
                reasons[index] = reasons[index] or self._reason(str(error))
        return self._column(found, reasons)

    def take_unknown(self) -> frozenset[int]:
        """Ids of schemas that were met since the last call and are not in the plan."""
        unknown = frozenset(self._unknown)
        self._unknown.clear()
        return unknown

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
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            text = self._plan.schemas.get(schema_id)
            if text is None:
                self._unknown.add(schema_id)
                return None
            if text.is_missing:
                raise BadValueError(f"the registry has no schema {schema_id}")
            decoder = self._decoders[schema_id] = compile_schema(
                text,
                framed=self._plan.kind == REGISTRY,
                is_identity=self._plan.is_identity,
            )
        return decoder.decode(payload)

    def _column(self, found: list[Any], reasons: list[str | None]) -> pa.Array:
        try:
            return pa.array(found, self._kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        # Rare: something like a decimal of more digits than its schema says. One by one, then.
        for index, value in enumerate(found):
            try:
                pa.array([value], self._kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                found[index] = None
                reasons[index] = reasons[index] or self._reason(
                    f"the {self._part} does not fit its schema: {error}"
                )
        return pa.array(found, self._kind)

    def _reason(self, text: str) -> str:
        # It may repeat what the record holds: of any length, and JSON has strings that are no text.
        text = text[:_REASON_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
        return text if self._part == VALUE or self._part in text else f"its key: {text}"


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows as a schema has them; a column that they lack is null."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(rows.column(field.name).cast(field.type))
        else:
            # Of somebody else's: nobody but they know what belongs there.
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)


def wire_ids(values: pa.Array) -> set[int]:
    """The schema ids of framed values or keys; others are passed over."""
    framed = values.filter(pc.greater_equal(pc.binary_length(values), _WIRE_BYTES))
    heads = np.asarray(
        [value[:_WIRE_BYTES] for value in framed.to_pylist() if value[0] == 0], dtype=object
    )
    return {int.from_bytes(head[1:], "big") for head in heads}
