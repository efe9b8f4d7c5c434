"""Schemas of values: their Iceberg types, and what decodes them, whatever their format. Pure."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyiceberg.types import IcebergType

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.shapes import Shape

DEPTH_MAX: Final = 32


class BadValueError(Exception):
    """A value that is not of its schema; the text is the reason that its dead letter carries."""


class UnsupportedSchemaError(InvalidRequestError):
    """A schema that no table can have: it stops the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """A field: its Iceberg type without ids, and whether it may be null."""

    name: str
    type: "AnyType"
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordType:
    """A struct."""

    fields: tuple[FieldType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list."""

    element: "AnyType"
    element_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    """A map with string keys (Protobuf: any scalar)."""

    key: "AnyType"
    value: "AnyType"
    value_required: bool


AnyType = IcebergType | RecordType | ListOf | MapOf


class Decoder(Protocol):
    """A compiled schema."""

    @property
    def type(self) -> AnyType:
        """The type of decoded values: of a value's schema a `RecordType`, whose fields are
        columns."""
        ...

    @property
    def shape(self) -> Shape | None:
        """The shape by which a kernel decodes such values by columns; None: no kernel can."""
        ...

    def decode(self, payload: bytes) -> Any:
        """Decode to what Arrow takes for the type: a record by its fields. Raises:
        BadValueError."""
        ...


def columns_of(decoder: Decoder, *, subject: str) -> RecordType:
    """The columns of a value's schema. Raises: UnsupportedSchemaError: it has none."""
    if not isinstance(decoder.type, RecordType):
        raise UnsupportedSchemaError(
            "read schema", subject, "it is not a record or object, so it has no columns"
        )
    return decoder.type
