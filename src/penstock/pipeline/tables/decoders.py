"""The decoder of a schema, by its format. Pure.

Each format's module is imported once a schema of it is there: its library is large.
"""

from collections.abc import Callable

import pyarrow as pa

from penstock.pipeline.tables.columnar import ColumnDecoder
from penstock.pipeline.tables.formats import Decoder, UnsupportedSchemaError
from penstock.pipeline.tables.schema_text import AVRO, JSON, PROTOBUF, SchemaText


def compile_schema(
    text: SchemaText, *, framed: bool, is_identity: bool = False, unknown: str = ""
) -> Decoder:
    """Compile a decoder of one schema.

    Args:
        framed: whether payloads come from Confluent's wire format; Protobuf's then begin with
            the indexes of their message.
        is_identity: whether the schema's values identify rows. Then a payload that holds more than
            a column can is not a value, rather than equal to another one; and a Protobuf enum is
            its number, since names may change.
        unknown: of JSON, what becomes of properties that the schema does not name: see
            `JsonDecoder`.

    Raises:
        UnsupportedSchemaError: the text is not a schema, or no table can have it.
    """
    compilers: dict[str, Callable[[], Decoder]] = {
        AVRO: lambda: _avro(text),
        JSON: lambda: _json(text, is_identity=is_identity, unknown=unknown),
        PROTOBUF: lambda: _protobuf(text, framed=framed, is_identity=is_identity),
    }
    compiler = compilers.get(text.kind)
    if compiler is None:
        raise UnsupportedSchemaError("read schema", text.kind, "it is AVRO, JSON or PROTOBUF")
    return compiler()


def compile_columns(text: SchemaText, decoder: Decoder, kind: pa.DataType) -> ColumnDecoder | None:
    """A decoder of many values at once, to columns of `kind`; None: the format has none."""
    shape = decoder.shape
    if shape is None:
        return None
    if text.kind == JSON:
        from penstock.kernels.json_columns import decode_json

        return ColumnDecoder(shape, kind, decode_json)
    from penstock.kernels.avro_columns import decode_avro

    return ColumnDecoder(shape, kind, decode_avro)


def _avro(text: SchemaText) -> Decoder:
    from penstock.pipeline.tables.avro import AvroDecoder

    return AvroDecoder(text)


def _json(text: SchemaText, *, is_identity: bool, unknown: str) -> Decoder:
    from penstock.pipeline.tables.json_schema import JsonDecoder

    return JsonDecoder(text, is_identity=is_identity, unknown=unknown)


def _protobuf(text: SchemaText, *, framed: bool, is_identity: bool) -> Decoder:
    from penstock.pipeline.tables.protobuf import ProtobufDecoder

    return ProtobufDecoder(text, framed=framed, is_identity=is_identity)
