"""Records as a table's rows: raw, or by the schemas of values and keys. Pure; which schemas there
are comes as data."""

import functools
import operator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.pipeline.tables.columns import RAW_NAMES, TYPED_KEY, TYPED_NAMES, TYPED_PREFIX
from penstock.pipeline.tables.parts import KEY, RAW, VALUE, PartColumn, PartPlan, PartReader
from penstock.pipeline.tables.rows import BAD_SCHEMA, split_bad

_ROWS_PER_STEP: Final = 16_384


class RowPlan(msgspec.Struct, frozen=True):
    """The plan by which records are read. Keys have a schema only where values have one."""

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
        self._value: PartReader | None = None
        self._key: PartReader | None = None
        if self._is_raw:
            return
        value_type = pa.struct([field for field in schema if field.name not in TYPED_NAMES])
        self._value = PartReader(plan.value, value_type, VALUE)
        if plan.key.kind != RAW:
            self._key = PartReader(plan.key, schema.field(TYPED_KEY).type, KEY)

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

    def _in_steps(self, records: pa.Table, value: "PartReader | None") -> ReadRows:
        steps = [
            self._read_typed(records.slice(start, _ROWS_PER_STEP), value)
            for start in range(0, max(1, records.num_rows), _ROWS_PER_STEP)
        ]
        return ReadRows(
            rows=pa.concat_tables([step.rows for step in steps]),
            bad=pa.concat_tables([step.bad for step in steps]),
            unknown=functools.reduce(operator.or_, (step.unknown for step in steps)),
        )

    def _read_typed(self, records: pa.Table, value: "PartReader | None") -> ReadRows:
        parts: list[tuple[PartColumn, PartReader]] = []
        if value is not None:
            parts.append((value.read(records.column("value")), value))
        if self._key is not None:
            parts.append((self._key.read(records.column("key")), self._key))
        unknown = SchemaIds(
            value=frozenset() if value is None else value.take_unknown(),
            key=frozenset() if self._key is None else self._key.take_unknown(),
        )
        # A record's first reason is its letter's.
        reasons: dict[int, str] = {}
        for column, _ in reversed(parts):
            reasons.update(column.reasons)
        kept, bad, good = records, BAD_SCHEMA.empty_table(), None
        if reasons:
            good = np.ones(records.num_rows, dtype=bool)
            good[list(reasons)] = False
            texts = pa.array([reasons[row] for row in sorted(reasons)], pa.string())
            split = split_bad(records, pa.array(~good), texts)
            kept, bad = split.rows, split.bad
        columns = {
            f"{TYPED_PREFIX}{name}": kept.column(name) for name in RAW_NAMES if name != "value"
        }
        for column, reader in parts:
            values = column.of_rows(good)
            if reader is self._key:
                columns[TYPED_KEY] = values
            else:
                for index, field in enumerate(values.type):
                    columns[field.name] = values.field(index)
        return ReadRows(rows=pa.table(columns), bad=bad, unknown=unknown)


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows as a schema has them; a column that they lack is null."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            column = rows.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        else:
            # The column is another program's, which alone knows what belongs there.
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)
