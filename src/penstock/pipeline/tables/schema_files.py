"""Schemas that a person gives as a file."""

import base64
from pathlib import Path
from typing import Final

from penstock.lake.tables.formats import AVRO, JSON, PROTOBUF, SchemaText, compile_schema
from penstock.model.errors import InvalidRequestError

_KINDS: Final = {".avsc": AVRO, ".json": JSON, ".desc": PROTOBUF, ".pb": PROTOBUF}
_BYTES_MAX: Final = 16 << 20
_COMPILE: Final = (
    "a descriptor set is taken instead: pip install grpcio-tools; python -m grpc_tools.protoc -I. "
    "--include_imports --descriptor_set_out={stem}.desc {stem}.proto"
)


def read_schema_file(path: Path, *, message: str = "") -> SchemaText:
    """A schema by its file's suffix: .avsc, .json, or .desc and .pb for a descriptor set.

    Args:
        message: of a descriptor set, the full name of the values' message.

    Raises:
        InvalidRequestError: no such file or suffix, no message, or no schema that a table can have.
    """
    kind = _KINDS.get(path.suffix)
    if path.suffix == ".proto":
        raise InvalidRequestError(
            "read schema", str(path), "it is not compiled here", _COMPILE.format(stem=path.stem)
        )
    if kind is None:
        raise InvalidRequestError(
            "read schema", str(path), f"suffix {path.suffix!r}", f"it is one of {', '.join(_KINDS)}"
        )
    if kind == PROTOBUF and not message:
        raise InvalidRequestError(
            "read schema", str(path), "a descriptor set has many messages", "--message says which"
        )
    try:
        body = path.read_bytes()
        text = base64.b64encode(body).decode() if kind == PROTOBUF else body.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError("read schema", str(path), str(error)) from error
    if len(body) > _BYTES_MAX:
        raise InvalidRequestError("read schema", str(path), f"{len(body)} bytes are no schema")
    schema = SchemaText(kind=kind, text=text, message=message if kind == PROTOBUF else "")
    compile_schema(schema, framed=False)
    return schema
