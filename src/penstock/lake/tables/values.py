"""Values as columns: raw, or by their schemas. Pure; which schemas there are comes as data."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.tables.columns import RAW_NAMES, TYPED_PREFIX
from penstock.lake.tables.formats import BadValueError, Decoder, SchemaText, compile_schema
from penstock.lake.tables.rows import BAD_SCHEMA, split_bad

RAW: Final = "raw"
REGISTRY: Final = "registry"
"""Confluent's wire format: a zero byte, four bytes of schema id, the payload."""
BARE: Final = "bare"
"""The payload alone, of schema BARE_ID."""
BARE_ID: Final = 0
_WIRE_BYTES: Final = 5
_ROWS_PER_STEP: Final = 16_384


class ValuePlan(msgspec.Struct, frozen=True):
    """How values are read. `schemas`: by id; one that the registry does not have is `missing`."""

    kind: str = RAW
    schemas: dict[int, SchemaText] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of the table, records that can't be any, and ids of schemas that aren't in the plan;
    where there are such, the rows are not all."""

    rows: pa.Table
    bad: pa.Table
    unknown_schemas: frozenset[int] = frozenset()


class ValueReader:
    """Reads records into a table's rows.

    Args:
        schema: of the table, as `arrow_schema` gives it.
    """

    def __init__(self, plan: ValuePlan, schema: pa.Schema) -> None:
        self._plan = plan
        self._schema = schema
        self._decoders: dict[int, Decoder] = {}
        own = {f"{TYPED_PREFIX}{name}" for name in RAW_NAMES}
        self._value_type = pa.struct([field for field in schema if field.name not in own])

    def read(self, records: pa.Table) -> ReadRows:
        """Records (RECORD_SCHEMA) as rows, in their order."""
        if self._plan.kind == RAW:
            return ReadRows(rows=fit_rows(records, self._schema), bad=BAD_SCHEMA.empty_table())
        steps = [
            self._read_typed(records.slice(start, _ROWS_PER_STEP))
            for start in range(0, records.num_rows, _ROWS_PER_STEP)
        ]
        unknown = frozenset[int]().union(*(step.unknown_schemas for step in steps))
        return ReadRows(
            rows=pa.concat_tables([self._schema.empty_table(), *(step.rows for step in steps)]),
            bad=pa.concat_tables([BAD_SCHEMA.empty_table(), *(step.bad for step in steps)]),
            unknown_schemas=unknown,
        )

    def _read_typed(self, records: pa.Table) -> ReadRows:
        values: list[Any] = []
        reasons: list[str | None] = []
        unknown: set[int] = set()
        for payload in records.column("value").to_pylist():
            try:
                values.append(self._decode(payload, unknown))
                reasons.append(None)
            except BadValueError as error:
                values.append(None)
                reasons.append(str(error))
        if unknown:
            return ReadRows(
                rows=self._schema.empty_table(),
                bad=BAD_SCHEMA.empty_table(),
                unknown_schemas=frozenset(unknown),
            )
        column = self._column(values, reasons)
        reason_column = pa.array(reasons, pa.string())
        good = pc.is_null(reason_column)
        bad = split_bad(records, pc.invert(good), reason_column.filter(pc.invert(good))).bad
        kept = records.filter(good)
        column = column.filter(good)
        columns = {
            f"{TYPED_PREFIX}{name}": kept.column(name) for name in RAW_NAMES if name != "value"
        }
        for index, field in enumerate(self._value_type):
            columns[field.name] = column.field(index)
        return ReadRows(rows=fit_rows(pa.table(columns), self._schema), bad=bad)

    def _decode(self, payload: bytes | None, unknown: set[int]) -> Any:
        if payload is None:
            raise BadValueError("no value")
        schema_id = BARE_ID
        if self._plan.kind == REGISTRY:
            if len(payload) < _WIRE_BYTES or payload[0] != 0:
                raise BadValueError("the value does not begin with a schema id")
            schema_id = int.from_bytes(payload[1:_WIRE_BYTES], "big")
            payload = payload[_WIRE_BYTES:]
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            text = self._plan.schemas.get(schema_id)
            if text is None:
                unknown.add(schema_id)
                return None
            if text.is_missing:
                raise BadValueError(f"the registry has no schema {schema_id}")
            decoder = self._decoders[schema_id] = compile_schema(
                text, framed=self._plan.kind == REGISTRY
            )
        return decoder.decode(payload)

    def _column(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        """Values as one struct column; those that do not fit become reasons."""
        try:
            return pa.array(values, self._value_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        # Rare: something like a decimal of more digits than its schema says. One by one, then.
        for index, value in enumerate(values):
            try:
                pa.array([value], self._value_type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[index] = None
                reasons[index] = f"the value does not fit its schema: {error}"
        return pa.array(values, self._value_type)


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
    """The schema ids of framed values; others are passed over."""
    framed = values.filter(pc.greater_equal(pc.binary_length(values), _WIRE_BYTES))
    heads = np.asarray(
        [value[:_WIRE_BYTES] for value in framed.to_pylist() if value[0] == 0], dtype=object
    )
    return {int.from_bytes(head[1:], "big") for head in heads}
